"""What a way loads: what it reads and does not rebuild."""

import numpy as np

from hybridcache_jax import (
    CacheSpec,
    Entries,
    Entry,
    LayerSpec,
    RecurrentState,
    Window,
)
from hybridcache_jax.codes import Reason
from hybridcache_jax.replay import bases
from hybridcache_jax.ways import blocks_to_load, kept_pools

ROW = Entry.kv(1, 1)


def loads(layers, length, start, base=0):
    """Of 12 tokens that all lie in an outer tier, in blocks of 4."""
    spec = CacheSpec.from_layers(layers, block_tokens=4)
    away = [np.full(3, int(Reason.IN_OUTER_TIER), np.int32) for _ in spec.pools]
    kept = kept_pools(spec, base, length, start)
    return [
        blocks.tolist() for blocks in blocks_to_load(spec, away, length, start, kept)
    ]


def test_what_a_replay_rebuilds_is_not_loaded():
    """A window of 6: at 12 it needs 7..11, and a replay from 7 makes those."""
    layers = [LayerSpec(global_=Entries(ROW)), LayerSpec(local=Window(6, ROW))]
    assert loads(layers, 12, 12) == [[0, 1, 2], [1, 2]]
    assert loads(layers, 12, 7) == [[0, 1, 2], []]


def test_the_checkpoint_that_a_replay_starts_from_is_loaded():
    layers = [LayerSpec(recurrent=RecurrentState(ROW)), LayerSpec(global_=Entries(ROW))]
    assert loads(layers, 12, 12) == [[2], [0, 1, 2]]
    assert loads(layers, 12, 8) == [[1], [0, 1, 2]]


def test_what_a_replay_goes_on_from_is_loaded_as_it_stands_there():
    """A window of 3, kept at 8; the tail is rebuilt from there."""
    layers = [
        LayerSpec(local=Window(3, ROW)),
        LayerSpec(global_=Entries(ROW, 4, 1, raw=ROW)),
    ]
    spec = CacheSpec.from_layers(layers, block_tokens=4)
    names = [pool.name for pool in spec.pools]
    assert [[names[n] for n in base] for base in bases(spec)] == [[], ["swa_window.0"]]
    found = dict(zip(names, loads(layers, 12, 8, base=1), strict=True))
    assert found == {
        "swa_window.0": [1],
        "compressed_kv.1": [0, 1, 2],
        "uncompressed_tail.1": [],
    }
    assert kept_pools(spec, 1, 12, 8) == (names.index("swa_window.0"),)
    assert kept_pools(spec, 1, 12, 12) == ()
