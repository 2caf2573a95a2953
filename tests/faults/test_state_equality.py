"""K01, K25: a resumed sequence holds the state of a cold run.

For every legal resume point of a model with real attention: with the same chunk
boundaries the state and the outputs are those of a cold run bit for bit, and within
float32 rounding of a dense pass in NumPy whatever the chunks.  For every layer kind
of the toy: state and reads are those of a cold run bit for bit, whatever the chunks
and whatever was lost in between.
"""

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import Form, Verdict
from hybridcache_jax.testing import toy as library

LENGTH = 32
POINTS = [4, 8, 12, 16, 20, 24, 28]
PROMPTS = st.lists(st.integers(0, 9), min_size=LENGTH, max_size=LENGTH)
SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=4)


@settings(max_examples=30)
@given(
    point=st.sampled_from(POINTS),
    prompt=PROMPTS,
    tail=PROMPTS,
    sizes=SIZES,
    extra=st.integers(1, LENGTH),
)
def test_resumed_equals_cold(point, prompt, tail, sizes, extra):
    model = toy.stacked()
    session = toy.Session(model)
    session.store(prompt, [4], each=True)

    # The prompt turns off at the point, so that nothing deeper can be resumed.
    tail[0] = (prompt[point % LENGTH] + 1) % 10
    asked = [*prompt[:point], *tail][: min(point + extra, LENGTH)]
    lease = session.admit(asked)
    assert (lease.plan.verdict, lease.plan.length) == (Verdict.RESUMABLE, point)
    resumed = session.feed(lease, asked[point:], sizes)

    cold = toy.Session(model)
    other = cold.admit(asked)
    assert other.plan.verdict == Verdict.NEEDS_FULL_RECOMPUTE
    cold.feed(other, asked[:point], [4])
    np.testing.assert_array_equal(cold.feed(other, asked[point:], sizes), resumed)
    toy.assert_same_state(session.state(lease), cold.state(other))

    want = toy.cold_softmax(model, asked)
    assert toy.state_gap(session.state(lease), want) < toy.FLOAT32_GAP
    assert np.abs(resumed - want.reads[:, point:]).max() < toy.FLOAT32_GAP


@settings(max_examples=25)
@given(prompt=PROMPTS, first=SIZES, second=SIZES, size=st.integers(5, LENGTH))
def test_any_chunks_are_within_the_tolerance(prompt, first, second, size):
    """Stored in one split, resumed in another: close to the dense pass."""
    model = toy.stacked()
    session = toy.Session(model)
    session.store(prompt[:size], first, each=True)
    lease = session.admit(prompt)
    reads = session.feed(lease, prompt[lease.plan.start :], second)
    want = toy.cold_softmax(model, prompt)
    assert session.length(lease) == LENGTH
    assert toy.state_gap(session.state(lease), want) < toy.FLOAT32_GAP
    exact = lease.plan.length - lease.plan.start
    assert (
        np.abs(reads[:, exact:] - want.reads[:, lease.plan.length :]).max()
        < toy.FLOAT32_GAP
    )


@settings(max_examples=12)
@given(prompt=PROMPTS, turns=st.lists(st.integers(1, 9), min_size=2, max_size=5))
def test_many_turns_do_not_drift(prompt, turns):
    """Release and come back after every turn, windows lost now and then."""
    model = toy.stacked()
    session = toy.Session(model)
    done = 0
    for turn, size in enumerate(turns):
        done = min(done + size, LENGTH)
        lease = session.admit(prompt[:done])
        session.feed(lease, prompt[lease.plan.start : done], [5])
        want = toy.cold_softmax(model, prompt[:done])
        assert toy.state_gap(session.state(lease), want) < toy.FLOAT32_GAP
        session.release(lease)
        if turn % 2:
            session.evict(Form.SWA_WINDOW)


KINDS = {
    "compressed": toy.compressed,
    "csa": toy.csa,
    "sparse": toy.sparse,
    "recurrent": toy.recurrent,
}
TOKENS = st.lists(st.integers(0, 9), min_size=24, max_size=24)


