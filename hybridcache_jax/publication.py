"""What a row offers to the store: tokens it really ran, and the blocks they left.

Of what grows with the history everything is offered.  Of bounded forms only what a
resume point requires at which all are kept that must be held beside it: a tail beside
a window that is not there is of use to nobody.
"""

import dataclasses

import numpy as np

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.claims import NOTHING, Claims, Holds
from hybridcache_jax.codes import Stage
from hybridcache_jax.forms import RULES, required
from hybridcache_jax.replay import companions
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.retention import kept_at
from hybridcache_jax.rows import RowView, block_numbers
from hybridcache_jax.spec import PoolSpec
from hybridcache_jax.state import StateTable


@dataclasses.dataclass(frozen=True)
class Offer:
    """Blocks that cover ``[0, n)`` of a row, ``n`` a multiple of the grid.

    Attributes:
      tokens: ``[n]`` int32.
      blocks: per pool, ``[n // block_tokens]`` int32; ``NOTHING`` where the row has
        no block (any more).
      epochs: per pool, likewise.
    """

    tokens: np.ndarray
    blocks: tuple[np.ndarray, ...]
    epochs: tuple[np.ndarray, ...]

    def marks(
        self, capacity: CapacityPlan, accepted: Claims
    ) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """Ids and epochs of what the index claims where the row has a block.

        Those that the row was admitted with are among them: their claims may have been
        dropped in the meantime, and are now made again.  So are older ones that it
        keeps: dead weight that a row still pins may be of use again beside these.

        Args:
          capacity: sizes; each pool's vectors are padded to its row columns.
          accepted: what the index claims now for the offered tokens.

        Returns:
          Per pool, ``[C]`` int32 ids (``NOTHING`` for padding) and epochs.
        """
        ids, seen = [], []
        for number in range(len(capacity.spec.pools)):
            columns = capacity.columns(number)
            # A row refers to its last blocks only.
            place = np.flatnonzero(self.blocks[number] != NOTHING)[-columns:]
            padded = np.full(columns, NOTHING)
            padded[: len(place)] = accepted.blocks[number][place]
            marks = np.zeros(columns, np.int32)
            marks[: len(place)] = accepted.epochs[number][place]
            ids.append(padded)
            seen.append(marks)
        return tuple(ids), tuple(seen)


def collect(
    capacity: CapacityPlan,
    row: RowView,
    tokens: np.ndarray,
    plan: ResumePlan,
    tables: tuple[StateTable, ...],
    *,
    holds: Holds,
    finished: bool,
) -> Offer | None:
    """What a row can offer beyond what it was admitted with; None for nothing.

    Offered is what some resume point requires, by the rule that decides what can be
    found; nothing else is worth keeping.

    Nothing below the plan's resume point is offered as the row's own: it is either
    claimed already or was rebuilt by a replay, whose first rows are not exact.

    Args:
      capacity: sizes, and the retention policies.
      row: the row, a batch of one, as NumPy arrays; its lease holds.
      tokens: ``[n]`` int32, those of the row's token log that may be stored.
      plan: the plan it was admitted under.
      tables: facts, as NumPy arrays.
      holds: tells which claims are still true, on the device or in an outer tier.
      finished: whether the output ends where the row stands.
    """
    spec = capacity.spec
    first, length = plan.length + spec.grid, int(row.length[0])
    if len(tokens) < first:
        return None
    points = np.arange(first, len(tokens) + 1, spec.grid, dtype=np.int32)
    own = [
        _own_blocks(pool, number, row, capacity.blocks[number])
        for number, pool in enumerate(spec.pools)
    ]
    end = length if finished else 0
    kept = _kept_points(capacity, points, own, tables, plan, holds, end)
    if len(kept) == len(spec.pools):
        # Tokens behind the last point of use would be claimed for nothing.
        points = points[points <= max(each.max(initial=0) for each in kept.values())]
    if not len(points):
        return None
    whole = int(points[-1])
    blocks, epochs = [], []
    for number, pool in enumerate(spec.pools):
        size = pool.block_tokens
        floor, total = plan.length // size, whole // size
        ids, seen = np.full(total, NOTHING), np.zeros(total, np.int32)
        ids[:floor] = plan.claims.blocks[number][:floor]
        seen[:floor] = plan.claims.epochs[number][:floor]
        numbers, columns, stamps = own[number]
        good = (numbers >= floor) & (numbers < total)
        if number in kept:
            good = good & _of_use(pool, numbers, kept[number])
        ids[numbers[good]], seen[numbers[good]] = columns[good], stamps[good]
        blocks.append(ids)
        epochs.append(seen)
    return Offer(tokens[:whole].copy(), tuple(blocks), tuple(epochs))


