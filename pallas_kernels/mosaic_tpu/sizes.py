"""How the work of a TPU kernel is cut so that it fits VMEM."""

import dataclasses
import math

from pallas_kernels.lanes import LANES, Lanes
from pallas_kernels.stored import Stored, read_planes

SUBLANES = 8

# Half of what the compiler grants a kernel on the smallest generations (16 MiB on v5e
# and v5p); the other half is for scores and weights.
_VMEM_BYTES = 8 << 20
# Enough for a step to take longer than its overhead of about a third of a microsecond.
_STEP_BYTES = 512 << 10
_MOST_BLOCKS = 8


@dataclasses.dataclass(frozen=True)
class BlockSizes:
    """How the work is cut.

    Attributes:
      blocks: blocks of the pool, or parts of them, that one step reads.
      queries: most rows of queries (positions times query heads of a KV head) that one
        step works on; a multiple of 8.
    """

    blocks: int
    queries: int

    def __post_init__(self):
        if self.blocks < 1 or self.queries < SUBLANES or self.queries % SUBLANES:
            raise ValueError(
                f"BlockSizes needs blocks >= 1 and queries a multiple of {SUBLANES}, "
                f"got blocks={self.blocks}, queries={self.queries}."
            )


def strip_entries(stored: Stored) -> int:
    """Entries of the smallest part of a block that is whole tiles of every plane."""
    size = max(
        Lanes.of(stored, plane).tile
        for plane in (*stored.entry.key_planes, *stored.entry.value_planes)
    )
    return math.gcd(stored.block_entries, size)


def fitting(stored: Stored, entries: int | None = None) -> BlockSizes:
    """Sizes for a layout: steps of some 512 KiB, everything twice in VMEM.

    Args:
      stored: the layout.
      entries: of a part of a block that is fetched on its own; None for whole blocks.
    """
    entry = stored.entry
    entries = stored.block_entries if entries is None else entries
    block = sum(Lanes.of(stored, plane).nbytes for plane in read_planes(entry))
    block = block * entries // stored.block_entries
    blocks = min(max(_STEP_BYTES // block, 1), _MOST_BLOCKS)
    key, value = (
        sum(-(-plane.dim // LANES) * LANES for plane in planes)
        for planes in (entry.key_planes, entry.value_planes)
    )
    # A query in float32, its sums, maximum and total, for each head, twice.
    row = 2 * 4 * entry.key_planes[0].heads * (key + value + 2 * LANES)
    queries = max((_VMEM_BYTES - 2 * blocks * block) // row, SUBLANES)
    return BlockSizes(blocks, min(1 << (queries.bit_length() - 1), 512))
