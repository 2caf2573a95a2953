"""What a store of prefixes must be able to do: named, immutable, atomic objects.

A name stands for one sequence of bytes for ever: whoever writes it again writes the
same, or bytes that are worth as much.  So writers need no locks, readers see an object
whole or not at all, and two replicas on one folder or bucket do not disturb each other.
"""

import re
from collections.abc import Iterable
from typing import Protocol

from hybridcache_jax.errors import HybridCacheError

_PART = r"[a-z0-9][a-z0-9_.-]{0,127}"
_NAME = re.compile(rf"{_PART}(/{_PART})*")


SNAPSHOTS = "snapshots"
"""Folder of whole snapshots: written by Orbax in its own ways, no objects."""


class StoreError(HybridCacheError):
    """A store could not be read or written; what it holds is as it was."""


class ShortObjectError(StoreError):
    """An object ends before the bytes that were asked for."""


class LargeObjectError(StoreError):
    """An object has more bytes than are read of it."""


class PrefixStore(Protocol):
    """Objects by name.

    Names are parts of lower-case letters, digits, ``_``, ``.`` and ``-``, joined by
    ``/``; no part begins with a dot, so no name leaves the store.  No object has the
    name of a folder that others lie in.  All methods may be
    called from several threads, and raise :class:`StoreError` if the store fails.
    """

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Writes an object; when this returns it survives the end of the machine.

        Interrupted at any moment, it leaves the old object, the new one or none.

        Args:
          name: of the object; an older one of that name is replaced.
          data: all of it; packs come as a memoryview, which nobody changes any more.
        """
        ...

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes | None:
        """The bytes ``[start, stop)`` of an object, all of it by default.

        Args:
          name: of the object.
          start: first byte.
          stop: end; None for the object's.

        Returns:
          The bytes, None if there is no such object.

        Raises:
          ShortObjectError: if the object ends before ``start`` or ``stop``.
        """
        ...

    def names(self, prefix: str) -> Iterable[str]:
        """Names of all objects that begin with ``prefix``, in no order."""
        ...

    def delete(self, name: str) -> None:
        """Removes an object; nothing happens if there is none."""
        ...


def read_at_most(store: PrefixStore, name: str, most: int) -> bytes | None:
    """All bytes of an object, of which it is not known how many they are.

    Args:
      store: where it is.
      name: of the object.
      most: bytes it may have.

    Returns:
      The bytes; None if there is no such object.

    Raises:
      LargeObjectError: if there are more; no memory is asked for then.
      StoreError: if the store fails.
    """
    try:
        if store.get(name, most, most + 1) is not None:
            raise LargeObjectError(f"it has more than {most} bytes")
    except ShortObjectError:
        return store.get(name)
    return None


def is_name(name: str) -> bool:
    """Whether an object may be called so."""
    return _NAME.fullmatch(name) is not None


def checked_name(name: str) -> str:
    """The name itself.

    Raises:
      StoreError: if it is none; it may come from a damaged or hostile manifest.
    """
    if not is_name(name):
        raise StoreError(
            f"{name!r} is no name of an object; expected parts of a-z, 0-9, '_', '.' "
            "and '-', joined by '/', none beginning with a dot."
        )
    return name
