"""What a row offers to the store, against a search in plain Python over its points."""

import dataclasses
from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridcache_jax as hc
from hybridcache_jax import (
    Chunk,
    Entries,
    Entry,
    Form,
    LayerSpec,
    RecurrentState,
    Window,
)
from hybridcache_jax.claims import NOTHING, Claims
from hybridcache_jax.codes import Stage
from hybridcache_jax.identity import Identity
from hybridcache_jax.matching import make_cold_plan
from hybridcache_jax.publication import collect
from hybridcache_jax.retention import Retention
from hybridcache_jax.rollout import Key
from hybridcache_jax.rows import RowView

ROW = Entry.kv(1, 2)
SIZES = {Form.SWA_WINDOW: 2, Form.RECURRENT_STATE: 4, Form.FULL_KV: 8}
WIDE, GRID, LENGTH = 7, 8, 48
WINDOW = LayerSpec(local=Window(WIDE, ROW))
CHUNK = LayerSpec(local=Chunk(2 * GRID, ROW))
STATE = LayerSpec(recurrent=RecurrentState(ROW))
FULL = LayerSpec(global_=Entries(ROW))
# A replay can start from a state alone only where no window lies below it.
BELOW, ABOVE, CHUNKED = (
    hc.CacheSpec.from_layers(layers, block_tokens=SIZES)
    for layers in ([WINDOW, STATE, FULL], [STATE, WINDOW, FULL], [CHUNK, STATE, FULL])
)
CLAIMED = 1000  # ids of blocks that the row was admitted with
POLICIES = st.sampled_from(
    [Retention.every_block(), Retention.every(16), Retention.ends(), Retention.none()]
)


def keeps(policy, point, prompt, end):
    """By the words of the policies."""
    if policy == Retention.ends():
        return point in {n - n % GRID for n in (prompt - 1, prompt, end)}
    return policy != Retention.none() and point % (policy.tokens or GRID) == 0


@settings(max_examples=120)
@given(
    spec=st.sampled_from([BELOW, ABOVE, CHUNKED]),
    window=POLICIES,
    state=POLICIES,
    length=st.integers(1, LENGTH),
    prompt=st.integers(1, LENGTH),
    resumed=st.integers(0, 2),
    finished=st.booleans(),
    lost=st.sets(st.integers(0, LENGTH), max_size=6),
    open_states=st.sets(st.integers(0, LENGTH // 4), max_size=6),
)
def test_a_row_offers_exactly_what_kept_points_require(
    spec, window, state, length, prompt, resumed, finished, lost, open_states
):
    policy = {Form.SWA_WINDOW: window, Form.RECURRENT_STATE: state}
    capacity = hc.plan_capacity(
        spec,
        budget="8MiB",
        max_sequences=1,
        max_length=LENGTH,
        max_chunk=GRID,
        stored_tokens=8 * LENGTH,
        retention=policy,
        backend="cpu",
    )
    resumed = min(resumed * GRID, length - length % GRID)
    end = length if finished else 0
    blocks, claimed, tables = [], [], []
    for number, pool in enumerate(spec.pools):
        size, nothing = pool.block_tokens, capacity.blocks[number]
        ids = np.full((1, capacity.columns(number)), nothing, np.int32)
        for block in range(-(-length // size)):
            ids[0, block % ids.shape[1]] = nothing if block in lost else block
        blocks.append(ids)
        claimed.append(np.arange(resumed // size, dtype=np.int32) + CLAIMED)
        sealed = [n not in open_states for n in range(nothing)]
        tables.append(SimpleNamespace(stage=np.where(sealed, Stage.SEALED, 1)))
    columns = dict.fromkeys(("live", "ticket", "version", "provenance"), np.ones(1))
    view = RowView(
        **columns,
        length=np.array([length]),
        since=np.zeros((1, 3)),
        held=np.zeros((1, 3)),
        blocks=tuple(blocks),
        epochs=tuple(ids + 100 for ids in blocks),
    )
    tokens = np.arange(length, dtype=np.int32)
    claims = Claims(resumed, resumed, -1, (), tuple(claimed), tuple(claimed))
    key = Key(Identity("w", "c", spec.fingerprint))
    plan = make_cold_plan(spec, prompt, key, hc.CostModel())
    plan = dataclasses.replace(plan, length=resumed, claims=claims)

    def holds(number, ids, epochs, first):
        return np.ones(len(ids), bool)

    offer = collect(
        capacity, view, tokens, plan, tuple(tables), holds=holds, finished=finished
    )

    points = range(resumed + GRID, length + 1, GRID)
    (states,) = (n for n, p in enumerate(spec.pools) if p.form == Form.RECURRENT_STATE)
    taken = [
        p
        for p in points
        if keeps(state, p, prompt, end)
        and p // 4 - 1 not in lost | open_states
        and held_in_the_ring(capacity, states, p // 4 - 1, length)
    ]
    windows = next(n for n, p in enumerate(spec.pools) if p.form == Form.SWA_WINDOW)

    def seen(point):
        """Positions that the window or chunk requires."""
        first = point // 16 * 16 if spec == CHUNKED else max(0, point - WIDE + 1)
        return range(first, point)

    def complete(point):
        """Whether the row has the whole window, or was admitted with it."""
        return all(
            block < resumed // 2
            or (
                block not in lost and held_in_the_ring(capacity, windows, block, length)
            )
            for block in {q // 2 for q in seen(point)}
        )

    both = [
        p
        for p in taken
        if (keeps(window, p, prompt, end) or not seen(p)) and complete(p)
    ]
    wanted = {
        Form.SWA_WINDOW: {q // 2 for p in both for q in seen(p)},
        Form.RECURRENT_STATE: {p // 4 - 1 for p in (taken if spec == ABOVE else both)},
        Form.FULL_KV: set(range(LENGTH)),
    }
    if not len(points):
        assert offer is None
        return
    assert offer.tokens.tolist() == list(range(points[-1]))
    for number, pool in enumerate(spec.pools):
        size = pool.block_tokens
        for block, (mine, epoch) in enumerate(
            zip(offer.blocks[number], offer.epochs[number], strict=True)
        ):
            if block < resumed // size:
                assert mine == epoch == CLAIMED + block
            elif block in wanted[pool.form] - lost and held_in_the_ring(
                capacity, number, block, length
            ):
                assert (mine, epoch) == (block, block + 100)
            else:
                assert (mine, epoch) == (NOTHING, 0)
        assert len(offer.blocks[number]) == points[-1] // size


def held_in_the_ring(capacity, number, block, length):
    """Whether no later block of the row stands in the same column."""
    last = (length - 1) // capacity.spec.pools[number].block_tokens
    return block + capacity.columns(number) > last
