"""The online softmax of the TPU kernels, see :mod:`pallas_kernels.merge`."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.mosaic_tpu.entries import Loaded, head_scores, head_sums
from pallas_kernels.stored import Entry

Running = tuple[Any, Any, Any]
"""References to sums ``[1, H, M, Dv]``, maxima and totals ``[1, H, M, LANES]``."""


@dataclasses.dataclass(frozen=True)
class Attend:
    """Attention of a tile of queries, some entries after the others.

    Attributes:
      entry: layout of what is read.
      scale: factor on the scores.
      soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; None for none.
    """

    entry: Entry
    scale: float
    soft_cap: float | None

    def start(self, running: Running) -> None:
        """Nothing was seen yet."""
        acc, m, total = running
        acc[...] = jnp.zeros_like(acc)
        m[...] = jnp.full_like(m, -jnp.inf)
        total[...] = jnp.zeros_like(total)

    def step(
        self,
        running: Running,
        query: Any,
        loaded: Loaded,
        seen: Sequence[jax.Array],
        alive: jax.Array,
    ) -> None:
        """Adds the entries that are loaded.

        Args:
          running: what there is so far.
          query: reference to ``[1, H, M, D]``.
          loaded: planes of ``N`` entries.
          seen: which entries each query sees, ``[M, N]`` bool: one for all KV heads,
            or one for each.
          alive: ``[N, 1]`` bool, the entries that any query sees, at least; the rest
            may hold anything.
        """
        acc, m, total = running
        for head in range(self.entry.key_planes[0].heads):
            visible = seen[head if len(seen) > 1 else 0]
            scores = self.scale * head_scores(self.entry, query[0, head], loaded, head)
            if self.soft_cap is not None:
                scores = self.soft_cap * jnp.tanh(scores / self.soft_cap)
            scores = jnp.where(visible, scores, -jnp.inf)
            old = m[0, head][:, :1]
            new = jnp.maximum(old, jnp.max(scores, axis=1, keepdims=True))
            finite = jnp.where(new == -jnp.inf, 0.0, new)
            weights = jnp.where(visible, jnp.exp(scores - finite), 0.0)
            carry = jnp.exp(old - finite)
            fresh = jnp.sum(weights, axis=1, keepdims=True)
            total[0, head] = total[0, head] * carry + fresh
            m[0, head] = jnp.broadcast_to(new, m.shape[2:])
            acc[0, head] = acc[0, head] * carry + head_sums(
                self.entry, weights, loaded, head, alive
            )
