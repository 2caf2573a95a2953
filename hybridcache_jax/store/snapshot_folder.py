"""A folder of snapshots: who writes there, and when what was written lasts."""

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator


@contextlib.contextmanager
def locked(folder: pathlib.Path, how: int) -> Iterator[bool]:
    """Holds a lock on a folder, which ends with the process; whether it is held."""
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(place, how)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(place)


def make_lasting(folder: pathlib.Path) -> None:
    """Waits until a step, and that it is there, survives the end of the machine."""
    below = sorted(folder.rglob("*"), reverse=True)
    for path in (*below, folder, *list(folder.parents)[:3]):
        place = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(place)
        finally:
            os.close(place)
