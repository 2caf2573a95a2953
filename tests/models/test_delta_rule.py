"""The gated delta rule and the short convolution against slow loops in float64."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hybridcache_jax.models.delta_rule import delta_attention, gated_delta_rule
from hybridcache_jax.models.short_conv import ShortConvolution

TOLERANCE = 2e-5
HEADS, KEY, VALUE = 3, 8, 5
CHANNELS, KERNEL = 6, 4


def slow_rule(q, k, v, decay, beta, state, counts):
    """Token by token, head by head; rows run ``counts`` tokens."""
    out, state = np.zeros(v.shape), state.astype(np.float64)
    for row, count in enumerate(counts):
        for t in range(count):
            for head in range(q.shape[2]):
                memory = state[row, head]
                gate = np.exp(decay[row, t, head].astype(np.float64))
                memory = memory * np.broadcast_to(gate, len(memory))[:, None]
                key = slow_unit(k[row, t, head])
                error = v[row, t, head] - key @ memory
                memory = memory + np.outer(key, beta[row, t, head] * error)
                query = slow_unit(q[row, t, head]) / np.sqrt(q.shape[-1])
                out[row, t, head] = query @ memory
                state[row, head] = memory
    return out, state


def slow_unit(x):
    x = x.astype(np.float64)
    return x / np.sqrt(x @ x + 1e-6)


def slow_conv(x, weight, carried, counts):
    """Channel by channel: what is filtered, and the last inputs of each row."""
    kernel = weight.shape[2]
    out, kept = np.zeros(x.shape), carried.astype(np.float64)
    for row, count in enumerate(counts):
        inputs = np.concatenate([carried[row], x[row, :count]])
        for t in range(count):
            for channel in range(x.shape[2]):
                seen = inputs[t : t + kernel, channel].astype(np.float64)
                total = seen @ weight[channel, 0]
                out[row, t, channel] = total / (1 + np.exp(-total))
        kept[row] = inputs[len(inputs) - (kernel - 1) :]
    return out, kept


def tokens(steps, gates, batch=2, strength=1.0, seed=0):
    """Random inputs of ``steps`` tokens and a state before them."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    q = normal(batch, steps, HEADS, KEY)
    k = normal(batch, steps, HEADS, KEY)
    v = normal(batch, steps, HEADS, VALUE)
    decay = -strength * np.exp(2 * normal(batch, steps, HEADS, gates) - 2)
    beta = 1 / (1 + np.exp(-normal(batch, steps, HEADS)))
    state = normal(batch, HEADS, KEY, VALUE)
    return (q, k, v, decay.astype(np.float32), beta), state


def validity(counts, steps):
    return np.arange(steps) < np.array(counts)[:, None]


rule = jax.jit(gated_delta_rule)
by_gate = pytest.mark.parametrize("gates", [1, KEY], ids=["head", "channel"])


@by_gate
@pytest.mark.parametrize(
    ("steps", "counts"),
    [
        (1, (1, 1)),
        (1, (0, 1)),
        (2, (2, 1)),
        (16, (16, 15)),
        (17, (17, 0)),
        (100, (100, 41)),
    ],
)
def test_equals_the_slow_loop(steps, counts, gates):
    inputs, state = tokens(steps, gates)
    out, after = rule(*inputs, state, validity(counts, steps))
    want_out, want_state = slow_rule(*inputs, state, counts)
    np.testing.assert_allclose(out, want_out, atol=TOLERANCE)
    np.testing.assert_allclose(after, want_state, atol=TOLERANCE)


@by_gate
@pytest.mark.parametrize("sizes", [(1,), (17,), (17, 1), (2, 1)], ids=str)
def test_any_split_into_steps_gives_the_same_state(sizes, gates):
    inputs, state = tokens(53, gates)
    want_out, want_state = slow_rule(*inputs, state, (53, 53))
    at, outs = 0, []
    while at < 53:
        size = min(sizes[len(outs) % len(sizes)], 53 - at)
        part = tuple(x[:, at : at + size] for x in inputs)
        out, state = rule(*part, state, np.ones((2, size), bool))
        outs.append(out)
        at += size
    np.testing.assert_allclose(np.concatenate(outs, 1), want_out, atol=TOLERANCE)
    np.testing.assert_allclose(state, want_state, atol=TOLERANCE)


