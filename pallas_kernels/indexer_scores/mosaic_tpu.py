"""Ranking the history on a TPU: scores by a kernel, the running top-k by XLA.

Interpreted and compiled ahead of time only.
"""

import jax

from pallas_kernels.indexer_scores import ranked
from pallas_kernels.mosaic_tpu.index_scores import score_blocks
from pallas_kernels.mosaic_tpu.turns import IDS
from pallas_kernels.source import Source

# Of one turn of the loop: keys of a row, and scores of all queries.
_KEYS, _SCORES = 1 << 15, 1 << 22


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
    tile_keys: int | None = None,
    interpret=False,
) -> jax.Array:
    """The ``k`` best units of each query, as ``indexer_scores.api.top_units``.

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
      tile_keys: keys of each row that one turn of the loop scores, about; None for what
        fits.
      interpret: as ``pallas_call`` takes it.

    Returns:
      ``[B, T, G, k]`` int32 unit numbers, best first; -1 for unused places.
    """
    if tile_keys is None:
        batch, width = positions.shape
        tile_keys = min(
            _KEYS,
            _SCORES // (batch * width * groups),
            IDS // batch * source.stored.block_entries,
        )

    def score(ids):
        return score_blocks(
            query, weights, source, ids, scale=scale, groups=groups, interpret=interpret
        )

    return ranked.top_units(
        score,
        source,
        blocks,
        groups=groups,
        k=k,
        unit=unit,
        local_units=local_units,
        skip_open=skip_open,
        positions=positions,
        since=since,
        end=end,
        tile_keys=tile_keys,
    )
