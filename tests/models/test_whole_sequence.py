"""The view without a cache: reference logits, gradients, and what it refuses."""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from whole_logits import whole_sequence_logits

import hybridcache_jax as hc
from hybridcache_jax.models.load import load_model
from hybridcache_jax.models.whole_sequence import WholeSequenceView

GOLDENS = Path(__file__).parents[1] / "goldens"
ROW = hc.Entry((hc.Plane("k", 1, 2),))
PER_TOKEN = hc.LayerSpec(
    global_=hc.Entries(hc.Entry.kv(2, 2)),
    index=hc.IndexKeys(ROW),
    select=hc.TopK(2),
)


@pytest.mark.parametrize("name", ["deepseek_v4_tiny", "glm_moe_dsa"])
def test_reference_logits(name):
    """The other references are run by the slow suite of the parity tests."""
    loaded = load_model(GOLDENS / name)
    expected = load_file(GOLDENS / name / "expected.safetensors")
    logits = whole_sequence_logits(loaded.model, loaded.layers, expected["tokens"])
    np.testing.assert_allclose(logits, expected["logits"], atol=1e-4)


def run(query, weights, layer=PER_TOKEN, length=6):
    """One layer whose keys are fixed; the output of the last query."""
    random = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(random.standard_normal(shape), jnp.float32)

    view = WholeSequenceView.start((layer,), 1, length)
    view = view.append(
        0, to="entries", k=draw(1, length, 2, 2), v=draw(1, length, 2, 2)
    )
    view = view.append(0, to="index", k=draw(1, length, 1, 2))
    view = view.select(0, query, weights)
    return view.attend(0, draw(1, length, 2, 2), scale=1.0)[0, -1]


def test_the_ranking_learns_and_has_no_say_in_the_values():
    query, weights = jnp.ones((1, 6, 2, 2)), jnp.ones((1, 6, 2))
    # Whatever is made of the output, here nothing, the ranking has its own loss.
    out = jax.jit(run)
    gradient = jax.jit(jax.grad(lambda q: 0 * jnp.sum(run(q, weights))))(query)
    assert np.isfinite(gradient).all()
    assert np.abs(gradient).max() > 1e-3
    # Twice the scores select the same entries, and the values are the same.
    np.testing.assert_array_equal(out(query, weights), out(query, 2 * weights))


def test_a_trained_ranking_selects_what_attention_looks_at():
    """One query head, 8 keys; the index starts out preferring the wrong one."""
    layer = hc.LayerSpec(
        global_=hc.Entries(hc.Entry.kv(1, 8)),
        index=hc.IndexKeys(hc.Entry((hc.Plane("k", 1, 8),))),
        select=hc.TopK(1),
    )
    keys = 4 * jnp.eye(8)[None, :, None]
    looked_at = jnp.broadcast_to(jnp.eye(8)[2], (1, 8, 1, 8))

    @jax.jit
    def selected(ranking):
        view = WholeSequenceView.start((layer,), 1, 8)
        view = view.append(0, to="entries", k=keys, v=keys).append(
            0, to="index", k=keys
        )
        queries = jnp.broadcast_to(ranking, (1, 8, 1, 8))
        view = view.select(0, queries, jnp.ones((1, 8, 1)))
        out = view.attend(0, looked_at, scale=1.0)
        return out[0, -1, 0]

    ranking = jnp.full(8, 0.1).at[5].set(0.3)
    assert int(jnp.argmax(selected(ranking))) == 5
    step = jax.jit(jax.grad(lambda r: 0 * jnp.sum(selected(r))))
    for _ in range(100):
        ranking = ranking - 0.1 * step(ranking)
    assert int(jnp.argmax(selected(ranking))) == 2


def test_a_sequence_shorter_than_a_block_reads_its_window_alone():
    raw = hc.Entry((hc.Plane("k", 1, 2),))
    layer = hc.LayerSpec(local=hc.Window(8, ROW), global_=hc.Entries(ROW, 4, raw=raw))
    rows = jnp.ones((1, 3, 1, 2))
    view = WholeSequenceView.start((layer,), 1, 3).append(0, to="local", k=rows)
    view = view.compress(0, lambda raw, valid, first: {"k": raw["k"][:, :, 0]}, k=rows)
    np.testing.assert_allclose(view.attend(0, rows, scale=1.0), rows, rtol=1e-6)


