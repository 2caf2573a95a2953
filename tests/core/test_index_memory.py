"""What the host's index really takes, against what a plan sets aside for it."""

import gc
import tracemalloc

import numpy as np
import pytest

from hybridcache_jax.bench.stored import five_groups
from hybridcache_jax.budget import plan_capacity
from hybridcache_jax.entry import Entry
from hybridcache_jax.forms import Form
from hybridcache_jax.identity import Identity
from hybridcache_jax.layers import Entries, LayerSpec, Window
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.rollout import LONGEST_ID, Key, Scope
from hybridcache_jax.spec import CacheSpec

ROW = Entry.kv(1, 2)
SPECS = {
    "seven pools": five_groups(),
    "two block sizes": CacheSpec.from_layers(
        [LayerSpec(local=Window(8, ROW)), LayerSpec(global_=Entries(ROW))],
        block_tokens={Form.SWA_WINDOW: 16, Form.FULL_KV: 64},
    ),
    "short blocks": CacheSpec.from_layers(
        [LayerSpec(global_=Entries(ROW))], block_tokens=4
    ),
}


def shared(_):
    return Key(Identity("w", "c", "l"))


def own(number):
    """A key of each request's own, with the longest names there are."""
    name = f"{number:0{LONGEST_ID}}"
    return Key(Identity("w", "c", "l").within("n" + name[1:]), Scope.REQUEST, name)


@pytest.mark.parametrize("key", [shared, own])
@pytest.mark.parametrize(("prompts", "units"), [(400, 1), (100, 8), (1, 1000)])
@pytest.mark.parametrize("name", SPECS)
def test_no_more_is_allocated_than_is_planned(name, prompts, units, key):
    """Red line 1, as Python's allocator tells; the gauge is no less than that."""
    spec, rng = SPECS[name], np.random.default_rng(0)
    plan = plan_capacity(
        spec, budget="1GiB", max_sequences=1, max_length=64, stored_tokens=64
    )
    drawn = rng.integers(0, 2**30, (prompts, units * spec.grid), dtype=np.int32)
    blocks = [np.arange(drawn.shape[1] // p.block_tokens) for p in spec.pools]
    index = PrefixIndex(spec)

    def holds(pool, ids, epochs, first):
        return np.ones(len(ids), bool)

    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number, prompt in enumerate(drawn):
            index.insert(key(number), prompt, blocks, blocks, holds)
        gc.collect()
        real = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert index.stored_tokens == drawn.size
    assert real <= index.nbytes <= plan.index_bytes(drawn.size)
    # One node and one key per prompt, short ones: not far from what is planned.
    assert (units, key) != (1, own) or plan.index_bytes(drawn.size) < 2 * real
