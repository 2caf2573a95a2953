"""What of bounded forms is of use beside what is gone: every point tried, in sets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax.entry import Entry
from hybridcache_jax.forms import Form
from hybridcache_jax.identity import Identity
from hybridcache_jax.layers import Chunk, Entries, LayerSpec, RecurrentState, Window
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.replay import companions
from hybridcache_jax.rollout import Key
from hybridcache_jax.spec import CacheSpec

ROW = Entry.kv(1, 2)
KEY = Key(Identity("w", "c", "l"))
GRID = 4
SIZES = {
    Form.FULL_KV: 4,
    Form.COMPRESSED_KV: 4,
    Form.UNCOMPRESSED_TAIL: 1,
    Form.SWA_WINDOW: 2,
    Form.RECURRENT_STATE: 4,
}
NARROW, WIDE = LayerSpec(local=Window(3, ROW)), LayerSpec(local=Window(7, ROW))
CHUNK = LayerSpec(local=Chunk(6, ROW))
FULL, STATE = LayerSpec(global_=Entries(ROW)), LayerSpec(recurrent=RecurrentState(ROW))
POOLED = LayerSpec(global_=Entries(ROW, 2, 1, raw=ROW))
# How far before a point each form looks, in positions.
BACK = {
    "narrow": lambda p: range(max(0, p - 2), p),
    "wide": lambda p: range(max(0, p - 6), p),
    "chunk": lambda p: range(p // 6 * 6, p),
    "tail": lambda p: range(max(0, p - 2), p),
    "state": lambda p: range(p - 1, p),
}
# Layers; what each bounded pool is called, in order; and what it needs beside it.
MODELS = {
    "two windows, the narrow one lower": (
        [NARROW, WIDE, POOLED],
        {"narrow": "", "wide": "narrow", "tail": "narrow wide"},
    ),
    "two windows, the wide one lower": (
        [WIDE, POOLED, NARROW],
        {"wide": "", "tail": "narrow wide", "narrow": "wide"},
    ),
    "a state below": (
        [STATE, NARROW, POOLED],
        {"state": "", "narrow": "state", "tail": "state narrow"},
    ),
    "a state above": (
        [NARROW, STATE, FULL],
        {"narrow": "state", "state": "narrow"},
    ),
    "a chunk below a state": (
        [CHUNK, FULL, STATE],
        {"chunk": "state", "state": "chunk"},
    ),
}


def spec_of(name):
    layers, beside = MODELS[name]
    spec = CacheSpec.from_layers(layers, block_tokens=SIZES)
    assert spec.grid == GRID
    bounded = [
        number
        for number, pool in enumerate(spec.pools)
        if pool.form not in (Form.FULL_KV, Form.COMPRESSED_KV)
    ]
    names = dict(zip(bounded, beside, strict=True))
    return spec, names


@pytest.mark.parametrize("name", MODELS)
def test_what_must_be_held_beside_each_form(name):
    spec, names = spec_of(name)
    for number, mine in names.items():
        wanted = {mine, *MODELS[name][1][mine].split()}
        assert {names[other] for other in companions(spec, number)} == wanted


PATHS = st.lists(
    st.lists(st.sampled_from([0, 1]), min_size=1, max_size=5), min_size=1, max_size=3
)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=60)
@given(paths=PATHS, gone=st.sets(st.integers(0, 60), max_size=12), every=st.booleans())
def test_blocks_that_no_point_can_use_are_not_named(name, paths, gone, every):
    spec, names = spec_of(name)
    sizes = [pool.block_tokens for pool in spec.pools]
    index, units, handed = PrefixIndex(spec), {}, 0
    lost = set()

    def holds(pool, ids, epochs, first):
        return ~np.isin(ids, list(lost)) & (ids < 10**6)

    for path in paths:
        blocks = [np.zeros(len(path) * GRID // size, np.int32) for size in sizes]
        for depth in range(len(path)):
            key = tuple(path[: depth + 1])
            if key not in units:
                units[key] = []
                for size in sizes:
                    count = GRID // size
                    units[key].append(list(range(handed, handed + count)))
                    handed += count
            for pool, size in enumerate(sizes):
                at = depth * GRID // size
                blocks[pool][at : at + GRID // size] = units[key][pool]
        tokens = np.repeat(np.array(path, np.int32), GRID)
        index.insert(
            KEY, tokens, blocks, [np.ones(len(b), np.int32) for b in blocks], holds
        )
    for pool in names:
        ids = [i for blocks in units.values() for i in blocks[pool]]
        lost.update(
            i for place, i in enumerate(ids) if place in gone and (every or pool % 2)
        )

    wanted = {pool: set() for pool in names}
    for key in units:
        path = {
            pool: [
                i for depth in range(len(key)) for i in units[key[: depth + 1]][pool]
            ]
            for pool in names
        }
        point = len(key) * GRID
        needed = {
            pool: {path[pool][q // sizes[pool]] for q in BACK[mine](point)}
            for pool, mine in names.items()
        }
        held = {names[pool] for pool in names if not needed[pool] & lost}
        for pool, mine in names.items():
            if {mine, *MODELS[name][1][mine].split()} <= held:
                wanted[pool] |= needed[pool]
    left = index.prune(
        lambda key: holds, [n for n in range(len(sizes)) if n not in names]
    )
    assert {pool: set(left[pool].tolist()) for pool in names} == wanted