@pytest.mark.parametrize(
    ("choice", "seen"),
    [
        (hc.TopK(1), 1),
        (hc.TopK(3), 3),
        (hc.TopK(9), 6),
        (hc.TopK(1, unit=2), 2),
        (hc.TopK(1, unit=4, open_tail=True), 6),  # the whole unit and the open one
        (hc.TopK(1, unit=4, local_units=1), 2),  # the open one alone
    ],
)
def test_a_query_reads_so_many_entries(choice, seen):
    layer = hc.LayerSpec(
        global_=hc.Entries(ROW), index=hc.IndexKeys(ROW), select=choice
    )
    view = WholeSequenceView.start((layer,), 1, 6)
    place = jnp.eye(6, 2)[None, :, None]
    view = view.append(0, to="entries", k=place).append(0, to="index", k=place)
    view = view.select(0, jnp.ones((1, 6, 1, 2)), jnp.ones((1, 6, 1)))
    read, _ = view._chosen(0)
    visible = np.asarray(read)[0, 5, 0, :6]
    assert visible.sum() == seen


def test_what_is_not_kept_is_refused():
    window = hc.LayerSpec(local=hc.Window(3, ROW))
    view = WholeSequenceView.start((window,), 1, 4)
    rows = jnp.ones((1, 4, 1, 2))
    with pytest.raises(ValueError, match="keeps no index"):
        view.append(0, to="index", k=rows)
    with pytest.raises(ValueError, match="keeps no entries to compress"):
        view.compress(0, lambda raw, valid, first: raw, k=rows)
    with pytest.raises(ValueError, match="no recurrent state"):
        view.read_state(0)
    append = functools.partial(view.append, 0)
    with pytest.raises(ValueError, match="selects, but nothing ranks"):
        append(k=rows)._index(0)


POOLED = hc.LayerSpec(
    local=hc.Window(3, ROW),
    global_=hc.Entries(ROW),
    index=hc.IndexKeys(ROW, 4, raw=hc.Entry((hc.Plane("k", 1, 2),))),
    select=hc.TopK(2, unit=4, local_units=1, open_tail=True),
)


@pytest.mark.parametrize("local_units", [0, 1])
@pytest.mark.parametrize("open_tail", [False, True])
def test_what_comes_later_changes_nothing(local_units, open_tail):
    """Index keys of ratio 4 over single tokens, at every length."""
    choice = hc.TopK(2, unit=4, local_units=local_units, open_tail=open_tail)
    layer = dataclasses.replace(POOLED, select=choice)
    random = np.random.default_rng(5)
    draws = {
        name: jnp.asarray(random.standard_normal((1, 11, 1, 2)), jnp.float32)
        for name in ("local", "entries", "raw", "q")
    }

    @jax.jit
    def out(draws):
        view = WholeSequenceView.start((layer,), 1, 11)
        view = view.append(0, to="local", k=draws["local"])
        view = view.append(0, to="entries", k=draws["entries"])
        mean = lambda raw, valid, first: {"k": jnp.mean(raw["k"], axis=2)}  # noqa: E731
        view = view.compress(0, mean, to="index", k=draws["raw"])
        view = view.select(0, draws["q"], jnp.ones((1, 11, 1)))
        return view.attend(0, draws["q"], scale=1.0)

    whole = out(draws)
    assert np.isfinite(whole).all()
    for length in range(1, 11):
        later = jnp.arange(11)[:, None, None] >= length
        other = {name: jnp.where(later, 9.0, draw) for name, draw in draws.items()}
        seen = np.asarray(out(other))[:, :length]
        np.testing.assert_allclose(seen, whole[:, :length], rtol=1e-5, atol=1e-7)


def test_a_layer_with_two_parts_says_which_is_meant():
    view = WholeSequenceView.start((POOLED,), 1, 4)
    with pytest.raises(ValueError, match="say which are meant"):
        view.append(0, k=jnp.ones((1, 4, 1, 2)))
    with pytest.raises(ValueError, match=r"keeps planes \['k'\] of its local"):
        view.append(0, to="local", key=jnp.ones((1, 4, 1, 2)))
