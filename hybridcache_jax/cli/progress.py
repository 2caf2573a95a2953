"""A bar for long work, on a console."""

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


@contextlib.contextmanager
def progress_bar(console: Console, label: str) -> Iterator:
    """A bar that is gone when the work is done.

    Yields:
      ``update(done, total, label=None)``.
    """
    bar = Progress(
        TextColumn("  {task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(label, total=None)

        def update(done: int, total: int, text: str | None = None) -> None:
            bar.update(task, completed=done, total=total, description=text or label)

        yield update
