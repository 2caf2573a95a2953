"""What blocks are copied through on their way out and back, against what is planned.

The host's share is measured: NumPy tells ``tracemalloc`` of its arrays, and XLA, whose
arrays the device's share consists of, does not.
"""

import contextlib
import dataclasses
import gc
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import toy
from tiered import only_full

import hybridcache_jax as hc
from hybridcache_jax import append
from hybridcache_jax.lineage import OnFacts

BLOCK, BLOCKS, TOKENS = 16, 40, 640
ENTRY = hc.Entry.kv(heads=1, dim=512)
SPEC = hc.CacheSpec.from_layers(
    [hc.LayerSpec(local=hc.Window(32, ENTRY)), hc.LayerSpec(global_=hc.Entries(ENTRY))],
    block_tokens=BLOCK,
)
PLAN = hc.plan_capacity(
    SPEC,
    budget="64MiB",
    max_sequences=1,
    max_length=TOKENS + BLOCK,
    stored_tokens=TOKENS,
    staging_blocks=2,
    backend="cpu",
)
IDENTITY = hc.Identity(weights="w", config="c", layout=SPEC.fingerprint)
PROMPT = np.arange(TOKENS, dtype=np.int32)
LARGEST = max(pool.block_bytes for pool in SPEC.pools)
HOST = PLAN.staging_bytes - PLAN.staging_blocks * LARGEST
# Ids, claims and Python's own objects, about 1 KiB per batch: less than a block.
OTHERS = 48 * 1024
assert OTHERS < LARGEST


def _facts_step(cache, inputs):
    cache, step = append.begin(cache, inputs, 2 * TOKENS)
    return append.end(cache, step)


_STEP = OnFacts(_facts_step)


class Peak:
    """The most host memory at once, besides what there was."""

    nbytes = 0

    @contextlib.contextmanager
    def measured(self):
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            yield
            self.nbytes = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()


def stored(budget):
    """A prompt is stored, its memory holds random numbers; nothing has moved yet."""
    tier = hc.HostTier(PLAN, budget=budget)
    policy = hc.ReusePolicy("namespace")
    prefixes = hc.PrefixCache(PLAN, policy=policy, tier=tier)
    cache = hc.init(PLAN)
    cache, lease = prefixes.acquire(cache, prefixes.match(cache, PROMPT, IDENTITY))
    for start in range(0, TOKENS, PLAN.max_chunk):
        some = PROMPT[start : start + PLAN.max_chunk]
        inputs = hc.batch_inputs([(lease, some)], batch=1, width=PLAN.max_chunk)
        cache = prefixes.publish(_STEP(cache, inputs), lease)
    cache = prefixes.release(cache, lease)
    random = np.random.default_rng(0)
    pools = tuple(
        {k: jnp.asarray(random.normal(size=x.shape), x.dtype) for k, x in pool.items()}
        for pool in cache.pools
    )
    cache = prefixes.warm_up(dataclasses.replace(cache, pools=pools), IDENTITY)
    return tier, prefixes, cache


def contents(cache):
    """Per pool, first position of what is kept to its bytes."""
    found = []
    for table, pool in zip(cache.tables, cache.pools, strict=True):
        memory = {name: np.asarray(plane) for name, plane in pool.items()}
        kept = np.flatnonzero(np.asarray(table.kept))
        firsts = np.asarray(table.first)[kept].tolist()
        blocks = [tuple(x[:, i].tobytes() for x in memory.values()) for i in kept]
        found.append(dict(zip(firsts, blocks, strict=True)))
    return found


def test_a_load_is_copied_batch_by_batch():
    """Twenty batches of two blocks; every byte comes back to where it was."""
    _, prefixes, cache = stored("16MiB")
    before = contents(cache)
    cache = prefixes.make_room(cache, PLAN.blocks)
    plan = prefixes.match(cache, [*PROMPT, 0], IDENTITY)
    assert max(map(len, plan.loads)) == BLOCKS
    prefixes.load(cache, plan)
    peak = Peak()
    with peak.measured():
        cache, (report,) = prefixes.poll(cache)
    assert report.ready
    # What it is copied through is kept for the next one.
    kept = prefixes._outer._transfer.staging().nbytes
    assert kept + peak.nbytes <= HOST + OTHERS
    after = contents(cache)
    assert len(after[1]) == BLOCKS
    for was, now in zip(before, after, strict=True):
        assert now.items() <= was.items()


def test_a_tier_is_filled_batch_by_batch():
    """With room for all of it, and with room for a few blocks of each pool."""
    for budget, all_fit in (("16MiB", True), ("1MiB", False)):
        tier, prefixes, cache = stored(budget)
        going = sum(int(np.asarray(table.kept).sum()) for table in cache.tables)
        places = [len(table.stage) for table in tier.places]
        assert (sum(places) >= going) == all_fit
        peak = Peak()
        with peak.measured():
            cache = prefixes.make_room(cache, PLAN.blocks)
        assert [int(table.num_free) for table in cache.tables] == list(PLAN.blocks)
        held = sum(
            min(count, BLOCKS) * pool.block_bytes
            for count, pool in zip(places, SPEC.pools, strict=True)
        )
        assert tier.nbytes <= held
        assert peak.nbytes <= held + HOST + OTHERS


def test_no_batch_is_filled_before_the_last_one_was_read(monkeypatch):
    """A call may read host memory after it returned."""
    session = only_full()
    tokens = [*toy.P, 9, 7, 9, 3, 1, 1, 1, 1][:20]
    session.store(tokens)
    session.move_out()
    session.ask([*tokens, 0])
    transfer, reading, batches = session.prefixes._outer._transfer, [], []
    place, wait = transfer._place, jax.block_until_ready

    def placed(pool, memory, ids, count, blocks):
        assert not reading
        reading.append(blocks)
        batches.append(ids)
        return place(pool, memory, ids, count, blocks)

    def waited(tree):
        reading.clear()
        return wait(tree)

    monkeypatch.setattr(transfer, "_place", placed)
    monkeypatch.setattr(jax, "block_until_ready", waited)
    (report,) = session.poll()
    assert report.ready
    assert len(batches) == 2
    session.answer([*tokens, 0])
