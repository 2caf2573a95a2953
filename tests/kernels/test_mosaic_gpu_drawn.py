"""GPU kernels of whole histories and windows, interpreted, over drawn rows.

A kernel is compiled for one of few shapes; lengths, tables, starts, queries and what
lies in dead slots are drawn anew each time.  ``test_mosaic_gpu_blocks.py`` says what
the interpreter runs and what it does not.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gpu_pools import check, interpreter, pool_of
from gpu_rows import HEADS_SCALED, SCALED, Shape, joined, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax.entry import Entry
from pallas_kernels.mosaic_gpu.sizes import BlockSizes
from pallas_kernels.paged_decode.mosaic_gpu import paged_attention
from pallas_kernels.source import Source
from pallas_kernels.window_decode.mosaic_gpu import window_attention

COLUMNS = {8: 18, 16: 9, 32: 5, 64: 4, 128: 3}

HISTORIES = {
    "float32": [
        Shape(Entry.kv(2, 64), 16, width=3, splits=2),
        Shape(joined("float32", latent=True), 64, group=5, soft_cap=5.0, stages=3),
        Shape(Entry.kv(1, 64), 128, tokens=4, width=2, group=1, stages=1),
    ],
    "bfloat16": [
        Shape(Entry.kv(2, 64, "bfloat16"), 8, width=3, group=1, soft_cap=5.0),
        Shape(joined("bfloat16", latent=False), 32, tokens=4, group=5, splits=3),
        Shape(joined("bfloat16", latent=True), 64, width=2, group=8, stages=3),
    ],
    "8 bits": [
        Shape(SCALED, 32, width=2, group=5, stages=1),
        Shape(HEADS_SCALED, 64, width=3, group=1, splits=2),
    ],
}
# With the keys that a query sees.
WINDOWS = {
    "float32": [
        (Shape(joined("float32", latent=False), 16, group=5, soft_cap=5.0), 40),
        (Shape(Entry.kv(2, 64), 64, width=3, splits=2, stages=1), 70),
        (Shape(Entry.kv(1, 64), 8, width=2, stages=3), 1),
    ],
    "bfloat16": [
        (Shape(Entry.kv(2, 64, "bfloat16"), 16, width=3, splits=2), 40),
        (Shape(joined("bfloat16", latent=True), 128, group=8), 130),
    ],
    "8 bits": [
        (Shape(HEADS_SCALED, 16, width=3, group=1), 40),
        (Shape(SCALED, 32, width=2, soft_cap=5.0, stages=3), 64),
    ],
}


@functools.partial(jax.jit, static_argnames=("shape", "window", "interpret"))
def read(query, planes, table, positions, since, end, *, shape, window=None, interpret):
    source = Source(planes, 1, shape.layout)
    shared = {
        "positions": positions,
        "since": since,
        "end": end,
        "scale": shape.dim**-0.5,
        "soft_cap": shape.soft_cap,
        "sizes": BlockSizes(8, shape.stages, shape.splits),
        "interpret": interpret,
    }
    if window is None:
        return paged_attention(query, source, table, **shared)
    return window_attention(
        query,
        source,
        table,
        first_visible=lambda at: at - window + 1,
        reach=window - 1,
        **shared,
    )


def checked(shape, drawn, window=None):
    """Reads, and compares with a softmax in float64 over what each query sees."""
    seen = drawn.seen(shape, None if window is None else lambda at: at - window + 1)
    live = {(row, n) for row, _, n in np.argwhere(seen).tolist()}
    pool = pool_of(drawn.random, shape.layout, drawn.table, live)
    size = (*drawn.positions.shape, shape.heads, shape.group, shape.dim)
    query = drawn.random.normal(size=size).astype(np.float32)
    rest = (drawn.table, drawn.positions, drawn.since, drawn.end)
    part = read(
        jnp.asarray(query),
        pool.planes,
        *(jnp.asarray(x, jnp.int32) for x in rest),
        shape=shape,
        window=window,
        interpret=interpreter(),
    )
    check(
        part,
        pool,
        query,
        lambda row, at, _: np.flatnonzero(seen[row, at]).tolist(),
        scale=shape.dim**-0.5,
        soft_cap=shape.soft_cap,
        tolerance=shape.tolerance,
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HISTORIES)
@settings(max_examples=16)
@given(data=st.data())
def test_whole_histories(dtype, data):
    interpreter()
    shape = data.draw(st.sampled_from(HISTORIES[dtype]))
    checked(shape, data.draw(rows(shape, COLUMNS[shape.block])))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", WINDOWS)
@settings(max_examples=16)
@given(data=st.data())
def test_windows(dtype, data):
    interpreter()
    shape, window = data.draw(st.sampled_from(WINDOWS[dtype]))
    # No longer than it must be: what comes next lies where a window has gone by.
    columns = -(-(window - 1 + shape.width) // shape.block) + 1
    checked(shape, data.draw(rows(shape, columns, window)), window)
