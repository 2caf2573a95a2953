"""Which blocks a TPU kernel fetches, and when.  Plain arithmetic, for any arrays."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.reach import Reach
from pallas_kernels.stored import Stored


def row_range(stored: Stored, width: int, position, since, end, reach: Reach):
    """The first block that each row reads, and one past the last.

    Args:
      stored: layout.
      width: queries of a row.
      position: ``[B]`` int32, position of the first query.
      since: ``[B]`` int32, first position that counts.
      end: ``[B]`` int32, one past the last position written.
      reach: which keys a query sees.

    Returns:
      Two of ``[B]`` int32, equal where a row reads nothing.
    """
    if reach.first_visible is not None:
        since = jnp.maximum(since, reach.first_visible(position))
    end = jnp.minimum(end, position + width)
    first = since // stored.block_tokens
    return first, jnp.where(end > since, -(-end // stored.block_tokens), first)


def number_at(first, stop, step, place: int, count: int):
    """The block that a step reads in one of its places.

    Beyond a row's last block it is the last one that stood in this place, so that
    nothing is fetched.

    Args:
      first: ``[]`` int32, the row's first block.
      stop: ``[]`` int32, one past its last.
      step: ``[]`` int32.
      place: of ``count``.
      count: blocks of a step.
    """
    last = first + (stop - 1 - first - place) // count * count + place
    return jnp.maximum(jnp.minimum(first + step * count + place, last), first)


def id_at(table, row, number, reach: Reach):
    """The id of a row's block, as the table has it.

    Args:
      table: ``[B, C]`` int32.
      row: ``[]`` int32.
      number: ``[]`` int32, of the block.
      reach: tells whether the table is a ring.
    """
    columns = table.shape[1]
    column = number % columns if reach.ring else number
    return table[row, jnp.clip(column, 0, columns - 1)]


def held(parts: jax.Array, count: int) -> jax.Array:
    """Fills the gaps of a schedule so that nothing is fetched for them.

    Args:
      parts: ``[R, N]`` int32, what each place of each step reads, row after row; -1 for
        nothing.  ``N`` is a multiple of ``count``.
      count: places of a step.

    Returns:
      ``[R, N]`` int32: the part that is read, or ``~p`` of the part ``p`` that lies in
      the place anyway, from an earlier step or for a later one.
    """
    steps = parts.reshape(-1, count)

    def newer(before, after):
        return jnp.where(after >= 0, after, before)

    before = jax.lax.associative_scan(newer, steps)
    after = jax.lax.associative_scan(newer, steps, reverse=True)
    there = jnp.where(before >= 0, before, jnp.maximum(after, 0))
    return jnp.where(steps >= 0, steps, ~there).reshape(parts.shape)


def lying(part):
    """What is in a place: the part, whether it is read or not."""
    return jnp.where(part >= 0, part, ~part)


def fetches(
    table: np.ndarray, first: np.ndarray, stop: np.ndarray, count: int, reach: Reach
) -> list[list[int]]:
    """The blocks that are fetched for each row, in order, for one tile of queries.

    A block is fetched when the id in its place of a step differs from that of the step
    before (how Pallas drives a grid).

    Args:
      table: ``[B, C]`` int32.
      first: ``[B]`` int32, as :func:`row_range` gives it.
      stop: ``[B]`` int32.
      count: blocks of a step.
      reach: which keys a query sees.

    Returns:
      Per row, ids, with repetitions if there are any.
    """
    count = count if reach.most is None else min(count, reach.most)
    longest = max(int((stop - first).max()), 1) if reach.most is None else reach.most
    before: list[int | None] = [None] * count
    found: list[list[int]] = []
    for row in range(len(table)):
        found.append([])
        for step in range(-(-longest // count)):
            for place in range(count):
                number = number_at(first[row], stop[row], step, place, count)
                block = int(id_at(table, row, number, reach))
                if block != before[place]:
                    found[row].append(block)
                before[place] = block
    return found
