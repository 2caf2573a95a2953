"""Ranking the history by its index keys, by whichever implementation."""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.choice import Kernel
from pallas_kernels.indexer_scores import reference
from pallas_kernels.source import Source


def top_units(
    query: jax.Array,
    weights: jax.Array,
    source: Source,
    blocks: jax.Array,
    *,
    scale: float,
    groups: int,
    k: int,
    unit: int,
    local_units: int,
    skip_open: bool,
    positions: jax.Array,
    since: jax.Array,
    end: jax.Array,
    kernel: Kernel,
) -> jax.Array:
    """The ``k`` best units of each query.

    The score of a key is ``sum over h of weights[h] * relu(scale * query[h] . key)``
    over the index heads of a group (DeepSeek-V3.2's indexer); that of a unit is the
    best of its keys.

    Args:
      query: ``[B, T, Hi, Di]``.
      weights: ``[B, T, Hi]``.
      source: the index pool's layer; one head.
      blocks: ``[B, C]`` int32, id of block ``c`` in column ``c``; ids outside
        ``[0, P)`` are not read.
      scale: factor on the dot products.
      groups: ``G``, selections per query; divides ``Hi``.
      k: units selected.
      unit: tokens per unit, a multiple of the tokens that a key stands for.
      local_units: units nearest the query that are taken whatever their score.
      skip_open: leave out the query's own unit while it is not complete.
      positions: ``[B, T]`` int32; a query sees the keys whose last token lies at or
        before its position.
      since: ``[B]`` int32, first position that counts.
      end: ``[B]`` int32, one past the last position written; 0 reads nothing.
      kernel: the implementation, from ``choice.choose("indexer_scores", ...)``.

    Returns:
      ``[B, T, G, k]`` int32 unit numbers, best first; -1 for unused places.
    """
    options: dict[str, Any] = {
        "groups": groups,
        "k": k,
        "unit": unit,
        "local_units": local_units,
        "skip_open": skip_open,
        "positions": positions,
        "since": since,
        "end": end,
    }
    if kernel.implementation == "mosaic_gpu":
        # Pallas takes long to import, and most processes need none of it.
        from pallas_kernels.indexer_scores import mosaic_gpu
        from pallas_kernels.mosaic_gpu.interpreter import interpreter

        return mosaic_gpu.top_units(
            query,
            weights,
            source,
            blocks,
            scale=scale,
            **options,
            interpret=interpreter(kernel.interpret),
        )
    if kernel.implementation == "mosaic_tpu":
        from pallas_kernels.indexer_scores import mosaic_tpu

        return mosaic_tpu.top_units(
            query,
            weights,
            source,
            blocks,
            scale=scale,
            **options,
            interpret=kernel.interpret,
        )

    def score(keys):
        dots = jnp.einsum(
            "bthd,bkd->bthk",
            query.astype(jnp.float32),
            keys,
            preferred_element_type=jnp.float32,
        )
        weighed = weights[..., None].astype(jnp.float32) * jax.nn.relu(scale * dots)
        by_group = weighed.reshape(*weighed.shape[:2], groups, -1, weighed.shape[-1])
        return jnp.sum(by_group, axis=3)

    return reference.top_units(
        lambda ids: source.by_block(ids)[0][:, :, 0],
        blocks,
        score,
        key_tokens=source.stored.entry_tokens,
        block_tokens=source.stored.block_tokens,
        num_blocks=source.num_blocks,
        **options,
    )