@pytest.mark.parametrize("name", toy.marked(KINDS, "csa"))
@settings(max_examples=10)
@given(data=st.data(), prompt=TOKENS, tail=TOKENS, sizes=SIZES)
def test_every_kind_resumes_to_the_state_of_a_cold_run(name, data, prompt, tail, sizes):
    model = KINDS[name]()
    session = toy.Session(model)
    session.store(prompt, [4], each=True)
    point = data.draw(st.sampled_from(range(model.grid, 24, model.grid)))
    tail[0] = (prompt[point] + 1) % 10
    asked = [*prompt[:point], *tail][: data.draw(st.integers(point + 1, 24))]
    lease = session.admit(asked)
    assert (lease.plan.verdict, lease.plan.length) == (Verdict.RESUMABLE, point)
    session.check(lease, asked[:point])
    resumed = session.feed(lease, asked[point:], sizes)
    session.check(lease, asked)

    cold = toy.Session(model)
    other = cold.admit(asked)
    assert other.plan.verdict == Verdict.NEEDS_FULL_RECOMPUTE
    reads = cold.feed(other, asked, data.draw(SIZES))
    np.testing.assert_array_equal(reads[:, point:], resumed)
    toy.assert_same_reads(reads, toy.cold(model, asked).reads)
    toy.assert_same_state(session.state(lease), cold.state(other))


@pytest.mark.parametrize("name", toy.marked(KINDS, "csa"))
@settings(max_examples=8)
@given(data=st.data())
def test_many_turns_of_every_kind_equal_cold(name, data):
    """Release, lose forms, come back, turn off: the state is that of a cold run."""
    model = KINDS[name]()
    session = toy.Session(model)
    forms = sorted({pool.form for pool in model.plan.spec.pools})
    done = []
    for _ in range(data.draw(st.integers(2, 5))):
        new = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=10))
        kept = data.draw(st.integers(0, len(done)))
        done = [*done[:kept], *new][: model.max_length]
        lease = session.admit(done)
        reads = session.feed(lease, done[lease.plan.start :], data.draw(SIZES))
        exact = lease.plan.length - lease.plan.start
        want = toy.cold(model, done).reads[:, lease.plan.length :]
        toy.assert_same_reads(reads[:, exact:], want)
        session.check(lease, done)
        session.release(lease)
        for form in data.draw(st.lists(st.sampled_from(forms), max_size=2)):
            session.evict(form)


# The toy itself.


def test_the_toy_has_the_numbers_of_the_worked_scenarios():
    """Values, entries without and with overlap, index keys and states of P."""

    def numbers(build, layer, part, size):
        (plane,) = {"entries": "k", "index": "k", "state": "s"}[part]
        rows = toy.cold(build(), toy.P[:size]).parts[layer, part]
        return rows.planes[plane].ravel().tolist()

    assert library.v(toy.P) == [3, 11, 24, 31, 45, 59, 62, 76, 85, 93, 105, 118]
    assert numbers(toy.compressed, 0, "entries", 12) == [69, 242, 401]
    assert numbers(toy.compressed, 1, "entries", 12) == [69, 311, 643]
    assert numbers(toy.csa, 0, "index", 12) == [69 % 11, 311 % 11, 643 % 11]
    states = [numbers(toy.recurrent, 0, "state", size) for size in (4, 6, 8, 9)]
    assert states == [[37], [167], [678], [361]]


@pytest.mark.parametrize("name", toy.marked(KINDS, "csa"))
def test_a_toy_is_built_from_layer_records(name):
    """The records of its own spec, or of a model's, say all that a kind is."""
    model = KINDS[name]()
    layers = model.plan.spec.layers
    assert tuple(library.Kind.of(layer) for layer in layers) == model.kinds
    blocks = {pool.form: pool.block_tokens for pool in model.plan.spec.pools}
    again = library.model(
        list(layers), blocks=blocks, style=model.style, max_length=model.max_length
    )
    assert again.plan.spec == model.plan.spec


def test_a_toy_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="'plain' or 'chain'"):
        library.model([toy.FULL], style="sum")
    with pytest.raises(ValueError, match="nothing makes index keys of 2 tokens"):
        library.model([library.Kind(ratio=1, index_ratio=2)])
    with pytest.raises(ValueError, match="owns"):
        toy.only_full().pool_of(0, "local")
