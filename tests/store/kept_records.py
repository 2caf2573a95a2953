"""Small records for the tests of house-keeping, and a store that is watched."""

import dataclasses

import numpy as np

import hybridcache_jax as hc
from hybridcache_jax.contents import Contents
from hybridcache_jax.offload.payload import Payload
from hybridcache_jax.rollout import Key
from hybridcache_jax.store.finding import find_records
from hybridcache_jax.store.pack import read_blocks
from hybridcache_jax.store.prefix_store import checked_name
from hybridcache_jax.store.records import (
    PoolBlocks,
    Prefix,
    layout_of,
    write_record,
)
from hybridcache_jax.store.ticks import tick
from hybridcache_jax.testing.stores import MemoryStore as Memory

GRID = 4
ENTRY = hc.Entry.kv(heads=1, dim=2)
SPEC = hc.CacheSpec.from_layers(
    [hc.LayerSpec(local=hc.Window(4, ENTRY)), hc.LayerSpec(global_=hc.Entries(ENTRY))],
    block_tokens=GRID,
)
WINDOW, HISTORY = SPEC.pools
KEY = Key(hc.Identity("w", "c", SPEC.fingerprint, namespace="a"))


def prefix(tokens, spans=(), key=KEY):
    ids = np.array(tokens, np.int32)
    contents = Contents.of(spans, 1000).before(len(ids))
    return Prefix(key, ids, contents, GRID)


def block(pool, tokens):
    """A block that says of which tokens it is."""
    mark = sum((n + 1) * (token + 1) for n, token in enumerate(tokens))
    planes = layout_of(pool)
    return Payload.sealed({p.name: np.full(p.shape, mark, p.dtype) for p in planes})


def write(store, tokens, start=0, *, known=None, **more):
    """A record at the end of ``tokens`` that goes on from ``start``.

    Args:
      store: where to.
      tokens: whole grid units.
      start: where it goes on from.
      known: places of blocks of the history, by number.
      more: for :func:`prefix`.
    """
    last = len(tokens) // GRID - 1
    history = [
        (n, (known or {}).get(n) or block(HISTORY, tokens[: (n + 1) * GRID]))
        for n in range(start // GRID, last + 1)
    ]
    parts = [
        PoolBlocks(WINDOW, [(last, block(WINDOW, tokens))]),
        PoolBlocks(HISTORY, history),
    ]
    asked = prefix(tokens, **more)
    return write_record(store, asked, start, parts, library="0", age=tick(store))


def length_read(store, tokens, **more):
    """How far a prompt is found, every block of what is found read and compared.

    Args:
      store: where from.
      tokens: of the prompt.
      more: for :func:`prefix`.

    Raises:
      AssertionError: for a block of a record that is found and is not there, whole.
    """
    found = find_records(store, prefix(tokens, **more))
    for record in found.records:
        # The last one may lead past where the prompt parts from it.
        own = np.frombuffer(record.tokens, "<i4")[: found.length - record.start]
        assert own.tolist() == list(tokens[record.start : record.start + len(own)])
        for pool, part in zip((WINDOW, HISTORY), record.parts, strict=True):
            numbers = [place.number for place in part.blocks]
            first = record.stop if pool is WINDOW else record.start + GRID
            assert numbers == list(range(first // GRID - 1, record.stop // GRID))
            got = read_blocks(store, part.blocks, pool.block_bytes)
            assert None not in got
            for number, data in zip(numbers, got, strict=True):
                if (number + 1) * GRID > found.length:
                    continue
                want = block(pool, tokens[: (number + 1) * GRID]).planes
                assert data == b"".join(want[p.name].tobytes() for p in part.planes)
    return found.length


class CutError(Exception):
    """The process ends here."""


@dataclasses.dataclass
class Watched(Memory):
    """A store that refuses bad names, and does something before its n-th call.

    Attributes:
      at: before which call; counted from now on.
      then: what is done.
      call: the last call: its name and what it was about.
    """

    at: int = -1
    then: object = None
    call: tuple = ()

    def _call(self, what, name):
        self.call = what, name
        if what != "names":
            checked_name(name)
        self.at -= 1
        if self.at == -1:
            self.then()

    def put(self, name, data):
        self._call("put", name)
        super().put(name, data)

    def get(self, name, start=0, stop=None):
        self._call("get", name)
        return super().get(name, start, stop)

    def names(self, prefix):
        self._call("names", prefix)
        return super().names(prefix)

    def delete(self, name):
        self._call("delete", name)
        super().delete(name)


def cut():
    """Ends what runs."""
    raise CutError


def copied(store, at=-1, then=None):
    """A watched copy of a store."""
    return Watched(dict(store.objects), at=at, then=then)
