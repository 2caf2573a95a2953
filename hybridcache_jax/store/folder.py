"""Objects in a folder: they are written whole, they last, and the folder gets clean.

An object is written beside its place, under a name that nobody else has; its bytes are
waited for until they survive the end of the machine, it is renamed, and its folder and
those above are waited for.  What was begun when a process was killed stays.

TensorStore writes so, too.  But it copies the bytes first, and meanwhile no other
thread of the interpreter runs: a pack would hold up the steps of a server.

A writer holds a shared lock of the folder that its object lies in.  The lock belongs to
the operating system and ends with the process.  So who gets it alone knows, without a
look at any clock, that no writer of what lies there half written is alive.  Locks of
folders do not reach other machines: on a network file system a sweep may make a put of
another machine fail, with its error, and do no other harm.
"""

import contextlib
import fcntl
import os
import pathlib
import secrets
import stat
from collections.abc import Iterator

from hybridcache_jax.store.prefix_store import SNAPSHOTS, ShortObjectError

LEFTOVER = ".__lock"
"""How the names end under which objects are written; no object's does."""

# Folders that are known to last, at most; about 200 bytes each.
_MOST_KNOWN = 10_000


class Folder:
    """The folder of a store.  No other program may remove folders from it.

    Attributes:
      root: where it is.
    """

    def __init__(self, root: pathlib.Path):
        self.root = root
        self._lasting: set[pathlib.Path] = set()

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Writes an object, whole or not at all; when this returns it lasts.

        Args:
          name: of the object.
          data: all of it.

        Raises:
          OSError: if the folder cannot be made, opened, locked or waited for, or the
            bytes cannot be written.
        """
        path = self.root / name
        with self.writing(name) as place:
            beside = path.with_name(f"{path.name}_{secrets.token_hex(8)}{LEFTOVER}")
            try:
                _write(beside, data)
                beside.rename(path)
            except OSError:
                with contextlib.suppress(OSError):
                    beside.unlink()
                raise
            os.fsync(place)

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[int]:
        """Makes the folder of an object, keeps sweeps out of it and makes it last.

        Args:
          name: of the object, which is written meanwhile.

        Yields:
          The folder, opened.

        Raises:
          OSError: if the folder cannot be made, opened, locked or waited for.
        """
        folder, top = (self.root / name).parent, self.root
        while not top.parent.is_dir():
            top = top.parent
        folder.mkdir(parents=True, exist_ok=True)
        with _opened(folder) as place:
            fcntl.flock(place, fcntl.LOCK_SH)
            yield place
        # That a folder was there before does not say that it lasts: another process may
        # have made it just now, and not have waited for it yet.
        seen = []
        while folder not in self._lasting and folder != top.parent:
            seen.append(folder)
            _wait_for(folder.parent, inside=folder != top)
            folder = folder.parent
        if len(self._lasting) > _MOST_KNOWN:
            self._lasting.clear()
        self._lasting.update(seen)

    def read(self, name: str, start: int, stop: int) -> bytes | None:
        """The bytes ``[start, stop)`` of an object; None if there is none.

        Args:
          name: of the object.
          start: first byte.
          stop: end, behind ``start``.

        Raises:
          ShortObjectError: if it ends before ``stop``; no memory is asked for then.
          OSError: if it cannot be opened or read.
        """
        try:
            place = os.open(self.root / name, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            facts = os.fstat(place)
            if stat.S_ISDIR(facts.st_mode):
                return None
            parts, at, size = [], start, facts.st_size
            while at < stop <= size and (part := os.pread(place, stop - at, at)):
                parts.append(part)
                at += len(part)
            if at != stop:
                raise ShortObjectError(
                    f"{name} in {self.root} ends before byte {stop}."
                )
        finally:
            os.close(place)
        # Nearly always one; more are joined.
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def sweep(self) -> int:
        """Removes what killed writers left, while others write.

        Returns:
          How many files were removed.  Folders in which something is written at the
          moment are left for the next time.

        Raises:
          OSError: if a folder cannot be read, or a leftover cannot be removed.
        """
        removed, pending = 0, [self.root]
        while pending:
            entries = _entries(pending.pop())
            pending += [
                pathlib.Path(entry)
                for entry in entries
                if entry.is_dir(follow_symlinks=False)
                # Orbax writes there in its own ways; who calls it sweeps there.
                and pathlib.Path(entry) != self.root / SNAPSHOTS
            ]
            if begun := next(filter(_is_leftover, entries), None):
                removed += _sweep_one(pathlib.Path(begun).parent)
        return removed


def _write(path: pathlib.Path, data: bytes | memoryview) -> None:
    """Writes a new file; its bytes survive the end of the machine."""
    place = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(place, left) :]
        os.fsync(place)
    finally:
        os.close(place)


def _sweep_one(folder: pathlib.Path) -> int:
    with _opened(folder) as place:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        # Only what lies there now that no writer is left: the list before is old.
        found = [entry for entry in _entries(folder) if _is_leftover(entry)]
        for entry in found:
            pathlib.Path(entry).unlink(missing_ok=True)
    return len(found)


def _entries(folder: pathlib.Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _is_leftover(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(LEFTOVER) and entry.is_file(follow_symlinks=False)


def _wait_for(folder: pathlib.Path, inside: bool) -> None:
    """Waits until what a folder names survives the end of the machine."""
    with contextlib.ExitStack() as stack:
        try:
            place = stack.enter_context(_opened(folder))
        except PermissionError:
            # Who may not list the folder around the store found the store ready-made.
            if inside:
                raise
            return
        os.fsync(place)


@contextlib.contextmanager
def _opened(folder: pathlib.Path) -> Iterator[int]:
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield place
    finally:
        os.close(place)
