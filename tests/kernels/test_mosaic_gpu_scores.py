"""The GPU kernel that scores index keys, interpreted, and the ranking it serves.

Queries, keys, weights and scales are such that scores are exact in every dtype, so that
equal scores are equal.  The twin sorts all units at once.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from gpu_pools import interpreter, pool_of, table_of
from test_selected_reads import Choice, best_units, visible
from twin import Pool as Layout

from hybridcache_jax.entry import Entry, Plane
from pallas_kernels.indexer_scores.mosaic_gpu import top_units
from pallas_kernels.mosaic_gpu.index_scores import score_blocks

ROWS, WIDTH, COLUMNS, HEADS, DIM = 3, 2, 7, 6, 64
SCALED = Entry(
    (
        Plane("k", 1, DIM, "float8_e4m3fn", scale="s", run=DIM),
        Plane("s", 1, 1, "float32"),
    )
)
KEYS = {
    "bfloat16": Layout(Entry((Plane("k", 1, DIM, "bfloat16"),)), 16),
    "float32, entries of 4 tokens": Layout(Entry((Plane("k", 1, DIM),)), 32, 4),
    "fp8, a scale for each key": Layout(SCALED, 32),
    "blocks of two tiles": Layout(Entry((Plane("k", 1, DIM, "bfloat16"),)), 128),
}


def exact_pool(random, layout, table, live):
    """Keys of -1, 0 and 1, scaled by a half, one or two."""
    pool = pool_of(random, layout, table, live)
    keys = np.ones(1)
    for plane in layout.entry.planes:
        array = np.array(pool.planes[plane.name])
        values = random.integers(-1, 2, array.shape).astype(np.float64)
        values = 2.0**values if plane.name == "s" else values
        dead = ~np.isfinite(array.astype(np.float32))
        array = np.where(dead, np.nan, values).astype(array.dtype)
        pool.planes[plane.name] = jnp.asarray(array)
        keys = keys * values[1]
    pool.keys = keys
    return pool


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", KEYS)
def test_scores_and_the_best_units(name, groups):
    layout = KEYS[name]
    random = np.random.default_rng([*name.encode(), groups])
    interpret = interpreter()
    tokens, size = layout.entry_tokens, layout.block_entries
    choice = Choice(
        k=9, key_tokens=tokens, unit=2 * tokens, groups=groups, size=size,
        columns=COLUMNS,
    )  # fmt: skip
    length = COLUMNS * layout.block_tokens
    end = np.array([0, length - 1, length // 2 + 1])
    position = np.maximum(end - WIDTH, 0)[:, None] + np.arange(WIDTH)
    since = np.array([0, 0, 3 * tokens])
    table = table_of(random, ROWS, COLUMNS, 0.15)
    blocks = table.size + 2

    def sees(row, at):
        return visible(
            position[row, at], since[row], end[row], tokens, table[row], size, blocks
        )

    live = {(row, n) for row, at in np.ndindex(ROWS, WIDTH) for n in sees(row, at)}
    pool = exact_pool(random, layout, table, live)
    query = random.integers(-2, 3, (ROWS, WIDTH, HEADS, DIM)).astype(np.float32)
    weights = random.integers(-1, 4, (ROWS, WIDTH, HEADS)) / 2
    arguments = (
        jnp.asarray(query), jnp.asarray(weights, jnp.float32), pool.source,
        jnp.asarray(table, jnp.int32),
    )  # fmt: skip
    shared = {"scale": 0.25, "groups": groups, "interpret": interpret}
    scores = np.asarray(score_blocks(*arguments, **shared))
    units = np.asarray(
        top_units(
            *arguments,
            **shared,
            k=choice.k,
            unit=choice.unit,
            local_units=0,
            skip_open=False,
            positions=jnp.asarray(position, jnp.int32),
            since=jnp.asarray(since, jnp.int32),
            end=jnp.asarray(end, jnp.int32),
            tile_keys=128,
        )
    )
    assert scores.shape == (ROWS, WIDTH, groups, COLUMNS * size)
    for row, at, group in np.ndindex(ROWS, WIDTH, groups):
        heads = np.arange(HEADS).reshape(groups, -1)[group]
        seen, want = sees(row, at), np.full(COLUMNS * size, np.nan)
        for number in seen:
            key = pool.keys[pool.place(row, number)]
            dots = np.maximum(0.25 * query[row, at, heads] @ key, 0)
            want[number] = weights[row, at, heads] @ dots
        np.testing.assert_array_equal(scores[row, at, group, seen], want[seen])
        best = best_units(want, seen, position[row, at], choice) if end[row] else []
        best += [-1] * (choice.k - len(best))
        assert units[row, at, group].tolist() == best
