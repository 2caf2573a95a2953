"""What a step of rows asks of a pool, and which entries that is.  No pool is made."""

import dataclasses

import numpy as np

from pallas_kernels.compiled.cases import Case
from pallas_kernels.dtypes import element_bits, named_dtype
from pallas_kernels.stored import read_planes


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


class Step:
    """The arguments of a read, but for the pool.

    Attributes:
      case: the read.
      blocks: ``P``, of a pool that holds no other rows.
      arguments: as ``Case.program`` wants them, in NumPy.
    """

    def __init__(self, case: Case, sizes: Sizes, random: np.random.Generator):
        """Draws it.

        Args:
          case: the read.
          sizes: how much there is.
          random: where numbers come from.
        """
        self.case, pool, entry = case, case.pool, case.pool.entry
        columns = -(-sizes.tokens // pool.block_tokens) + 1
        self.blocks = sizes.rows * columns
        table = random.permutation(self.blocks).reshape(sizes.rows, columns)
        end = sizes.tokens - random.integers(0, pool.block_tokens, sizes.rows)
        positions = (end - case.width)[:, None] + np.arange(case.width)
        each = positions.shape
        heads = () if case.ranks else (entry.key_planes[0].heads,)
        key = sum(plane.dim for plane in entry.key_planes)
        query = random.normal(size=(*each, *heads, case.group, key))
        self.arguments = {
            # What the bfloat16 products of a kernel can tell apart.
            "query": query.astype(named_dtype("bfloat16")).astype(np.float32),
            "table": table.astype(np.int32),
            "positions": positions.astype(np.int32),
            "since": np.zeros(sizes.rows, np.int32),
            "end": end.astype(np.int32),
        }
        if case.ranks:
            weights = random.normal(size=(*each, case.group))
            self.arguments["weights"] = weights.astype(np.float32)
        if case.operation == "indexed_decode":
            most = int(end.min()) // pool.entry_tokens
            chosen = [
                random.permutation(most)[: sizes.selected]
                for _ in range(positions.size)
            ]
            self.arguments["selected"] = np.array(chosen, np.int32).reshape(
                *each, 1, -1
            )

    def seen(self, row: int, at: int) -> np.ndarray:
        """Numbers of the entries that a query reads, or may choose among.

        Args:
          row: of the batch.
          at: place of the query in its row.
        """
        position, first = int(self.arguments["positions"][row, at]), 0
        stop = (position + 1) // self.case.pool.entry_tokens
        if self.case.operation == "indexed_decode":
            # Those of later queries' tokens are there, and not for this one.
            chosen = self.arguments["selected"][row, at, 0]
            return chosen[chosen < stop]
        if self.case.operation == "window_decode":
            first = max(position - self.case.window + 1, 0)
        return np.arange(first, stop)

    @property
    def entries(self) -> int:
        """Entries that any query of their row reads, each counted once."""
        rows, width = self.arguments["positions"].shape
        return sum(
            len(np.unique(np.concatenate([self.seen(row, at) for at in range(width)])))
            for row in range(rows)
        )

    @property
    def nbytes(self) -> int:
        """Bytes that the read must move: those entries, without any padding."""
        planes = read_planes(self.case.pool.entry)
        bits = sum(plane.width * element_bits(plane.dtype) for plane in planes)
        return self.entries * bits // 8
