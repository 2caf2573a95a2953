"""Tasks that wait for a store, given to an executor that may take no more."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TypeVar

T = TypeVar("T")


def submitted(
    executor: Executor, task: Callable[..., T], *args, **options
) -> Future[T]:
    """The future of a task; it has failed already if the executor refuses the task.

    One that was closed, or whose queue is full, costs what a store costs that fails.

    Args:
      executor: of the library or the user.
      task: what to run.
      *args: for it.
      **options: likewise.
    """
    try:
        return executor.submit(task, *args, **options)
    except Exception as error:  # an executor may refuse in any way of its own
        refused: Future[T] = Future()
        refused.set_exception(error)
        return refused
