"""Objects in a folder or a bucket, through TensorStore's key-value stores.

In a folder objects are written, and large parts of them read, without it: see
:mod:`hybridcache_jax.store.folder`.

In a bucket one request writes an object, whole or not at all.  ``s3://`` is tested on a
server of its kind, with the errors that networks have; ``gs://`` on a stub of Google's
service alone.
"""

import concurrent.futures
import math
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from hybridcache_jax.store.addresses import kvstore_spec
from hybridcache_jax.store.folder import Folder
from hybridcache_jax.store.prefix_store import (
    ShortObjectError,
    StoreError,
    checked_name,
    is_name,
)

# Bytes from which on a file is read without TensorStore, which copies what it reads and
# takes ten times as long for a MiB; but a thread is begun for it, which takes longer
# than all of a small read.
_LARGE = 2**18

_Answer = TypeVar("_Answer")


class ObjectStore:
    """A :class:`PrefixStore` in one folder, or under one prefix of a bucket.

    Every call of its ends.  In a bucket, errors that may pass are tried again, with
    waits that grow; what is refused, is not there or is too short is not.  A try that
    hangs is given up after ``timeout`` seconds and made again by a new client; in a
    folder it is given up for good.  A write that was given up may still arrive.

    Attributes:
      path: as it was given.
    """

    def __init__(
        self,
        path: str | pathlib.Path,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        credentials: Mapping[str, str] | None = None,
        tries: int = 4,
        wait: float = 0.25,
        timeout: float = 60.0,
    ):
        """Opens a store; no server is asked and no folder made before the first call.

        Args:
          path: of the folder, ``gs://bucket/prefix`` or ``s3://bucket/prefix``.
          endpoint: URL of an S3-compatible server, such as MinIO's or
            ``https://s3.bj.bcebos.com``; None for Amazon's.
          region: of an ``s3://`` bucket.  Left out, it is us-east-1 at an endpoint;
            Amazon is asked for it, without a second try.
          credentials: for ``s3://``, TensorStore's ``aws_credentials``, such as
            ``{"type": "profile", "profile": "name", "credentials_file": "path"}``.
            Left out, and for ``gs://``, TensorStore looks where the providers' own
            tools do.
          tries: how often a request to a bucket is made at most.
          wait: seconds before the second try; doubled before each further one, up to 8.
          timeout: seconds after which a try hangs; enough to write 64 MiB, the most
            that a pack has.

        Raises:
          ValueError: for a path or an option that is none.
          StoreError: if the store cannot be opened.
        """
        # TensorStore loads for a while; who has no store does not wait for it.
        import tensorstore

        self.path = str(path)
        spec = kvstore_spec(
            path,
            endpoint=endpoint,
            region=region,
            credentials=credentials,
            tries=tries,
            wait=wait,
        )
        if not 0 < timeout < math.inf:
            raise ValueError(f"timeout must be seconds above 0, got {timeout!r}.")
        try:
            tensorstore.KvStore.Spec(spec)
        except ValueError as error:
            raise ValueError(f"{self.path} is no store: {error}") from error
        in_folder = spec["driver"] == "file"
        self._ts, self._spec, self._timeout = tensorstore, spec, timeout
        self._folder = Folder(pathlib.Path(spec["path"])) if in_folder else None
        self._tries = 1 if in_folder else tries
        self._objects = self._opened()

    def put(self, name: str, data: bytes | memoryview) -> None:
        """See :class:`PrefixStore`."""
        checked_name(name)
        try:
            self._result(lambda objects: self._writing(objects, name, data))
        except Exception as error:
            raise self._failed("written", name, error) from error

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes | None:
        """See :class:`PrefixStore`."""
        checked_name(name)
        if self._folder is not None and stop is not None and stop - start >= _LARGE:
            return self._read(self._folder, name, start, stop)
        # A bucket cannot be asked for an empty range; the byte before it tells.
        early = 1 if not self._folder and start and stop in {None, start} else 0
        part = slice(start - early, stop) if start or stop is not None else None
        try:
            read = self._result(lambda objects: objects.read(name, byte_range=part))
        except Exception as error:
            if str(error).startswith("OUT_OF_RANGE"):
                end = start if stop is None else stop
                raise ShortObjectError(
                    f"{name} in {self.path} ends before byte {end}."
                ) from error
            raise self._failed("read", name, error) from error
        return read.value[early:] if read.state == "value" else None

    def names(self, prefix: str) -> Iterator[str]:
        """See :class:`PrefixStore`."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else ""
        try:
            found = self._listed(prefix, end)
            if self._spec["driver"] == "gcs":
                self._list_on(found, end)
        except Exception as error:
            raise self._failed("listed", repr(prefix), error) from error
        # Whatever else lies there is not ours, as what network file systems put into
        # folders.
        said = (name.decode(errors="replace") for name in found)
        return (name for name in said if is_name(name))

    def delete(self, name: str) -> None:
        """See :class:`PrefixStore`."""
        checked_name(name)
        try:
            # No value is how TensorStore deletes.
            self._result(lambda objects: objects.write(name, None))
        except Exception as error:
            raise self._failed("deleted", name, error) from error

    def sweep(self) -> int:
        """Removes what killed writers left half written, while others write.

        It never was an object: no name of it is listed and nobody reads it; it only
        takes room.  In a bucket there is no such thing.

        Returns:
          How many files were removed.

        Raises:
          StoreError: if a folder cannot be read, or a leftover cannot be removed.
        """
        try:
            return self._folder.sweep() if self._folder else 0
        except OSError as error:
            raise StoreError(f"{self.path} could not be swept: {error}") from error

    def _listed(self, start: str, end: str) -> list[bytes]:
        keys = self._ts.KvStore.KeyRange(start, end)
        return self._result(lambda objects: objects.list(keys))

    def _list_on(self, found: list[bytes], end: str) -> None:
        """Adds what a list of Google's lacks, or says that it was refused.

        TensorStore takes a page that is refused for the end of the list.  So it goes on
        until there is no more.  Who may not list is refused an object that is not there
        as well, and of that TensorStore speaks.
        """
        more = found
        while more:
            # No name of ours comes before this one after the last.
            more = self._listed(max(more).decode(errors="replace") + "-", end)
            found += more
        self.get("nothing/is/called/so")

    def _opened(self) -> Any:
        try:
            opening = self._ts.KvStore.open(self._spec)
            return opening.result(timeout=self._timeout)
        except Exception as error:
            raise StoreError(f"{self.path} cannot be opened: {error}") from error

    def _read(self, folder: Folder, name: str, start: int, stop: int) -> bytes | None:
        def read() -> bytes | None:
            return folder.read(name, start, stop)

        try:
            return self._result(lambda _: _begun(read))
        except ShortObjectError:
            raise
        except Exception as error:
            raise self._failed("read", name, error) from error

    def _writing(self, objects: Any, name: str, data: bytes | memoryview) -> Any:
        folder = self._folder
        if folder is None:
            return objects.write(name, bytes(data))
        return _begun(lambda: folder.write(name, data))

    def _result(self, begin: Callable[[Any], Any]) -> Any:
        """What an operation gives, begun again where it hangs.

        TensorStore has no limit on a request's time.  One that hangs keeps its place
        among those that a client makes at once, so a new client begins again.
        """
        for _ in range(self._tries):
            future = begin(self._objects)
            try:
                return future.result(timeout=self._timeout)
            except TimeoutError:
                if future.done():
                    # Over just now; or the time that was over is a file system's own.
                    return future.result()
                future.cancel()
                self._objects = self._opened()
        raise TimeoutError(
            f"no answer in {self._timeout:g} seconds, {self._tries} times"
        )

    def _failed(self, what: str, name: str, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error
        return StoreError(f"{name} could not be {what} in {self.path}: {error}")


def _begun(call: Callable[[], _Answer]) -> concurrent.futures.Future[_Answer]:
    """Begins a call in a thread that nobody has to wait for.

    What hangs in the operating system cannot be ended; it goes with the process.
    """
    future: concurrent.futures.Future[_Answer] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
