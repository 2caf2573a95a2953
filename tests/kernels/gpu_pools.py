"""Pools with holes and foreign data, and what a read of them must give, in float64."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401 (NumPy learns the names of narrow floats)
import numpy as np
import pytest
import twin
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.source import Source
from pallas_kernels.stored import read_planes

LAYERS, LAYER = 2, 1
# Blocks that no row holds.
SPARE = 2


def interpreter():
    """Mosaic GPU's interpreter, with uninitialised memory NaN and races an error."""
    params = getattr(plgpu, "InterpretGPUParams", None)
    if params is None:
        pytest.skip(f"JAX {jax.__version__} has no interpreter for Mosaic GPU")
    return params(detect_races=True, uninitialized_memory="nan")


@dataclasses.dataclass
class Pool:
    """Rows of ``columns`` blocks each, some of them missing.

    Attributes:
      planes: what the device holds.
      keys: ``[P, S, H, D]`` float64, of every slot.
      values: ``[P, S, H, Dv]`` float64.
    """

    layout: twin.Pool
    table: np.ndarray
    planes: dict
    keys: np.ndarray
    values: np.ndarray

    @property
    def source(self):
        return Source(self.planes, LAYER, self.layout)

    def place(self, row, number):
        """Block and slot of an entry; None where there is no block."""
        column, slot = divmod(number, self.layout.block_entries)
        block = self.table[row, column % self.table.shape[1]]
        return (block, slot) if 0 <= block < len(self.keys) else None


def pool_of(random, layout, table, live):
    """A pool of NaN and infinity but for ``live``: ``(row, entry)`` pairs."""
    blocks = table.size + SPARE
    there = np.zeros((blocks, layout.block_entries), bool)
    pool = Pool(layout, table, {}, np.zeros((blocks, 0)), np.zeros(0))
    for row, number in live:
        if (place := pool.place(row, number)) is not None:
            there[place] = True
    logical, entry = {}, layout.entry
    for plane in read_planes(entry):
        shape = (LAYERS, blocks, layout.block_entries, plane.width)
        if plane.name in entry.scale_planes:
            values = random.uniform(0.2, 0.6, shape)
        elif plane.dtype == "int8":
            values = random.integers(-3, 4, shape)
        else:
            values = random.normal(size=shape)
        array = values.astype(np.dtype(plane.dtype))
        logical[plane.name] = (
            array[LAYER].astype(np.float64).reshape(*shape[1:3], plane.heads, plane.dim)
        )
        # Of a dead slot nothing is known; what is finite was once somebody's.
        foreign = random.choice([np.nan, np.inf, -np.inf, 40.0], (*shape[:3], 1))
        foreign = np.broadcast_to(foreign, shape)
        if plane.dtype == "int8":
            foreign = np.full(shape, 127)
        with np.errstate(invalid="ignore"):
            foreign = foreign.astype(array.dtype)
        array = np.where(there[..., None], array, foreign)
        # So are another layer's entries.
        array[1 - LAYER] = foreign[1 - LAYER]
        pool.planes[plane.name] = jnp.asarray(array)
    for plane in (*entry.key_planes, *entry.value_planes):
        if plane.scale is not None and plane.name in logical:
            used = logical[plane.scale][..., : plane.dim // plane.run]
            scales = np.repeat(used, plane.run, axis=-1)
            logical[plane.name + " scaled"] = logical[plane.name] * scales

    def join(planes):
        names = [p.name if p.scale is None else p.name + " scaled" for p in planes]
        return np.concatenate([logical[name] for name in names], axis=-1)

    pool.keys, pool.values = join(entry.key_planes), join(entry.value_planes)
    return pool


def table_of(random, rows, columns, holes):
    """Permuted blocks; ids outside the pool in some places."""
    table = random.permutation(rows * columns + SPARE)[: rows * columns]
    table = table.reshape(rows, columns)
    ends = [-(2**31), -table.size, -1, table.size + SPARE, 2**30, 2**31 - 1]
    wrong = random.choice(ends, table.shape)
    return np.where(random.random(table.shape) < holes, wrong, table)


def check(part, pool, query, seen, *, scale, soft_cap, tolerance):
    """Each query against a softmax over what it sees.

    Args:
      part: of the kernel.
      pool: what was read.
      query: ``[B, T, H, Q, D]`` as it was given.
      seen: row, query and head to entry numbers.
      scale: factor on the scores.
      soft_cap: bound on the scores; None for none.
      tolerance: largest error, relative to the largest value of a query.

    Returns:
      The largest error.
    """
    acc, m, l = (np.asarray(x, np.float64) for x in part)  # noqa: E741
    query, worst = np.asarray(query, np.float64), 0.0
    assert not np.isnan(acc).any()
    assert not np.isnan(l).any()
    for row, at, head in np.ndindex(query.shape[:3]):
        where = row, at, head
        places = [pool.place(row, n) for n in seen(*where)]
        places = [place for place in places if place is not None]
        if not places:
            assert (acc[where] == 0).all()
            assert (l[where] == 0).all()
            assert np.isneginf(m[where]).all()
            continue
        block, slot = np.array(places).T
        scores = scale * query[where] @ pool.keys[block, slot, head].T
        if soft_cap is not None:
            scores = soft_cap * np.tanh(scores / soft_cap)
        top = scores.max(axis=1)
        weights = np.exp(scores - top[:, None])
        want = weights @ pool.values[block, slot, head] / weights.sum(axis=1)[:, None]
        got = acc[where] / l[where][:, None]
        error = np.abs(got - want).max(axis=1) / np.abs(want).max(axis=1)
        # What other partials are merged by: the logarithm of the sum.
        total = top + np.log(weights.sum(axis=1))
        given = m[where] + np.log(l[where])
        for have, know in ((m[where], top), (given, total)):
            error = np.append(error, np.abs(have - know) / np.maximum(np.abs(know), 1))
        worst = max(worst, error.max())
    assert worst < tolerance
    return worst
