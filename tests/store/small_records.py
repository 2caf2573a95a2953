"""Small records, and what a store must say of each: for tests that break stores."""

import hashlib

import numpy as np

import hybridcache_jax as hc
from hybridcache_jax.contents import Contents
from hybridcache_jax.offload.payload import Payload
from hybridcache_jax.rollout import Key
from hybridcache_jax.store.finding import find_records
from hybridcache_jax.store.pack import read_blocks
from hybridcache_jax.store.records import (
    PoolBlocks,
    Prefix,
    layout_of,
    write_record,
)

ENTRY = hc.Entry.kv(heads=1, dim=2)
# A grid of one token: records can end after any.
SPEC = hc.CacheSpec.from_layers(
    [hc.LayerSpec(local=hc.Window(4, ENTRY)), hc.LayerSpec(global_=hc.Entries(ENTRY))],
    block_tokens=1,
)
WINDOW, HISTORY = SPEC.pools
KEY = Key(hc.Identity("w", "c", SPEC.fingerprint, namespace="a"))


def prefix(tokens):
    ids = np.array(tokens, np.int32)
    return Prefix(KEY, ids, Contents.of([], len(ids)), 1)


def numbers(tokens, start=0):
    """Blocks of each pool that a record at the end of the tokens has."""
    stop = len(tokens)
    return {
        WINDOW.name: list(range(max(0, stop - 3), stop)),
        HISTORY.name: list(range(start, stop)),
    }


def planes(pool, tokens, number, salt):
    """A block's arrays: of no other pool, prefix, place or writer."""
    said = repr((pool.name, list(tokens[: number + 1]), salt)).encode()
    arrays = {}
    for plane in layout_of(pool):
        size = int(np.prod(plane.shape)) * np.dtype(plane.dtype).itemsize
        noise = hashlib.shake_128(said + plane.name.encode()).digest(size)
        arrays[plane.name] = np.frombuffer(noise, plane.dtype).reshape(plane.shape)
    return arrays


def save(store, tokens, start=0, salt=0, library="0", age=1):
    """A record at the end of the tokens; ``salt`` is in every byte of its blocks."""
    parts = [
        PoolBlocks(
            pool,
            [
                (number, Payload.sealed(planes(pool, tokens, number, salt)))
                for number in numbers(tokens, start)[pool.name]
            ],
        )
        for pool in (WINDOW, HISTORY)
    ]
    return write_record(store, prefix(tokens), start, parts, library=library, age=age)


def expected(tokens, start=0, salt=0):
    """What :func:`look` sees of one record, by reckoning."""
    seen = []
    for pool in (WINDOW, HISTORY):
        for number in numbers(tokens, start)[pool.name]:
            arrays = planes(pool, tokens, number, salt)
            data = b"".join(arrays[plane.name].tobytes() for plane in layout_of(pool))
            seen.append((pool.name, number, hashlib.sha256(data).hexdigest()[:16]))
    return [start, len(tokens), [list(one) for one in seen]]


def look(store, tokens):
    """The records along the tokens, each with all of its blocks read.

    Returns:
      Of each record its start, its end and pool, number and digest of every block; the
      digest is None for what is not there or not right.
    """
    found = find_records(store, prefix([*tokens, 999_999]))
    return [
        [
            record.start,
            record.stop,
            [
                [
                    part.pool,
                    place.number,
                    data and hashlib.sha256(data).hexdigest()[:16],
                ]
                for pool, part in zip((WINDOW, HISTORY), record.parts, strict=True)
                for place, data in zip(
                    part.blocks,
                    read_blocks(store, part.blocks, pool.block_bytes),
                    strict=True,
                )
            ],
        ]
        for record in found.records
    ]