def _own_blocks(
    pool: PoolSpec, number: int, row: RowView, nothing: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers, ids and epochs of the blocks that a row refers to in one pool."""
    columns = np.asarray(row.blocks[number][0])
    stamps = np.asarray(row.epochs[number][0])
    length = np.asarray(row.length)
    numbers = np.asarray(block_numbers(length, pool.block_tokens, len(columns))[0])
    there = (numbers >= 0) & (columns < nothing)
    return numbers[there], columns[there], stamps[there]


def _kept_points(
    capacity: CapacityPlan,
    points: np.ndarray,
    own: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
    tables: tuple[StateTable, ...],
    plan: ResumePlan,
    holds: Holds,
    end: int,
) -> dict[int, np.ndarray]:
    """For each bounded pool, the points at which it is kept and of use."""
    grid, kept = capacity.spec.grid, {}
    for number, pool in enumerate(capacity.spec.pools):
        rule = RULES[pool.form]
        if rule.grows:
            continue
        policy = capacity.policy(pool.form)
        kept[number] = kept_at(
            policy, pool, points, grid=grid, prompt=plan.num_tokens, end=end
        )
        numbers, ids, _ = own[number]
        if rule.exact:
            numbers = numbers[tables[number].stage[ids] == Stage.SEALED]
        stop = plan.length // pool.block_tokens
        first = np.arange(stop, dtype=np.int32) * np.int32(pool.block_tokens)
        ids, epochs = plan.claims.blocks[number], plan.claims.epochs[number]
        claimed = holds(number, ids[:stop], epochs[:stop], first)
        kept[number] &= _there(pool, points, claimed, numbers)
    return {
        number: points[
            np.all([kept[other] for other in companions(capacity.spec, number)], axis=0)
        ]
        for number in kept
    }


def _there(
    pool: PoolSpec,
    points: np.ndarray,
    claimed: np.ndarray,
    numbers: np.ndarray,
) -> np.ndarray:
    """At which points every block that a form requires is claimed or the row's.

    Args:
      pool: which.
      points: ``[K]`` int32 ascending, at least one.
      claimed: ``[N]`` bool, which claims of the first blocks hold.
      numbers: of the row's blocks; those behind ``claimed`` count.
    """
    size, floor = pool.block_tokens, len(claimed)
    there = np.zeros(int(points[-1]) // size + 1, bool)
    there[:floor] = claimed
    there[numbers[(numbers >= floor) & (numbers < len(there))]] = True
    lo, hi = required(pool.form, pool.geometry, points)
    holes = np.append(0, np.cumsum(~there))
    return (lo >= hi) | (holes[-(-hi // size)] == holes[lo // size])


def _of_use(pool: PoolSpec, numbers: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Which blocks the points (ascending) require.

    What a form requires moves on with the resume point, so only the first point behind
    a block's first token needs to be asked.
    """
    first = numbers * pool.block_tokens
    place = np.searchsorted(points, first, side="right")
    there = place < len(points)
    point = points[place[there]]
    lo, hi = required(pool.form, pool.geometry, point)
    there[there] = (lo < hi) & (lo < first[there] + pool.block_tokens)
    return there
