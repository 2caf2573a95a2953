"""Pooling of raw rows, against a slow twin in NumPy that works number by number."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridcache_jax import pooling

# A float32 gate of 60 plus a bias is rounded by 4e-6, and so are its weight's digits.
TOLERANCE = {"atol": 2e-5, "rtol": 2e-5}


def twin(pairs):
    """Softmax-weighted mean of one element: ``pairs`` of (value, logit)."""
    if not pairs:
        return 0.0
    top = max(logit for _, logit in pairs)
    weights = [math.exp(logit - top) for _, logit in pairs]
    total = sum(w * value for w, (value, _) in zip(weights, pairs, strict=True))
    return total / sum(weights)


def slow(value, gate, valid, bias, overlap):
    """The same for whole arrays; a row's halves are chosen by its place."""
    batch, blocks, rows, heads, width = value.shape
    ratio = rows // 2 if overlap else rows
    dim = width // 2 if overlap else width
    out = np.zeros((batch, blocks, heads, dim))
    for b, k, h, d in np.ndindex(out.shape):
        pairs = []
        for s in range(rows):
            if not valid[b, k, s]:
                continue
            # With overlap the later rows are the block's own, with the second half.
            column = dim + d if overlap and s >= ratio else d
            logit = float(gate[b, k, s, h, column])
            if bias is not None:
                logit += float(bias[s % ratio, column])
            pairs.append((float(value[b, k, s, h, column]), logit))
        out[b, k, h, d] = twin(pairs)
    return out


# Batch, blocks, ratio, heads, dim.
SHAPES = [(2, 3, 4, 2, 3), (1, 2, 1, 1, 1), (3, 1, 5, 1, 2)]


def cases(shape, *, overlap):
    """Rows of one shape: sharp and flat gates, few and all valid, with a bias or not.

    One shape, so that each function is compiled once.
    """
    batch, blocks, ratio, heads, dim = shape
    rows, width = (2 * ratio, 2 * dim) if overlap else (ratio, dim)
    rng = np.random.default_rng(sum(shape))
    for spread, share, biased in itertools.product((1, 60), (0.3, 0.8, 1), (0, 1)):
        full = (batch, blocks, rows, heads, width)
        value = rng.normal(0, 3, full).astype(np.float32)
        gate = rng.normal(0, spread, full).astype(np.float32)
        valid = rng.random(full[:3]) < share
        bias = rng.normal(0, biased, (ratio, width)).astype(np.float32)
        yield value, gate, valid, bias if biased else None


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("overlap", [False, True], ids=["alone", "overlapped"])
def test_gated_softmax_equals_the_twin(shape, overlap):
    pool = pooling.overlapped_gated_softmax if overlap else pooling.gated_softmax
    for case in cases(shape, overlap=overlap):
        want = slow(*case, overlap=overlap)
        np.testing.assert_allclose(jax.jit(pool)(*case), want, **TOLERANCE)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mean_equals_the_twin(shape):
    for value, _, valid, _ in cases(shape, overlap=False):
        got = jax.jit(pooling.mean)(value, valid)
        for b, k in np.ndindex(valid.shape[:2]):
            rows = value[b, k][valid[b, k]].astype(np.float64)
            want = rows.mean(axis=0) if len(rows) else np.zeros(value.shape[3:])
            np.testing.assert_allclose(got[b, k], want, **TOLERANCE)


def test_the_first_block_pools_only_its_own_rows():
    rng = np.random.default_rng(0)
    value, gate = rng.normal(size=(2, 1, 1, 8, 1, 6)).astype(np.float32)
    valid = np.array([[[False] * 4 + [True] * 4]])
    bias = rng.normal(size=(4, 6)).astype(np.float32)
    both = jax.jit(pooling.overlapped_gated_softmax)(value, gate, valid, bias)
    alone = jax.jit(pooling.gated_softmax)(
        value[:, :, 4:, :, 3:], gate[:, :, 4:, :, 3:], valid[:, :, 4:], bias[:, 3:]
    )
    np.testing.assert_allclose(both, alone, **TOLERANCE)


POOLS = [
    jax.jit(pooling.gated_softmax),
    jax.jit(pooling.overlapped_gated_softmax),
    jax.jit(lambda value, gate, valid, bias=None: pooling.mean(value, valid)),
]
IDS = ["gated", "overlapped", "mean"]


@pytest.mark.parametrize("pool", POOLS, ids=IDS)
@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, 3e38])
def test_rows_that_are_not_valid_leave_no_trace(pool, junk):
    rng = np.random.default_rng(1)
    value, gate = rng.normal(size=(2, 2, 3, 4, 1, 2)).astype(np.float32)
    valid = rng.random((2, 3, 4)) < 0.5
    valid[0, 0] = False
    clean = pool(value, gate, valid)
    value[~valid], gate[~valid] = junk, junk
    np.testing.assert_array_equal(pool(value, gate, valid), clean)
    np.testing.assert_array_equal(clean[0, 0], 0)


@pytest.mark.parametrize("pool", POOLS, ids=IDS)
def test_gradients_are_finite_where_rows_or_whole_blocks_are_not_valid(pool):
    rng = np.random.default_rng(2)
    value, gate = rng.normal(size=(2, 1, 3, 4, 1, 2)).astype(np.float32)
    valid = np.array([[[False] * 4, [False] * 2 + [True] * 2, [True] * 4]])
    value[~valid], gate[~valid] = np.nan, np.nan
    bias = jnp.zeros((gate.shape[2] // (2 if pool is POOLS[1] else 1), 2))

    def total(value, gate, bias):
        return jnp.sum(jnp.square(pool(value, gate, valid, bias)))

    gradients = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(value, gate, bias)
    for gradient in gradients:
        assert np.isfinite(gradient).all()
    of_values = np.asarray(gradients[0])
    np.testing.assert_array_equal(of_values[~valid], 0)
    assert np.abs(of_values[valid]).max() > 0


@pytest.mark.parametrize("pool", POOLS, ids=IDS)
def test_rows_of_narrow_dtypes_are_pooled_in_float32(pool):
    rng = np.random.default_rng(3)
    value, gate = rng.normal(size=(2, 1, 1, 4, 1, 2)).astype(jnp.bfloat16)
    valid = np.ones((1, 1, 4), bool)
    got = pool(value, gate, valid)
    assert got.dtype == jnp.float32
    wide = pool(value.astype(np.float32), gate.astype(np.float32), valid)
    np.testing.assert_array_equal(got, wide)
