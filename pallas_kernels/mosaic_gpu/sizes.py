"""How the work of the GPU kernels is cut so that it fits a card."""

import dataclasses

from pallas_kernels.contracts import MOSAIC_GPU, MOSAIC_GPU_ENTRIES
from pallas_kernels.stored import Stored

KEYS = MOSAIC_GPU.tile
COLUMNS = MOSAIC_GPU.columns

# Two thread blocks side by side hide each other's waits.
_GOOD_BYTES = 104 << 10
_MOST_STAGES = 4
# Float32 sums that the 128 threads of a block keep in registers beside the rest.
_SUMS = 16384
_MOST_QUERIES = 64
# Fewer in a share would write as much for the merge as they read.
_LEAST_TILES = 4
# Two for each of the multiprocessors of the smaller card, an H200.
_THREAD_BLOCKS = 2 * 132


@dataclasses.dataclass(frozen=True)
class BlockSizes:
    """How the work is cut.

    Attributes:
      queries: most rows of queries (positions times query heads of a KV head) that one
        thread block works on; a multiple of 8.
      stages: tiles of 64 entries in shared memory at a time.
      splits: thread blocks that share the entries of one row; their partial results
        are merged by XLA.
    """

    queries: int
    stages: int
    splits: int

    def __post_init__(self):
        if self.queries < 8 or self.queries % 8 or self.stages < 1 or self.splits < 1:
            raise ValueError(
                "BlockSizes needs queries a multiple of 8, stages and splits of 1 or "
                f"more, got queries={self.queries}, stages={self.stages}, "
                f"splits={self.splits}."
            )


def fitting(
    stored: Stored, *, rows: int, groups: int, most_tiles: int, single: bool = False
) -> BlockSizes:
    """Sizes for a layout and a step.

    Args:
      stored: the layout.
      rows: rows of queries of one KV head.
      groups: rows of the batch times KV heads.
      most_tiles: most tiles that a row can have.
      single: whether single entries are read.

    Raises:
      ValueError: if the kernels do not accept the layout.
    """
    contract = MOSAIC_GPU_ENTRIES if single else MOSAIC_GPU
    refusal = contract.refusal_of(stored)
    if refusal is not None:
        raise ValueError(f"The GPU kernels do not accept this pool: {refusal}.")
    entry = stored.entry
    wide = sum(plane.dim for plane in entry.value_planes)
    exact = any(plane.dtype == "float32" for plane in entry.value_planes)
    queries = min(_SUMS // (2 if exact else 1) // wide // 8 * 8, _MOST_QUERIES)
    queries = max(min(queries, -(-rows // 8) * 8), 8)
    tile = contract.tile_bytes(stored)
    while contract.shared_bytes - contract.weights_bytes(stored, queries) < tile:
        queries -= 8
    room = contract.shared_bytes - contract.weights_bytes(stored, queries)
    stages = max(min(_GOOD_BYTES, room) // tile, min(room // tile, 2))
    groups *= -(-rows // queries)
    splits = max(1, min(_THREAD_BLOCKS // groups, most_tiles // _LEAST_TILES))
    return BlockSizes(queries, min(stages, _MOST_STAGES), splits)


def tiles_at_once(stored: Stored) -> int:
    """Tiles that fit shared memory together, a power of two of at most 4."""
    room = MOSAIC_GPU.shared_bytes
    return next(n for n in (4, 2, 1) if n * MOSAIC_GPU.tile_bytes(stored) <= room)
