"""Calls of a store side by side: a bucket answers many requests as quickly as one."""

import collections
import concurrent.futures
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


def in_order(
    call: Callable[[_Item], _Answer], items: Iterable[_Item], threads: int
) -> Iterator[_Answer]:
    """Calls a function with each item, and gives the answers in the items' order.

    Args:
      call: from several threads at once, if there are any.
      items: taken as they are needed; no more than ``threads`` answers wait.
      threads: how many calls go on at once; 1 for one after the other, here.

    Yields:
      Answers.  A call that raises ends it: what is going on is waited for, no more is
      begun.

    Raises:
      ValueError: if ``threads`` is not positive.
    """
    if threads < 1:
        raise ValueError(f"threads must be positive, got {threads}.")
    if threads == 1:
        yield from map(call, items)
        return
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        waiting: collections.deque[concurrent.futures.Future[_Answer]]
        waiting = collections.deque()
        try:
            for item in items:
                waiting.append(pool.submit(call, item))
                if len(waiting) >= threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
