"""K25: split invariance and degenerate sizes.

For every partition of x into calls: same forms, same reads.  Sizes 0, 1, W-1, W, W+1,
block-1, block, block+1, capacity, capacity+1; W=1; W > capacity; only windows; no
windows.
"""

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import LeaseError, Reason, Status, Verdict

DIGITS = st.integers(1, 9)
TOKENS = [p * 7 % 9 + 1 for p in range(24)]
# W = 1, block - 1, block + 1 and more than a row may have; chunks likewise.  W equal
# to the block, and layers of the whole history, are in the other models.
SIZES = (
    toy.window(1),
    toy.window(3),
    toy.window(5),
    toy.window(40),
    toy.chunk(1),
    toy.chunk(4),
    toy.chunk(40),
)


def all_sizes():
    return toy.model(SIZES, rows=1, stored=24)


def pair():
    """Two stacked window layers, W=4; layer 2 stores sums of layer 1."""
    return toy.model((toy.window(4), toy.window(4)), style="sums")


MODELS = {
    "all sizes": all_sizes,
    "only window": toy.only_window,
    "only full": toy.only_full,
    "mixed": toy.mixed,
}
# 0, 1, around W = 3, 4, 5 and the block of 4, two chunks of a step, the capacity.
LENGTHS = [0, 1, 2, 3, 4, 5, 6, 8, 9, 12, 13, 16, 23, 24]


@pytest.mark.kind("K25")
@pytest.mark.parametrize("name", toy.marked(MODELS, "mixed"))
@settings(max_examples=25)
@given(data=st.data())
def test_every_split_gives_the_same_forms_and_reads(name, data):
    model = MODELS[name]()
    tokens = data.draw(st.lists(DIGITS, min_size=24, max_size=24))
    tokens = tokens[: data.draw(st.sampled_from(LENGTHS))]
    split = st.lists(st.sampled_from([1, 1, 2, 3, 4, 5, 7, 8]), min_size=1, max_size=8)
    want = toy.cold(model, tokens)
    session = toy.Session(model)
    lease = session.admit(tokens)
    reads = session.feed(lease, tokens, data.draw(split))
    toy.assert_same_reads(reads, want.reads)
    session.check(lease, tokens)
    session.release(lease)

    # Ask for n and for n + 1, in another split.
    prompt = [*tokens, 1][: data.draw(st.integers(len(tokens), 24))]
    lease = session.admit(prompt)
    session.feed(lease, prompt[lease.plan.start :], data.draw(split))
    session.check(lease, prompt)


def partitions(total, largest):
    """Every way to cut ``total`` into ordered parts of at most ``largest``."""
    if total == 0:
        yield []
    for first in range(1, min(total, largest) + 1):
        for rest in partitions(total - first, largest):
            yield [first, *rest]


def test_all_partitions_of_seven():
    """All 64 of them, over a window, a chunk and a block boundary."""
    model = toy.mixed()
    tokens, splits = TOKENS[:7], list(partitions(7, 8))
    assert len(splits) == 64
    want = toy.cold(model, tokens)
    for split in splits:
        session = toy.Session(model)
        lease = session.admit([])
        toy.assert_same_reads(session.feed(lease, tokens, split), want.reads)
        toy.assert_same_state(session.state(lease), want)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("extra", [0, 1])
def test_sizes_are_stored_and_resumed(length, extra):
    """Store n tokens, ask for n and for n + 1."""
    model = toy.mixed()
    session = toy.Session(model)
    session.store(TOKENS[:length], [4], each=True)
    prompt = TOKENS[: min(length + extra, 24)]
    plan = session.match(prompt)
    deepest = max(min(length, len(prompt) - 1), 0)
    assert plan.length == plan.start == deepest - deepest % 4
    lease = session.acquire(plan)
    session.feed(lease, prompt[plan.start :], [3])
    session.check(lease, prompt)


@pytest.mark.parametrize("name", ["only window", "only full", "mixed"])
def test_capacity_and_one_more(name):
    model = MODELS[name]()
    session = toy.Session(model)
    lease = session.admit(TOKENS)
    session.feed(lease, TOKENS)
    session.check(lease, TOKENS)
    before = session.cache
    ((status,), _) = session.run((lease, [1]))
    assert status == Status.TOO_LONG
    assert toy.unchanged(before, session.cache)
    with pytest.raises(ValueError, match="25 tokens, the plan allows 24"):
        session.match([*TOKENS, 1])
    session.release(lease)
    assert session.match(TOKENS).length == 24 - model.grid


def test_a_step_of_no_tokens_is_idle():
    session = toy.Session(toy.mixed())
    lease = session.admit(TOKENS)
    session.feed(lease, TOKENS[:3])
    before = session.cache
    ((status,), _) = session.run((lease, []))
    assert status == Status.IDLE
    assert toy.unchanged(before, session.cache)


@pytest.mark.parametrize(
    "sizes", [[8, 4], [4, 4, 4], [5, 7], [1] * 12, [7, 5], [2, 8, 2]]
)
def test_b94_the_second_layer_sees_the_end_of_the_chunk_before(sizes):
    """Two stacked windows, W=4, over P: layer-2 inputs and outputs in all splits."""
    model = pair()
    session = toy.Session(model)
    lease = session.admit(toy.P)
    reads = session.feed(lease, toy.P, sizes)[:, :, 0]
    inputs = [3, 4, 8, 9, 11, 19, 17, 22, 22, 16, 19, 21]
    np.testing.assert_array_equal(reads[0], toy.P)
    np.testing.assert_array_equal(reads[1], inputs)
    kept = session.state(lease)
    assert kept.positions == ((9, 10, 11), (9, 10, 11))
    np.testing.assert_array_equal(kept.v[1].ravel(), inputs[9:])


def test_b94_the_ring_holds_a_window_and_a_chunk():
    """Never smaller than W - 1 + chunk, or than the whole row."""
    for build in MODELS.values():
        plan = build().plan
        for index, pool in enumerate(plan.spec.pools):
            room = plan.columns(index) * pool.block_tokens
            if pool.geometry.local is not None:
                least = pool.geometry.local.size - 1 + plan.max_chunk
                assert room >= min(least, plan.max_length)
            else:
                assert room >= plan.max_length


def test_b95_a_state_of_no_tokens_can_be_stored_and_resumed():
    session = toy.Session(toy.mixed())
    live = session.admit(TOKENS)
    session.feed(live, TOKENS[:3])
    empty = session.admit([])
    assert session.length(empty) == 0
    session.publish(empty)
    session.release(empty)
    assert session.prefixes.stored_tokens == 0
    session.check(live, TOKENS[:3])


def test_b95_an_empty_prompt_has_nothing_to_match():
    session = toy.Session(toy.mixed())
    session.store(TOKENS[:8])
    plan = session.match([])
    assert plan.verdict == Verdict.NEEDS_FULL_RECOMPUTE
    assert plan.reason == Reason.EMPTY_PROMPT
    assert (plan.length, plan.start, plan.tokens_to_run) == (0, 0, 0)
    assert "empty" in plan.explain()


def test_b95_a_failed_acquire_leaves_a_live_row_alone():
    """A plan whose blocks are gone is refused over a live state of 3."""
    session = toy.Session(toy.only_full())
    session.store(TOKENS[:8])
    live = session.admit([9, 9, 9])
    session.feed(live, [9, 9, 9])
    plan = session.match(TOKENS[:9])
    session.lose(0, 0, TOKENS[:9])
    before = session.cache
    with pytest.raises(LeaseError, match="match again"):
        session.acquire(plan)
    assert session.cache is before
    session.check(live, [9, 9, 9])