@by_gate
@pytest.mark.parametrize(("steps", "count"), [(1, 0), (17, 0), (100, 33)])
def test_padding_changes_no_bit_whatever_it_holds(steps, count, gates):
    inputs, state = tokens(steps, gates)
    valid = validity((count, count), steps)
    _, want = rule(*inputs, state, valid)
    poisoned = tuple(x.copy() for x in inputs)
    for x in poisoned:
        x[:, count:] = np.nan
    out, after = rule(*poisoned, state, valid)
    np.testing.assert_array_equal(after, want)
    np.testing.assert_array_equal(out[:, count:], 0.0)
    if count == 0:
        np.testing.assert_array_equal(after, state)


@by_gate
def test_strong_decay_forgets_without_overflow(gates):
    inputs, state = tokens(100, gates, strength=200.0)
    assert inputs[3].sum(axis=1).min() < -1000
    out, after = rule(*inputs, state, np.ones((2, 100), bool))
    want_out, want_state = slow_rule(*inputs, state, (100, 100))
    np.testing.assert_allclose(out, want_out, atol=TOLERANCE)
    np.testing.assert_allclose(after, want_state, atol=TOLERANCE)


@by_gate
def test_a_reset_takes_no_precision_from_the_tokens_after_it(gates):
    """Differences of sums that hold the reset would be off by 1e-3."""
    inputs, state = tokens(16, gates, strength=0.1)
    inputs[3][:, 2] = -1e4
    out, after = rule(*inputs, state, np.ones((2, 16), bool))
    want_out, want_state = slow_rule(*inputs, state, (16, 16))
    np.testing.assert_allclose(out, want_out, atol=TOLERANCE)
    np.testing.assert_allclose(after, want_state, atol=TOLERANCE)


def test_equal_keys_replace_what_they_recall():
    """With full strength and no decay the last value of a key is what it recalls.

    The triangular system is then one whose powers are large and cancel.
    """
    (q, k, v, decay, beta), state = tokens(100, 1)
    k[:] = k[:, :1]
    q[:] = k
    ones, zeros = np.ones_like(beta), np.zeros_like(decay)
    out, _ = rule(q, k, v, zeros, ones, state, np.ones((2, 100), bool))
    np.testing.assert_allclose(out * np.sqrt(KEY), v, atol=1e-4)


def convolution(kernel=KERNEL):
    conv = ShortConvolution(CHANNELS, kernel, rngs=nnx.Rngs(0), param_dtype=jnp.float32)
    weight = np.random.default_rng(1).normal(size=(CHANNELS, 1, kernel))
    conv.weight[...] = jnp.asarray(weight, jnp.float32)
    return conv


@pytest.mark.parametrize("kernel", [2, 4])
@pytest.mark.parametrize(
    ("steps", "counts"), [(1, (1, 0)), (2, (1, 2)), (9, (9, 2)), (9, (0, 7))]
)
def test_convolution_equals_the_slow_loop(steps, counts, kernel):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(2, steps, CHANNELS)).astype(np.float32)
    before = rng.normal(size=(2, kernel - 1, CHANNELS)).astype(np.float32)
    conv, valid = convolution(kernel), validity(counts, steps)
    x[~valid] = np.nan
    out, carried = conv(jnp.asarray(x), jnp.asarray(before), jnp.asarray(valid))
    want, kept = slow_conv(x, np.array(conv.weight[...]), before, counts)
    np.testing.assert_allclose(np.array(out)[valid], want[valid], atol=1e-6)
    np.testing.assert_array_equal(carried, kept.astype(np.float32))


