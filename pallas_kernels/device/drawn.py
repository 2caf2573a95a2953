"""A step of rows over a pool of random entries, and what it must give in float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.compiled.cases import LAYERS, SELECTED, WINDOW, Case
from pallas_kernels.dtypes import element_bits, named_dtype
from pallas_kernels.lanes import Lanes
from pallas_kernels.stored import read_planes

SCALE = 0.1


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much there is to read.

    Attributes:
      rows: of the step.
      tokens: of each row, about.
      selected: entries that a query reads where it selects.
    """

    rows: int
    tokens: int
    selected: int


class Drawn:
    """One case with numbers in it.

    Attributes:
      planes: the pool's arrays, as a backend holds them.
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
        self._case, pool = case, case.pool
        random = np.random.default_rng(seed)
        columns = -(-sizes.tokens // pool.block_tokens) + 1
        blocks = sizes.rows * columns
        self._table = random.permutation(blocks).reshape(sizes.rows, columns)
        end = sizes.tokens - random.integers(0, pool.block_tokens, sizes.rows)
        self._positions = (end - case.width)[:, None] + np.arange(case.width)
        shape = (blocks, pool.block_entries)
        self._logical, self.planes = {}, {}
        for plane in read_planes(pool.entry):
            values = _values(random, pool.entry, plane, (*shape, plane.width))
            logical = values.astype(np.float64)
            self._logical[plane.name] = logical.reshape(*shape, plane.heads, plane.dim)
            array = jnp.asarray(values)
            if by_lanes:
                array = Lanes.of(pool, plane).block(array)
            self.planes[plane.name] = jnp.broadcast_to(array, (LAYERS, *array.shape))
        self._draw_arguments(random, sizes, end)

    def _draw_arguments(self, random, sizes, end):
        case, entry = self._case, self._case.pool.entry
        key = sum(plane.dim for plane in entry.key_planes)
        each = (sizes.rows, case.width)
        heads = () if case.ranks else (entry.key_planes[0].heads,)
        self._query = random.normal(size=(*each, *heads, case.group, key))
        # What the bfloat16 products of a kernel can tell apart.
        self._query = self._query.astype(named_dtype("bfloat16")).astype(np.float32)
        arguments = {
            "query": self._query,
            "table": self._table.astype(np.int32),
            "positions": self._positions.astype(np.int32),
            "since": np.zeros(sizes.rows, np.int32),
            "end": end.astype(np.int32),
        }
        if case.ranks:
            self._weights = random.normal(size=(*each, case.group)).astype(np.float32)
            arguments["weights"] = self._weights
        if case.operation == "indexed_decode":
            most = int(end.min()) // case.pool.entry_tokens
            self._selected = np.stack(
                [
                    random.permutation(most)[: sizes.selected]
                    for _ in range(sizes.rows * case.width)
                ]
            ).reshape(*each, 1, -1)
            arguments["selected"] = self._selected.astype(np.int32)
        self.arguments = jax.tree.map(jnp.asarray, arguments)
        entries = sum(len(self._seen(row, 0)) for row in range(sizes.rows))
        planes = read_planes(entry)
        bits = sum(plane.width * element_bits(plane.dtype) for plane in planes)
        self.nbytes = entries * bits // 8

    def error(self, result) -> float:
        """Largest relative error of what a read gave.

        Args:
          result: a partial, or the units that a ranking chose.
        """
        if self._case.ranks:
            return self._ranking_error(np.asarray(result))
        acc, total = np.asarray(result.acc, np.float64), np.asarray(result.l)
        got = acc / np.asarray(total, np.float64)[..., None]
        worst = 0.0
        for row, at in np.ndindex(*got.shape[:2]):
            keys, values = self._entries(row, self._seen(row, at))
            query = self._query[row, at].astype(np.float64)
            scores = SCALE * np.einsum("hqd,nhd->hqn", query, keys)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            want = np.einsum("hqn,nhd->hqd", weights, values)
            error = np.abs(got[row, at] - want).max() / np.abs(want).max()
            worst = max(worst, float(error) if np.isfinite(error) else np.inf)
        return worst

    def _ranking_error(self, units) -> float:
        """How far the sum of the chosen scores lies below the best."""
        worst = 0.0
        for row, at in np.ndindex(*units.shape[:2]):
            numbers = self._seen(row, at)
            keys, _ = self._entries(row, numbers)
            dots = np.einsum(
                "hd,nd->hn", self._query[row, at].astype(np.float64), keys[:, 0]
            )
            scores = self._weights[row, at].astype(np.float64) @ np.maximum(
                SCALE * dots, 0
            )
            chosen = units[row, at, 0]
            chosen = chosen[chosen >= 0]
            count = min(SELECTED, len(numbers))
            if len(set(chosen.tolist())) != count or chosen.max() >= len(numbers):
                return np.inf
            missed = np.sort(scores)[::-1][:count] - np.sort(scores[chosen])[::-1]
            worst = max(worst, float(np.abs(missed).max() / np.abs(scores).max()))
        return worst

    def _seen(self, row, at):
        """Entry numbers that a query reads, or may choose among."""
        case, per = self._case, self._case.pool.entry_tokens
        position = int(self._positions[row, at])
        if case.operation == "indexed_decode":
            return self._selected[row, at, 0]
        first = 0
        if case.operation == "window_decode":
            first = max(position - WINDOW + 1, 0)
        return np.arange(first, (position + 1) // per)

    def _entries(self, row, numbers):
        """Keys and values, ``[N, heads, D]`` each."""
        size, entry = self._case.pool.block_entries, self._case.pool.entry
        place = self._table[row][numbers // size], numbers % size

        def joined(planes):
            parts = []
            for plane in planes:
                values = self._logical[plane.name][place]
                if plane.scale is not None:
                    scales = self._logical[plane.scale][place]
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
