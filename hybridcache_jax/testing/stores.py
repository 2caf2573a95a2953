"""What any store of prefixes must do: give your own to :func:`check_store`.

It checks what :class:`hybridcache_jax.store.prefix_store.PrefixStore` promises, on an
empty store, and leaves it empty.  What happens when a process dies half way through a
write is for a test that can kill one.
"""

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future

from hybridcache_jax.store.prefix_store import (
    PrefixStore,
    ShortObjectError,
    StoreError,
    checked_name,
)

_NAMES = ("top", "packs/0f/0f3a", "records/k/n_1.2-x", "z" * 128, "a/b/c/d/e/f")
_BAD = ("", "/a", "a/", "a//b", "../a", "a/../b", ".a", "a/.b", "A", "a b", "a\0", "ä")


@dataclasses.dataclass
class MemoryStore:
    """A :class:`PrefixStore` in a dictionary that can be cut and counts reads.

    Attributes:
      objects: bytes by name; change them as you like.
      reads: calls of :meth:`get`.
      cut: writes that are still done; the next one ends as if the process were killed.
      error: raised by every call while it is set.
    """

    objects: dict[str, bytes] = dataclasses.field(default_factory=dict)
    reads: int = 0
    cut: int = 10**9
    error: Exception | None = None

    def put(self, name: str, data: bytes | memoryview) -> None:
        """See :class:`PrefixStore`."""
        self._fail()
        if self.cut <= 0:
            raise KeyboardInterrupt
        self.cut -= 1
        self.objects[checked_name(name)] = bytes(data)

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes | None:
        """See :class:`PrefixStore`."""
        self._fail()
        self.reads += 1
        data = self.objects.get(checked_name(name))
        if data is not None and stop is not None and stop > len(data):
            raise ShortObjectError(f"{name} ends before byte {stop}.")
        return None if data is None else data[start:stop]

    def names(self, prefix: str) -> list[str]:
        """See :class:`PrefixStore`."""
        self._fail()
        return [name for name in self.objects if name.startswith(prefix)]

    def delete(self, name: str) -> None:
        """See :class:`PrefixStore`."""
        self._fail()
        self.objects.pop(checked_name(name), None)

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


class Inline(Executor):
    """Runs every task where it is submitted, so that a test can be repeated."""

    def submit(self, fn, /, *args, **kwargs) -> Future:
        """The task has ended when this returns."""
        future: Future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def check_store(store: PrefixStore, other: PrefixStore) -> None:
    """Checks an empty store.

    Args:
      store: the store.
      other: a second client of the same one, as another process would have it.

    Raises:
      AssertionError: for the first promise that does not hold.
    """
    _holds(not list(store.names("")), "an empty store has no names")
    _objects(store, other)
    _ranges(store)
    _names(store)
    _many_at_once(store, other)
    for name in list(store.names("")):
        store.delete(name)
    _holds(not list(other.names("")), "what is deleted is gone")


def _objects(store: PrefixStore, other: PrefixStore) -> None:
    for number, name in enumerate(_NAMES):
        _holds(store.get(name) is None, f"nothing was stored as {name}")
        store.delete(name)
        data = bytes(range(256)) * number
        store.put(name, data)
        _holds(store.get(name) == data, f"{name} comes back, {len(data)} bytes")
        _holds(other.get(name) == data, f"{name} is there for everybody")
    _holds(set(other.names("")) == set(_NAMES), "all names are listed")
    store.put(_NAMES[0], b"new")
    _holds(other.get(_NAMES[0]) == b"new", "an object is replaced whole")


def _ranges(store: PrefixStore) -> None:
    data = bytes(range(200))
    store.put("r", data)
    some = (0, 200), (0, 1), (199, 200), (7, 7), (3, None), (0, 0)
    for start, stop in (*some, (200, 200), (200, None)):
        got = store.get("r", start, stop)
        _holds(got == data[start:stop], f"bytes {start} to {stop} of 200")
    for start, stop in ((0, 201), (200, 201), (500, 600), (201, 201), (201, None)):
        _raises(
            ShortObjectError,
            lambda start=start, stop=stop: store.get("r", start, stop),
            f"bytes {start} to {stop} of 200 are not there",
        )
    _holds(store.get("nothing", 3, 5) is None, "a part of nothing is nothing")
    store.delete("r")


def _names(store: PrefixStore) -> None:
    for prefix in ("packs/", "packs/0", "a", "nothing", "records/k/n_"):
        want = {name for name in _NAMES if name.startswith(prefix)}
        _holds(set(store.names(prefix)) == want, f"names that begin with {prefix}")
    for name in _BAD:
        for what, call in (
            ("written", lambda name=name: store.put(name, b"x")),
            ("read", lambda name=name: store.get(name)),
            ("deleted", lambda name=name: store.delete(name)),
        ):
            _raises(StoreError, call, f"{name!r} is no name and is not {what}")
    _holds(set(store.names("")) == set(_NAMES), "no bad name left anything")


def _many_at_once(store: PrefixStore, other: PrefixStore) -> None:
    """Two writers of one name: at every moment one of their objects, whole."""
    one, two = b"1" * 50_000, b"2" * 70_000
    store.put("both", one)
    seen: set[bytes | None] = set()
    errors: list[Exception] = []

    def repeat(call: Callable[[], object]) -> None:
        try:
            for _ in range(20):
                call()
        except Exception as error:
            errors.append(error)

    threads = [
        threading.Thread(target=repeat, args=(call,))
        for call in (
            lambda: store.put("both", one),
            lambda: other.put("both", two),
            lambda: seen.add(store.get("both")),
            lambda: seen.add(other.get("both")),
        )
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _holds(not errors, f"writers do not disturb each other: {errors[:1]}")
    _holds(seen <= {one, two}, "a reader sees one object or the other, whole")


def _holds(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(f"It does not hold that {what}.")


def _raises(error: type[Exception], call: Callable[[], object], what: str) -> None:
    try:
        call()
    except error:
        return
    raise AssertionError(f"{error.__name__} was expected, for {what}.")
