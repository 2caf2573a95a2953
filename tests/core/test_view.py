"""A step writes every part once, before it is read; transitions leave memory alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridcache_jax as hc

ROW = hc.Entry((hc.Plane("k", 1, 2),))
RAW = hc.Entry((hc.Plane("k", 1, 2),))
LAYERS = (
    hc.LayerSpec(
        local=hc.Window(3, ROW),
        global_=hc.Entries(ROW, 2, raw=RAW),
        index=hc.IndexKeys(ROW, 2),
        select=hc.TopK(1, unit=2),
    ),
    hc.LayerSpec(kv_owner=0, select_owner=0),
    hc.LayerSpec(recurrent=hc.RecurrentState(hc.Entry((hc.Plane("state", 1, 2),)))),
)
SPEC = hc.CacheSpec.from_layers(LAYERS, block_tokens=2)
PLAN = hc.plan_capacity(
    SPEC, budget="1MiB", max_sequences=1, max_length=8, max_chunk=2, stored_tokens=8
)
IDENTITY = hc.Identity("w", "c", SPEC.fingerprint)
ROWS = jnp.ones((1, 2, 1, 2))


def entry(raw, valid, first):
    return {"k": jnp.sum(raw["k"], axis=2)}


@pytest.fixture
def row():
    """A cache and the lease of its one row."""
    prefixes = hc.PrefixCache(PLAN)
    return prefixes.acquire(hc.init(PLAN), prefixes.cold_plan([1, 2], IDENTITY))


@pytest.fixture
def view(row):
    cache, lease = row
    return hc.begin_step(cache, lease.inputs([1, 2]), 9)


def window(view):
    return view.append(0, k=ROWS)


def compressed(view, **more):
    return view.compress(0, entry, index=lambda made: made, k=ROWS, **more)


def stated(view):
    view.read_state(2)
    return view.write_state(2, state=jnp.ones((1, 1, 2)))


def test_a_whole_step(view):
    view = stated(compressed(window(view)))
    view = view.select(0, ROWS, jnp.ones((1, 2, 1)))
    for layer in (0, 1):
        assert np.isfinite(view.attend(layer, ROWS, scale=1.0)).all()
    assert hc.end_step(view).rows.length.tolist() == [2]


def test_a_row_that_is_not_ok_has_no_values(row, view):
    """Numbers are made of it like of any other; whoever asks gets none of them."""
    cache, lease = row
    void = dataclasses.replace(lease, ticket=lease.ticket + 1)
    stale = hc.begin_step(cache, void.inputs([1, 2]), 9)
    assert stale.status.tolist() == [hc.Status.STALE]
    made, chosen = jnp.ones((1, 2, 5), jnp.bfloat16), jnp.full((1, 2), 7, jnp.int32)
    assert view.only_ok(made).tolist() == made.tolist()
    assert view.only_ok(chosen, -1).tolist() == [[7, 7]]
    none = stale.only_ok(made)
    assert none.dtype == made.dtype
    assert np.isnan(none.astype(np.float32)).all()
    assert stale.only_ok(chosen, -1).tolist() == [[-1, -1]]


@pytest.mark.parametrize(
    ("run", "missing"),
    [
        (lambda view: compressed(window(view)), "layer 2: state"),
        (lambda view: stated(compressed(view)), "layer 0: local"),
        (
            lambda view: stated(window(view).compress(0, entry, k=ROWS)),
            "layer 0: index",
        ),
        (
            lambda view: stated(window(view)),
            "layer 0: entries; layer 0: entries_raw; layer 0: index",
        ),
    ],
)
def test_a_step_that_leaves_a_part_out_does_not_end(view, run, missing):
    with pytest.raises(ValueError, match=f"did not write {missing}"):
        hc.end_step(run(view))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda v: v.attend(0, ROWS, scale=1.0), "reads the local of layer 0 before"),
        (
            lambda v: window(v).attend(1, ROWS, scale=1.0),
            "Layer 1 reads the entries of layer 0 before",
        ),
        (
            lambda v: v.select(0, ROWS, jnp.ones((1, 2, 1))),
            "reads the index of layer 0 before",
        ),
        (
            lambda v: compressed(window(v)).attend(1, ROWS, scale=1.0),
            "selection of layer 0, which was not made",
        ),
        (lambda v: window(window(v)), "writes its local twice"),
        (lambda v: stated(stated(v)), "state before the step is gone"),
        (lambda v: v.append(1, k=ROWS), "keeps|another layer|parts that take"),
        (lambda v: v.append(0, to="tail", k=ROWS), "no part 'tail'"),
        (
            lambda v: v.append(0, to="entries", k=ROWS),
            "give the raw rows to `compress`",
        ),
        (lambda v: v.append(2, to="index", k=ROWS), "keeps no index"),
        (lambda v: v.compress(2, entry, k=ROWS), "keeps no entries"),
        (lambda v: v.read_state(0), "declares no recurrent state"),
        (lambda v: v.append(0, q=ROWS), r"takes the planes \['k'\], got \['q'\]"),
        (lambda v: v.append(0, k=ROWS[:, :1]), "expected"),
    ],
)
def test_a_step_out_of_order_is_refused(view, run, message):
    with pytest.raises(ValueError, match=message):
        run(view)


def test_transitions_hand_the_pools_on_untouched():
    """Copying them would cost time and memory in proportion to their size."""
    prefixes, cache = (
        hc.PrefixCache(PLAN),
        hc.init(PLAN),
    )

    def step(cache, inputs):
        view = stated(compressed(window(hc.begin_step(cache, inputs, 9))))
        return hc.end_step(view)

    def same(a, b):
        pairs = zip(jax.tree.leaves(a.pools), jax.tree.leaves(b.pools), strict=True)
        return all(x is y for x, y in pairs)

    after, lease = prefixes.acquire(cache, prefixes.cold_plan([1, 2], IDENTITY))
    assert same(cache, after)
    ran = jax.jit(step)(after, lease.inputs([1, 2]))
    published = prefixes.publish(ran, lease)
    assert same(ran, published)
    released = prefixes.release(published, lease)
    assert same(ran, released)
    evicted = prefixes.evict(released, hc.Form.SWA_WINDOW)
    assert same(ran, evicted)


def test_a_cache_of_another_plan_is_refused():
    other = hc.plan_capacity(
        SPEC, budget="1MiB", max_sequences=1, max_length=6, max_chunk=2, stored_tokens=0
    )
    with pytest.raises(hc.StaleCacheError, match="another plan"):
        hc.PrefixCache(PLAN).match(hc.init(other), [1, 2, 3], IDENTITY)
