"""What the GPU kernels accept, and how their work is cut so that it fits a card."""

import dataclasses

from pallas_kernels.dtypes import element_bits
from pallas_kernels.stored import Stored, read_planes

KEYS = 64
COLUMNS = 64

DTYPES = ("bfloat16", "float32", "float8_e4m3fn", "float8_e5m2", "int8")

# What Hopper and Blackwell give a thread block, less what reductions and barriers take.
_SHARED_BYTES = (227 - 4) << 10
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
    refusal = refusal_of(stored, single=single)
    if refusal is not None:
        raise ValueError(f"The GPU kernels do not accept this pool: {refusal}.")
    entry = stored.entry
    wide = sum(plane.dim for plane in entry.value_planes)
    exact = any(plane.dtype == "float32" for plane in entry.value_planes)
    queries = min(_SUMS // (2 if exact else 1) // wide // 8 * 8, _MOST_QUERIES)
    queries = max(min(queries, -(-rows // 8) * 8), 8)
    tile = _tile_bytes(stored)
    while _SHARED_BYTES - _weights_bytes(stored, queries) < tile:
        queries -= 8
    room = _SHARED_BYTES - _weights_bytes(stored, queries)
    stages = max(min(_GOOD_BYTES, room) // tile, min(room // tile, 2))
    groups *= -(-rows // queries)
    splits = max(1, min(_THREAD_BLOCKS // groups, most_tiles // _LEAST_TILES))
    return BlockSizes(queries, min(stages, _MOST_STAGES), splits)


def tiles_at_once(stored: Stored) -> int:
    """Tiles that fit shared memory together, a power of two of at most 4."""
    return next(n for n in (4, 2, 1) if n * _tile_bytes(stored) <= _SHARED_BYTES)


def refusal_of(stored: Stored, *, single: bool = False) -> str | None:
    """Why the kernels do not accept a pool; None if they do.

    Args:
      stored: its layout.
      single: whether single entries are read.
    """
    entry, size = stored.entry, stored.block_entries
    if not single and (size % 8 or (KEYS % size and size % KEYS)):
        return (
            f"{size} entries per block neither divide {KEYS} nor are a multiple of it, "
            "or are no multiple of 8"
        )
    for plane in (*entry.key_planes, *entry.value_planes):
        reason = _plane_refusal(stored, plane, single)
        if reason is not None:
            return f"plane {plane.name}: {reason}"
    room = _SHARED_BYTES - _weights_bytes(stored, 8)
    if _tile_bytes(stored) > room:
        return (
            f"{KEYS} entries take {_tile_bytes(stored)} bytes of shared memory, "
            f"there are {room}"
        )
    return None


def _plane_refusal(stored, plane, single):
    if plane.dtype not in DTYPES:
        return f"dtype {plane.dtype} is not one of {sorted(DTYPES)}"
    if plane.dim % COLUMNS:
        return f"head dim {plane.dim} is no multiple of {COLUMNS}"
    if single and plane.dim * element_bits(plane.dtype) % 1024:
        return f"{plane.dim} elements are no multiple of 128 bytes"
    if plane.scale is None:
        return None
    if plane.run % COLUMNS:
        return f"runs of {plane.run} elements are no multiple of {COLUMNS}"
    return None if single else _scale_refusal(stored, stored.entry[plane.scale])


def _scale_refusal(stored, scale):
    """Copies are of whole 16 bytes in a row, and of 128 together."""
    if scale.dtype != "float32":
        return f"scales of dtype {scale.dtype} are not float32"
    if scale.width == 1 and stored.block_entries % 32:
        return "one scale per entry needs a multiple of 32 entries a block"
    if scale.width > 1 and scale.width % 4:
        return f"{scale.width} scales per entry are neither 1 nor a multiple of 4"
    return None


def _tile_bytes(stored):
    """Bytes of one tile of every plane, of one KV head."""
    scales = {plane.scale for plane in stored.entry.planes}
    return sum(
        KEYS * (p.width if p.name in scales else p.dim) * element_bits(p.dtype) // 8
        for p in read_planes(stored.entry)
    )


def _weights_bytes(stored, queries):
    """Bytes of the weights of a tile, once for each run of the value."""
    planes = stored.entry.value_planes
    runs = sum(p.dim // p.run if p.scale is not None else 1 for p in planes)
    return runs * KEYS * queries * 4
