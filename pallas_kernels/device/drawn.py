"""A step of rows over a pool of random entries, and what it must give in float64."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.compiled.cases import LAYERS, SELECTED, Case
from pallas_kernels.device.step import Sizes, Step
from pallas_kernels.dtypes import named_dtype
from pallas_kernels.lanes import Lanes
from pallas_kernels.stored import read_planes

SCALE = 0.1


class Drawn:
    """One case with numbers in it.

    Attributes:
      planes: the pool's arrays, as a backend holds them.
      pages: ``[P, S, H, D]`` float64 by plane, what those hold.
      arguments: the other arguments of ``Case.program``.
      nbytes: bytes that the read must move.
    """

    def __init__(self, case: Case, sizes: Sizes, *, by_lanes: bool, seed: int = 0):
        """Draws it.

        Args:
          case: the read.
          sizes: how much there is.
          by_lanes: whether blocks lie in rows of 128 lanes, see ``lanes``.
          seed: of the numbers.
        """
        random = np.random.default_rng(seed)
        self._step, pool = Step(case, sizes, random), case.pool
        shape = (self._step.blocks, pool.block_entries)
        self.pages: dict[str, np.ndarray] = {}
        self.planes: dict[str, jax.Array] = {}
        for plane in read_planes(pool.entry):
            values = _values(random, pool.entry, plane, (*shape, plane.width))
            logical = values.astype(np.float64)
            self.pages[plane.name] = logical.reshape(*shape, plane.heads, plane.dim)
            array = jnp.asarray(values)
            if by_lanes:
                array = Lanes.of(pool, plane).block(array)
            self.planes[plane.name] = jnp.broadcast_to(array, (LAYERS, *array.shape))
        self.arguments = jax.tree.map(jnp.asarray, self._step.arguments)
        self.nbytes = self._step.nbytes

    def error(self, result) -> float:
        """Largest relative error of what a read gave.

        Args:
          result: a partial, or the units that a ranking chose.
        """
        if self._step.case.ranks:
            return self._ranking_error(np.asarray(result))
        acc, total = np.asarray(result.acc, np.float64), np.asarray(result.l)
        got = acc / np.asarray(total, np.float64)[..., None]
        worst = 0.0
        for row, at in np.ndindex(*got.shape[:2]):
            keys, values = self._entries(row, self._step.seen(row, at))
            query = self._step.arguments["query"][row, at].astype(np.float64)
            scores = SCALE * np.einsum("hqd,nhd->hqn", query, keys)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            want = np.einsum("hqn,nhd->hqd", weights, values)
            error = np.abs(got[row, at] - want).max() / np.abs(want).max()
            worst = max(worst, float(error) if np.isfinite(error) else np.inf)
        return worst

    def _ranking_error(self, units) -> float:
        """How far the sum of the chosen scores lies below the best."""
        queries, weights = (self._step.arguments[n] for n in ("query", "weights"))
        worst = 0.0
        for row, at in np.ndindex(*units.shape[:2]):
            numbers = self._step.seen(row, at)
            keys, _ = self._entries(row, numbers)
            dots = np.einsum(
                "hd,nd->hn", queries[row, at].astype(np.float64), keys[:, 0]
            )
            scores = weights[row, at].astype(np.float64) @ np.maximum(SCALE * dots, 0)
            chosen = units[row, at, 0]
            chosen = chosen[chosen >= 0]
            count = min(SELECTED, len(numbers))
            if len(set(chosen.tolist())) != count or chosen.max() >= len(numbers):
                return np.inf
            missed = np.sort(scores)[::-1][:count] - np.sort(scores[chosen])[::-1]
            worst = max(worst, float(np.abs(missed).max() / np.abs(scores).max()))
        return worst

    def _entries(self, row, numbers):
        """Keys and values, ``[N, heads, D]`` each."""
        pool, table = self._step.case.pool, self._step.arguments["table"]
        size, entry = pool.block_entries, pool.entry
        place = table[row][numbers // size], numbers % size

        def joined(planes):
            parts = []
            for plane in planes:
                values = self.pages[plane.name][place]
                if plane.scale is not None:
                    scales = self.pages[plane.scale][place]
                    runs = scales.reshape(len(values), plane.heads, -1)
                    runs = runs[..., : plane.dim // plane.run]
                    values = values * np.repeat(runs, plane.run, axis=-1)
                parts.append(values)
            return np.concatenate(parts, axis=-1)

        return joined(entry.key_planes), joined(entry.value_planes)


def _values(random, entry, plane, shape):
    dtype = named_dtype(plane.dtype)
    if any(other.scale == plane.name for other in entry.planes):
        # Powers of two, which every dtype of a scale holds.
        return (2.0 ** random.integers(-2, 1, shape)).astype(dtype)
    if dtype.kind == "i":
        return random.integers(-3, 4, shape).astype(dtype)
    return random.normal(size=shape).astype(dtype)
