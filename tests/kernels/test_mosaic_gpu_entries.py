"""The GPU kernel for selected entries, interpreted.

See ``test_mosaic_gpu_blocks.py`` for what that covers and what it does not.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from gpu_pools import check, interpreter, pool_of, table_of
from twin import Pool as Layout

from hybridcache_jax.entry import Entry, Plane
from pallas_kernels.indexed_decode.mosaic_gpu import selected_attention
from pallas_kernels.mosaic_gpu.sizes import BlockSizes

ROWS, WIDTH, COLUMNS, GROUP, COUNT = 3, 2, 6, 3, 70
LATENT = Entry(
    (Plane("c", 1, 128, "bfloat16"), Plane("r", 1, 64, "bfloat16")),
    key=("c", "r"),
    value=("c",),
)
SCALED = Entry(
    (
        Plane("k", 1, 128, "float8_e4m3fn", scale="s", run=64),
        Plane("s", 1, 8, "float8_e8m0fnu"),
        Plane("r", 1, 64, "bfloat16"),
    ),
    key=("k", "r"),
    value=("k", "r"),
)
ONE_SCALE = Entry(
    (
        Plane("k", 2, 128, "int8", scale="s", run=128),
        Plane("s", 2, 1, "float32"),
    )
)

# Layout, groups of a query, soft cap, splits, stages.
CASES = {
    "float32, a selection for each head": (
        Layout(Entry.kv(2, 64), 12, 4), 2, None, 2, 2,
    ),
    "latents": (Layout(LATENT, 16), 1, 5.0, 1, 2),
    "fp8, a power of two for each 64": (Layout(SCALED, 24, 2), 1, None, 2, 1),
    "int8, scales of heads": (Layout(ONE_SCALE, 16), 1, None, 1, 2),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_attention_over_selected_entries(name):
    layout, groups, soft_cap, splits, stages = CASES[name]
    random = np.random.default_rng(list(name.encode()))
    interpret = interpreter()
    tokens, length = layout.entry_tokens, COLUMNS * layout.block_entries
    end = np.array([0, length * tokens - 1, length * tokens // 2 + 1])
    position = np.maximum(end - WIDTH, 0)[:, None] + np.arange(WIDTH)
    since = np.array([0, 2 * tokens, 0])
    heads = layout.entry.key_planes[0].heads
    table = table_of(random, ROWS, COLUMNS, 0.15)
    shape = (ROWS, WIDTH, groups)
    # In any order, some twice, some absent, some beyond what is written.
    chosen = np.tile(np.arange(COUNT + 12) % (length + 4), (*shape, 1))
    chosen = random.permuted(chosen, axis=-1)[..., :COUNT]
    chosen = np.where(random.random(chosen.shape) < 0.1, -1, chosen)
    # A query that selected nothing.
    chosen[2, 0] = -1

    def sees(row, at, head):
        low, stop = since[row], min(end[row], position[row, at] + 1)
        wanted = chosen[row, at, head if groups > 1 else 0]
        return [n for n in wanted if n >= 0 and low <= n * tokens <= stop - tokens]

    live = {
        (row, n)
        for row, at, head in np.ndindex(ROWS, WIDTH, heads)
        for n in sees(row, at, head)
    }
    pool = pool_of(random, layout, table, live)
    dim = sum(plane.dim for plane in layout.entry.key_planes)
    query = random.normal(size=(ROWS, WIDTH, heads, GROUP, dim)).astype(np.float32)
    part = selected_attention(
        jnp.asarray(query),
        pool.source,
        jnp.asarray(table, jnp.int32),
        jnp.asarray(chosen, jnp.int32),
        positions=jnp.asarray(position, jnp.int32),
        since=jnp.asarray(since, jnp.int32),
        end=jnp.asarray(end, jnp.int32),
        scale=dim**-0.5,
        soft_cap=soft_cap,
        sizes=BlockSizes(queries=8, stages=stages, splits=splits),
        interpret=interpret,
    )
    worst = check(
        part,
        pool,
        query,
        sees,
        scale=dim**-0.5,
        soft_cap=soft_cap,
        tolerance=1e-5 if layout.entry.key_planes[0].dtype == "float32" else 1e-2,
    )
    print(f"{name}: largest error {worst:.1e}")
