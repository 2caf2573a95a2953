"""What a row offers to the store: tokens it really ran, and the blocks they left."""

import dataclasses

import numpy as np

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.forms import required
from hybridcache_jax.prefix_index import NOTHING, Claims
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.rows import RowView, block_numbers
from hybridcache_jax.spec import PoolSpec


@dataclasses.dataclass(frozen=True)
class Offer:
    """Blocks that cover ``[0, n)`` of a row, ``n`` a multiple of the grid.

    Attributes:
      tokens: ``[n]`` int32.
      blocks: per pool, ``[n // block_tokens]`` int32; ``NOTHING`` where the row has
        no block (any more).
      epochs: per pool, likewise.
      floor: positions below come from the plan's claims; the row wrote the others.
    """

    tokens: np.ndarray
    blocks: tuple[np.ndarray, ...]
    epochs: tuple[np.ndarray, ...]
    floor: int

    def marks(
        self, capacity: CapacityPlan, accepted: Claims
    ) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """Ids and epochs of the row's own blocks that the index took.

        Args:
          capacity: sizes; each pool's vectors are padded to its row columns.
          accepted: what the index claims now for the offered tokens.

        Returns:
          Per pool, ``[C]`` int32 ids (``NOTHING`` for padding) and epochs.
        """
        ids, seen = [], []
        for number, pool in enumerate(capacity.spec.pools):
            mine, stamps = self.blocks[number], self.epochs[number]
            taken = (mine != NOTHING) & (accepted.blocks[number] == mine)
            taken[: self.floor // pool.block_tokens] = False
            place = np.flatnonzero(taken)
            columns = capacity.columns(number)
            padded = np.full(columns, NOTHING)
            padded[: len(place)] = mine[place]
            marks = np.zeros(columns, np.int32)
            marks[: len(place)] = stamps[place]
            ids.append(padded)
            seen.append(marks)
        return tuple(ids), tuple(seen)


def collect(
    capacity: CapacityPlan, row: RowView, log: np.ndarray, plan: ResumePlan
) -> Offer | None:
    """What a row can offer beyond what it was admitted with; None for nothing.

    Offered is what some resume point requires, by the rule that decides what can be
    found; nothing else is worth keeping.

    Nothing below the plan's resume point is offered as the row's own: it is either
    claimed already or was rebuilt by a replay, whose first rows are not exact.

    Args:
      capacity: sizes.
      row: the row, a batch of one, as NumPy arrays; its lease holds.
      log: ``[1, N]`` int32, the row's token log.
      plan: the plan it was admitted under.
    """
    spec = capacity.spec
    length = int(row.length[0])
    whole = length - length % spec.grid
    if whole <= plan.length:
        return None
    blocks, epochs = [], []
    for number, pool in enumerate(spec.pools):
        size = pool.block_tokens
        floor, total = plan.length // size, whole // size
        ids, seen = np.full(total, NOTHING), np.zeros(total, np.int32)
        ids[:floor] = plan.claims.blocks[number][:floor]
        seen[:floor] = plan.claims.epochs[number][:floor]
        columns, stamps = row.blocks[number][0], row.epochs[number][0]
        numbers = block_numbers(row.length, size, len(columns))[0]
        good = (numbers >= floor) & (numbers < total)
        good = good & (columns < capacity.blocks[number])
        good = good & _of_use(pool, numbers, spec.grid)
        ids[numbers[good]], seen[numbers[good]] = columns[good], stamps[good]
        blocks.append(ids)
        epochs.append(seen)
    return Offer(
        tokens=log[0, :whole].copy(),
        blocks=tuple(blocks),
        epochs=tuple(epochs),
        floor=plan.length,
    )


def _of_use(pool: PoolSpec, numbers: np.ndarray, grid: int) -> np.ndarray:
    """Which blocks a resume point requires: bounded forms only those just before one.

    What a form requires moves on with the resume point, so only the first grid point
    behind a block's first token needs to be asked.
    """
    first = numbers * pool.block_tokens
    point = first - first % grid + grid
    lo, hi = required(pool.form, pool.geometry, point)
    return (lo < hi) & (lo < first + pool.block_tokens)
