"""Rows of a step as hypothesis draws them, of few shapes, for the GPU kernels."""

import dataclasses

import numpy as np
from gpu_pools import table_of
from hypothesis import strategies as st
from twin import Pool as Layout
from twin import visible

from hybridcache_jax.entry import Entry, Plane

ROWS, TILE = 3, 64
FP8 = "float8_e4m3fn"
SCALED = Entry(
    (
        Plane("k", 1, 128, FP8, scale="s", run=64),
        Plane("s", 1, 4, "float32"),
        Plane("r", 1, 64, "bfloat16"),
    ),
    key=("k", "r"),
    value=("k", "r"),
)
HEADS_SCALED = Entry(
    (
        Plane("k", 2, 128, FP8, scale="ks", run=128),
        Plane("v", 2, 128, FP8, scale="vs", run=128),
        Plane("ks", 2, 2, "float32"),
        Plane("vs", 2, 2, "float32"),
    )
)


def joined(dtype, *, latent):
    """A row of 128 + 64, of which a latent's values are the first part."""
    planes = (Plane("c", 1, 128, dtype), Plane("r", 1, 64, dtype))
    return Entry(planes, key=("c", "r"), value=("c",) if latent else ("c", "r"))


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for.

    Attributes:
      entry: what is stored.
      block: entries of a block.
      tokens: of an entry.
      width: queries of a row.
      group: query heads of a KV head, or of a selection of index keys.
      soft_cap: bound on the scores; None for none.
      splits: shares of a row's entries.
      stages: tiles in shared memory.
    """

    entry: Entry
    block: int
    tokens: int = 1
    width: int = 1
    group: int = 3
    soft_cap: float | None = None
    splits: int = 1
    stages: int = 2

    @property
    def layout(self) -> Layout:
        return Layout(self.entry, self.block * self.tokens, self.tokens)

    @property
    def heads(self) -> int:
        return self.entry.key_planes[0].heads

    @property
    def dim(self) -> int:
        return sum(plane.dim for plane in self.entry.key_planes)

    @property
    def tolerance(self) -> float:
        return 1e-5 if self.entry.key_planes[0].dtype == "float32" else 1e-2


@dataclasses.dataclass
class Rows:
    """What rows ask, and what is there.

    Attributes:
      random: where all other numbers come from.
      table: ``[B, C]`` ids of blocks, some of them of none.
      positions: ``[B, T]``.
      since: ``[B]``.
      end: ``[B]``; a row may run fewer queries than the step is wide, and a row of no
        tokens none.
    """

    random: np.random.Generator
    table: np.ndarray
    positions: np.ndarray
    since: np.ndarray
    end: np.ndarray

    def seen(self, shape: Shape, first_visible=None) -> np.ndarray:
        """``[B, T, N]`` bool, by the definition; a missing block is for the pool."""
        count = int(self.end.max()) // shape.tokens + 1
        return visible(
            shape.layout, count, self.positions, self.since, self.end, first_visible
        )


@st.composite
def rows(draw, shape: Shape, columns: int, window: int | None = None):
    """Lengths at edges and between; rows that see nothing; permuted, torn tables.

    Args:
      draw: of hypothesis.
      shape: of the step.
      columns: of the block table; a ring's with a window.
      window: keys that a query sees.
    """
    block, tile = shape.layout.block_tokens, TILE * shape.tokens
    # Of a ring any position has its block.
    most = columns * block * (1 if window is None else 3)
    edges = {0, 1, block - 1, block, block + 1, tile - 1, tile, tile + 1, most}
    if window is not None:
        edges |= {window - 1, window, window + 1, window + shape.width}
    of_row = st.sampled_from(sorted(n for n in edges if n <= most))
    of_row |= st.integers(0, most)
    end = np.array(draw(st.lists(of_row, min_size=ROWS, max_size=ROWS)))
    ran = [draw(st.integers(min(n, 1), min(n, shape.width))) for n in end]
    start = end - np.array(ran)
    since = [draw(st.just(0) | st.integers(0, int(n))) for n in start]
    if draw(st.booleans()):
        # The last row has a history, and nothing of it counts.
        since[-1] = int(end[-1])
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return Rows(
        random,
        table_of(random, ROWS, columns, draw(st.sampled_from([0.0, 0.15, 0.5]))),
        start[:, None] + np.arange(shape.width),
        np.array(since),
        end,
    )
