"""Objects in a folder, through TensorStore's key-value stores.

TensorStore writes beside the object, waits until the bytes survive the end of the
machine, and renames.  It does so without locks, each time under a new name: with its
locks it writes over what a killed writer of the same object had begun, and leaves the
end of that where it is longer.
"""

import pathlib
from collections.abc import Iterator

from hybridcache_jax.store.folder import Folder
from hybridcache_jax.store.prefix_store import (
    ShortObjectError,
    StoreError,
    checked_name,
    is_name,
)


class ObjectStore:
    """A :class:`PrefixStore` in one folder.

    Attributes:
      path: of the folder.
    """

    def __init__(self, path: str | pathlib.Path):
        """Opens a store; the folder is made when the first object is written.

        Args:
          path: of the folder.

        Raises:
          ValueError: for an address of something else than a folder.
          StoreError: if it cannot be opened.
        """
        # TensorStore loads for a while; who has no store does not wait for it.
        import tensorstore

        self.path = str(path)
        if "://" in self.path:
            raise ValueError(f"{self.path!r} is no folder; give the path of one.")
        self._folder = Folder(pathlib.Path(path).absolute())
        self._ts = tensorstore
        try:
            self._objects = tensorstore.KvStore.open(
                {
                    "driver": "file",
                    "path": f"{self._folder.root}/",
                    "context": {"file_io_locking": {"mode": "none"}},
                }
            ).result()
        except Exception as error:
            raise StoreError(f"{self.path} cannot be opened: {error}") from error

    def put(self, name: str, data: bytes) -> None:
        """See :class:`PrefixStore`."""
        try:
            with self._folder.writing(checked_name(name)):
                self._objects.write(name, data).result()
        except Exception as error:
            raise self._failed("written", name, error) from error

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes | None:
        """See :class:`PrefixStore`."""
        part = None if (start, stop) == (0, None) else slice(start, stop)
        try:
            read = self._objects.read(checked_name(name), byte_range=part).result()
        except Exception as error:
            if "OUT_OF_RANGE" in str(error):
                raise ShortObjectError(
                    f"{name} in {self.path} ends before byte {stop}."
                ) from error
            raise self._failed("read", name, error) from error
        return read.value if read.state == "value" else None

    def names(self, prefix: str) -> Iterator[str]:
        """See :class:`PrefixStore`."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else ""
        try:
            found = self._objects.list(self._ts.KvStore.KeyRange(prefix, end)).result()
        except Exception as error:
            raise self._failed("listed", prefix, error) from error
        # Whatever else lies in the folder is not ours, as what network file systems
        # put there.
        said = (name.decode(errors="replace") for name in found)
        return (name for name in said if is_name(name))

    def delete(self, name: str) -> None:
        """See :class:`PrefixStore`."""
        try:
            # No value is how TensorStore deletes.
            self._objects.write(checked_name(name), None).result()
        except Exception as error:
            raise self._failed("deleted", name, error) from error

    def sweep(self) -> int:
        """Removes what killed writers left half written, while others write.

        It never was an object: no name of it is listed and nobody reads it; it only
        takes room.

        Returns:
          How many files were removed.

        Raises:
          StoreError: if a folder cannot be read, or a leftover cannot be removed.
        """
        try:
            return self._folder.sweep()
        except OSError as error:
            raise StoreError(f"{self.path} could not be swept: {error}") from error

    def _failed(self, what: str, name: str, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error
        return StoreError(f"{name} could not be {what} in {self.path}: {error}")