@pytest.mark.parametrize("sizes", [(1,), (2, 1), (3, 5), (6,)], ids=str)
def test_convolution_in_any_split_equals_the_whole(sizes):
    x = np.random.default_rng(3).normal(size=(2, 12, CHANNELS)).astype(np.float32)
    conv, carried = convolution(), jnp.zeros((2, KERNEL - 1, CHANNELS))
    want, kept = slow_conv(x, np.array(conv.weight[...]), np.array(carried), (12, 12))
    at, outs = 0, []
    while at < 12:
        part = x[:, at : at + sizes[len(outs) % len(sizes)]]
        # Two more tokens of padding, so that no step ends where its array ends.
        padded = jnp.pad(part, ((0, 0), (0, 2), (0, 0)), constant_values=jnp.nan)
        valid = jnp.arange(padded.shape[1]) < jnp.full((2, 1), part.shape[1])
        out, carried = conv(padded, carried, valid)
        outs.append(out[:, : part.shape[1]])
        at += part.shape[1]
    np.testing.assert_allclose(np.concatenate(outs, 1), want, atol=1e-6)
    np.testing.assert_array_equal(carried, kept.astype(np.float32))


def test_convolution_rounds_once_to_the_dtype_of_its_weight():
    """What is carried is what was filtered: a later step sees the same inputs."""
    x = np.random.default_rng(5).normal(size=(1, 6, CHANNELS)).astype(np.float32)
    conv = ShortConvolution(
        CHANNELS, KERNEL, rngs=nnx.Rngs(0), param_dtype=jnp.bfloat16
    )
    carried, valid = jnp.zeros((1, KERNEL - 1, CHANNELS)), jnp.ones((1, 6), bool)
    whole, kept = conv(jnp.asarray(x), carried, valid)
    np.testing.assert_array_equal(kept, jnp.asarray(x[:, 3:], jnp.bfloat16))
    _, carried = conv(jnp.asarray(x[:, :3]), carried, valid[:, :3])
    rest, kept_in_two = conv(jnp.asarray(x[:, 3:]), carried, valid[:, :3])
    np.testing.assert_allclose(rest, whole[:, 3:], atol=1e-6)
    np.testing.assert_array_equal(kept_in_two, kept)


@dataclasses.dataclass
class OneLayer:
    """A view that keeps the state of layer 7."""

    valid: np.ndarray
    memory: dict

    def read_state(self, layer):
        assert layer == 7
        return self.memory

    def write_state(self, layer, **planes):
        assert layer == 7
        return dataclasses.replace(self, memory=planes)


@by_gate
def test_a_layer_filters_shares_key_heads_and_keeps_both_planes(gates):
    """Two key heads for four values; states lie key by key, inputs token by token."""
    rng = np.random.default_rng(4)
    key_heads, heads, steps, counts = 2, 4, 6, (6, 3)
    keys = key_heads * KEY
    channels = 2 * keys + heads * VALUE
    conv = ShortConvolution(channels, 3, rngs=nnx.Rngs(0), param_dtype=jnp.float32)
    mixed = rng.normal(size=(2, steps, channels)).astype(np.float32)
    decay = -rng.uniform(size=(2, steps, heads, gates)).astype(np.float32)
    beta = rng.uniform(size=(2, steps, heads)).astype(np.float32)
    state = rng.normal(size=(2, heads, KEY * VALUE)).astype(np.float32)
    before = rng.normal(size=(2, 1, 2 * channels)).astype(np.float32)
    view: Any = OneLayer(validity(counts, steps), {"state": state, "conv": before})
    out, view = delta_attention(
        view,
        7,
        jnp.asarray(mixed),
        conv,
        decay=jnp.asarray(decay),
        beta=jnp.asarray(beta),
        key_heads=key_heads,
        key_dim=KEY,
        value_dim=VALUE,
    )

    filtered, kept = slow_conv(
        mixed, np.array(conv.weight[...]), before.reshape(2, 2, channels), counts
    )
    q, k, v = np.split(filtered, [keys, 2 * keys], axis=-1)
    q, k = (x.reshape(2, steps, key_heads, KEY)[:, :, [0, 0, 1, 1]] for x in (q, k))
    want, want_state = slow_rule(
        q,
        k,
        v.reshape(2, steps, heads, VALUE),
        decay,
        beta,
        state.reshape(2, heads, KEY, VALUE),
        counts,
    )
    valid = validity(counts, steps)
    np.testing.assert_allclose(np.array(out)[valid], want[valid], atol=TOLERANCE)
    np.testing.assert_allclose(
        view.memory["state"], want_state.reshape(2, heads, -1), atol=TOLERANCE
    )
    np.testing.assert_array_equal(view.memory["conv"], kept.reshape(2, 1, -1))
