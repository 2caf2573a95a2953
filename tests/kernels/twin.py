"""What reads must give: float64, one query at a time, knowing positions only."""

import dataclasses

import numpy as np

from hybridcache_jax.entry import Entry


@dataclasses.dataclass(frozen=True)
class Pool:
    """A layout, as ``pallas_kernels.stored.Stored`` asks for it."""

    entry: Entry
    block_tokens: int
    entry_tokens: int = 1

    @property
    def block_entries(self) -> int:
        return self.block_tokens // self.entry_tokens


def attention(query, keys, values, seen, scale=1.0, soft_cap=None):
    """Softmax over the entries that each query sees; zeros where it sees none.

    Args:
      query: ``[B, T, H, Q, D]``.
      keys: ``[B, N, H, D]``, entry ``n`` of each row at place ``n``.
      values: ``[B, N, H, Dv]``.
      seen: ``[B, T, N]`` bool.
      scale: factor on the scores.
      soft_cap: None for none.

    Returns:
      ``[B, T, H, Q, Dv]`` float64.
    """
    out = np.zeros((*query.shape[:-1], values.shape[-1]))
    for row, column in np.ndindex(*query.shape[:2]):
        places = np.flatnonzero(seen[row, column])
        if not len(places):
            continue
        for head, one in np.ndindex(*query.shape[2:4]):
            asked = query[row, column, head, one].astype(np.float64)
            scores = scale * keys[row, places, head].astype(np.float64) @ asked
            if soft_cap is not None:
                scores = soft_cap * np.tanh(scores / soft_cap)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            out[row, column, head, one] = weights @ values[row, places, head].astype(
                np.float64
            )
    return out


def visible(pool, entries, positions, since, end, first_visible=None):
    """``[B, T, N]`` bool: which of the first ``entries`` entries each query sees."""
    first = pool.entry_tokens * np.arange(entries)
    last = first + pool.entry_tokens - 1
    written = (first >= since[:, None]) & (last < end[:, None])
    seen = written[:, None] & (last <= positions[..., None])
    if first_visible is not None:
        low = np.vectorize(lambda p: int(first_visible(int(p))))(positions)
        seen &= first >= low[..., None]
    return seen
