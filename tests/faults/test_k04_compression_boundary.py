"""K04: the compression boundary, the open tail, the overlap's halo.

For every split of x into calls: entries are a function of the complete blocks, the raw
tail is what lies behind the boundary and the halo that the compressor still needs; an
entry is readable only once its block is complete; entries and tail account for all n
positions.  What was never run, or was refused, never makes an entry.
"""

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import Form, Reason, Status, Verdict

MODELS = {"compressed": toy.compressed, "csa": toy.csa, "sparse": toy.sparse}
DIGITS = st.integers(0, 9)
OPS = st.lists(
    st.one_of(
        st.lists(DIGITS, min_size=1, max_size=8),  # append these
        st.just("restore"),  # release, publish, come back by prefix hit
        st.just("cut"),  # the same, but for half of the tokens
        st.just("lose"),  # the same, with all windows and tails gone
    ),
    min_size=2,
    max_size=8,
)


def rows_of(session, lease, layer):
    """Entries of a layer and their raw tail, as numbers."""
    parts = session.state(lease).parts
    made, tail = parts[layer, "entries"], parts[layer, "entries_raw"]
    return made.planes["k"].ravel().tolist(), tail.planes["x"].ravel().tolist()


@pytest.mark.kind("K04")
@pytest.mark.parametrize("name", toy.marked(MODELS, "compressed"))
@settings(max_examples=12)
@given(ops=OPS)
def test_entries_and_tails_are_those_of_a_cold_run(name, ops):
    model = MODELS[name]()
    session = toy.Session(model)
    lease, done = session.admit([]), []
    for op in ops:
        if isinstance(op, str):
            session.release(lease)
            if op == "lose":
                session.evict(Form.SWA_WINDOW)
                session.evict(Form.UNCOMPRESSED_TAIL)
            done = done[: len(done) // 2] if op == "cut" else done
            lease = session.admit([*done, 1][: model.max_length])
            session.feed(lease, done[lease.plan.start :], [3, 8])
        else:
            new = op[: model.max_length - len(done)]
            reads = session.feed(lease, new)
            done = done + new
            want = toy.cold(model, done).reads[:, len(done) - len(new) :]
            toy.assert_same_reads(reads, want)
        session.check(lease, done)


@pytest.mark.kind("K04")
@pytest.mark.parametrize("name", toy.marked(MODELS, "compressed"))
@settings(max_examples=8)
@given(size=st.integers(0, 24), sizes=st.lists(st.integers(1, 8), min_size=1))
def test_entries_and_tail_account_for_all_positions(name, size, sizes):
    model = MODELS[name]()
    session = toy.Session(model)
    lease = session.admit([])
    session.feed(lease, [p % 10 for p in range(size)], sizes)
    parts = session.state(lease).parts
    for layer, kind in enumerate(model.kinds):
        for part, ratio in (("entries", kind.ratio), ("index", kind.index_ratio)):
            if (layer, f"{part}_raw") not in parts:
                continue
            made = parts[layer, part].positions
            tail = parts[layer, f"{part}_raw"].positions
            boundary = ratio * len(made)
            assert made == tuple(range(0, boundary, ratio))
            assert [p for p in tail if p >= boundary] == list(range(boundary, size))
            overlap = kind.overlap if part == "entries" else kind.index_overlap
            halo = [p for p in tail if p < boundary]
            assert halo == list(range(max(boundary - overlap * ratio, 0), boundary))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_b18_each_row_of_a_batch_compresses_by_its_own_length(order):
    """Three, four and five tokens in one call: entries {}, {69}, {69}."""
    session = toy.Session(toy.compressed())
    leases = [session.admit([]) for _ in range(3)]
    prompts = [toy.P[:3], toy.P[:4], toy.P[:5]]
    statuses, reads = session.run(*((leases[n], prompts[n]) for n in order))
    assert set(statuses) == {Status.OK}
    assert np.isfinite(reads).all()
    want = [([], [3, 11, 24]), ([69], []), ([69], [45])]
    for n, lease in enumerate(leases):
        assert rows_of(session, lease, 0) == want[n]
        session.check(lease, prompts[n])
        # The token that completes a block sees its entry, those before it none.
        seen = reads[0, order.index(n), : len(prompts[n]), 0]
        assert seen.tolist() == [0, 0, 0, 69, 69][: len(prompts[n])]


def test_b19_the_halo_is_kept_at_the_boundary():
    """At 4 the raw rows {3,11,24,31} are held besides the entry; then 311, not 242."""
    session = toy.Session(toy.compressed())
    session.store(toy.P[:4], [4])
    lease = session.admit(toy.P)
    assert (lease.plan.verdict, lease.plan.length) == (Verdict.RESUMABLE, 4)
    assert rows_of(session, lease, 1) == ([69], [3, 11, 24, 31])
    assert rows_of(session, lease, 0) == ([69], [])
    session.feed(lease, toy.P[4:8])
    assert rows_of(session, lease, 1) == ([69, 311], [45, 59, 62, 76])
    assert rows_of(session, lease, 0) == ([69, 242], [])
    session.feed(lease, toy.P[8:])
    assert rows_of(session, lease, 1)[0] == [69, 311, 643]
    assert rows_of(session, lease, 0)[0] == [69, 242, 401]


def test_b19_a_record_without_its_halo_is_replayed():
    """At 8 without raw 4..7: PART(4 -> 8); the entries after it are right."""
    session = toy.Session(toy.compressed())
    session.store(toy.P[:8], [4, 3, 1])  # so that no window is left at 4
    session.lose(1, 1, toy.P, "entries_raw")
    plan = session.match(toy.P)
    assert plan.verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE
    assert (plan.start, plan.length) == (4, 8)
    (report,) = plan.limiting
    assert (report.form, report.required) == (Form.UNCOMPRESSED_TAIL, (4, 8))
    assert (report.reason, report.position) == (Reason.EVICTED, 4)

    lease = session.acquire(plan)
    session.feed(lease, toy.P[4:8])
    assert rows_of(session, lease, 1) == ([69, 311], [45, 59, 62, 76])
    session.feed(lease, toy.P[8:])
    assert rows_of(session, lease, 1)[0] == [69, 311, 643]
    session.check(lease, toy.P)


def test_b19_the_wrong_entry_is_what_a_lost_halo_would_make():
    """Resumed without the halo, block 1 would be 242: the oracle tells them apart."""
    model = toy.compressed()
    want = toy.cold(model, toy.P[:8]).parts
    assert want[0, "entries"].planes["k"].ravel().tolist() == [69, 242]
    assert want[1, "entries"].planes["k"].ravel().tolist() == [69, 311]


@pytest.mark.parametrize("name", toy.marked(MODELS, "compressed"))
@settings(max_examples=6)
@given(data=st.data(), size=st.integers(0, 20))
def test_refused_and_padding_tokens_make_no_entry(name, data, size):
    """Whatever stands behind a row's count, or in a refused row, leaves no bit."""
    model = MODELS[name]()
    session = toy.Session(model)
    tokens = data.draw(st.lists(DIGITS, min_size=24, max_size=24))
    lease, other = session.admit([]), session.admit([])
    session.feed(lease, tokens[:size])
    before = session.cache
    refused = [*tokens[size : size + data.draw(st.integers(0, 3))], -1]
    statuses, _ = session.run((lease, refused), (other, tokens[:4]))
    assert statuses == [Status.BAD_TOKEN, Status.OK]
    session.check(lease, tokens[:size])

    count = data.draw(st.integers(1, 4))
    results = []
    for padding in (0, 9):
        session.branch(before)
        inputs = session.inputs([(lease, tokens[size : size + count])])
        inputs.tokens[:, count:] = padding
        inputs.tokens[1:] = padding
        cache, status, _ = session.step(before, inputs)
        assert status[0] == Status.OK
        results.append(cache)
    assert toy.leaves_equal(*results)
    session.put(results[1])
    session.check(lease, tokens[: size + count])
