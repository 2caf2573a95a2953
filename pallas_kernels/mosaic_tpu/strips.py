"""Which parts of blocks hold entries that were selected.

A single entry is not a whole tile of VMEM, so strips are fetched: the smallest parts of
blocks that are.  Each is fetched once for all the queries that share a schedule.  What
a query reads of it are the bits of a word, so a strip has at most 32 entries.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

_NONE = jnp.iinfo(jnp.int32).max


class Strips(NamedTuple):
    """What ``R`` schedules read, each for ``Q`` selections.

    Attributes:
      number: ``[R, N]`` int32, strips of the row's history, ascending; -1 beyond the
        last.
      words: ``[R, Q, N]`` int32, bit ``i`` for entry ``i`` of the strip.
    """

    number: jax.Array
    words: jax.Array


def distinct(entry: jax.Array, *, size: int, most: int) -> Strips:
    """The strips of some entries.

    Args:
      entry: ``[R, Q, K]`` int32 entry numbers, in any order, some repeated; -1 for
        none.
      size: entries of a strip.
      most: ``N``; there are no more.
    """
    number = jnp.where(entry >= 0, entry // size, _NONE)
    # Stable sorts take several times as long to compile, and change nothing here.
    every = jnp.sort(number.reshape(len(entry), -1), stable=False)
    following = jnp.pad(every[:, 1:], ((0, 0), (0, 1)), constant_values=_NONE)
    every = jnp.sort(jnp.where(every == following, _NONE, every), stable=False)
    spare = ((0, 0), (0, max(0, most - every.shape[1])))
    every = jnp.pad(every, spare, constant_values=_NONE)[:, :most]
    bits = jnp.where(entry >= 0, 1 << entry % size, 0)
    mine = number[..., None] == every[:, None, None]
    words = jnp.bitwise_or.reduce(jnp.where(mine, bits[..., None], 0), axis=2)
    return Strips(jnp.where(every == _NONE, -1, every), words)
