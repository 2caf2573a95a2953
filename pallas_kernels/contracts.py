"""What each read accepts, in one place.

The contract of a read is checked when a cache is built and for every block that
comes back from an outer tier (validation layers 2 and 4), and decides which
implementation serves a pool (:mod:`pallas_kernels.choice`).
"""

import dataclasses
import types
from collections.abc import Mapping

from pallas_kernels.dtypes import element_bits
from pallas_kernels.stored import Plane, Stored, read_planes


@dataclasses.dataclass(frozen=True)
class ReadContract:
    """Layouts that one implementation of a read accepts.

    Attributes:
      name: implementation, for example ``"xla"``.
      dtypes: logical dtypes of the planes.
      max_head_dim: largest head dimension.
      block_alignment: bytes of which every block's address and length in each
        plane and layer must be a multiple.
      scale_dtypes: logical dtypes of the planes that scale others; None for any.
      tiles: whether a block is whole tiles: of 8 or 16 entries, or a multiple of 8 of
        4 bytes, 16 of 2 bytes, 32 of a byte.
    """

    name: str
    dtypes: frozenset[str]
    max_head_dim: int
    block_alignment: int
    scale_dtypes: frozenset[str] | None = None
    tiles: bool = False

    def __post_init__(self):
        # Addresses are multiplied modulo the alignment, which 32 bits must hold.
        if not 1 <= self.block_alignment <= 2**15:
            raise ValueError(
                f"block_alignment must be 1 to {2**15} bytes, got "
                f"{self.block_alignment}."
            )

    def refusal(self, *, dtype: str, dim: int) -> str | None:
        """Why a plane of a key or value is not accepted; None if it is.

        Args:
          dtype: logical dtype of the plane.
          dim: its elements per head.
        """
        if dtype not in self.dtypes:
            return f"dtype {dtype} is not one of {sorted(self.dtypes)}"
        if dim > self.max_head_dim:
            return f"head dim {dim} exceeds {self.max_head_dim}"
        return None

    def refusal_of(self, stored: Stored) -> str | None:
        """Why a pool is not accepted; None if it is.

        Args:
          stored: its layout.
        """
        scales = {plane.scale for plane in stored.entry.planes}
        for plane in read_planes(stored.entry):
            if plane.name not in scales:
                refusal = self.refusal(dtype=plane.dtype, dim=plane.dim)
            else:
                refusal = self._scale_refusal(plane.dtype)
            if refusal:
                return f"plane {plane.name}: {refusal}"
        return self._size_refusal(stored) if self.tiles else None

    def _size_refusal(self, stored: Stored) -> str | None:
        planes = (*stored.entry.key_planes, *stored.entry.value_planes)
        rows = 256 // min(element_bits(plane.dtype) for plane in planes)
        if stored.block_entries % rows == 0 or stored.block_entries in (8, 16):
            return None
        tokens = rows * stored.entry_tokens
        return (
            f"{stored.block_entries} entries per block are neither 8, 16 nor a "
            f"multiple of {rows}; blocks of {tokens} tokens or a multiple would do"
        )

    def _scale_refusal(self, dtype: str) -> str | None:
        if self.scale_dtypes is None or dtype in self.scale_dtypes:
            return None
        return f"scales of dtype {dtype} are not one of {sorted(self.scale_dtypes)}"


@dataclasses.dataclass(frozen=True)
class TileContract:
    """Layouts that the GPU kernels accept: they work on tiles in shared memory.

    Attributes:
      name: implementation.
      dtypes: of the planes of keys and values.
      tile: entries of a tile.
      columns: elements of which every head dim, and every run of a scale, must be a
        multiple.
      shared_bytes: most shared memory of a block of threads.
      capabilities: compute capabilities of the cards that the kernels are for.
      positions: every position must lie below it.
      single: whether single entries are copied, not parts of blocks.
    """

    name: str
    dtypes: frozenset[str]
    tile: int
    columns: int
    shared_bytes: int
    capabilities: tuple[tuple[int, int], ...]
    positions: int
    single: bool = False

    def card_refusal(self, name: str, capability: tuple[int, int]) -> str | None:
        """Why the kernels do not run on a card; None if they do.

        Args:
          name: of the card.
          capability: its compute capability, major and minor.
        """
        if capability in self.capabilities:
            return None
        known = " and ".join(f"{major}.{minor}" for major, minor in self.capabilities)
        return (
            f"the {self.name} kernels are made for compute capabilities {known}, "
            f"{name} has {capability[0]}.{capability[1]}"
        )

    def refusal_of(self, stored: Stored) -> str | None:
        """Why a pool is not accepted; None if it is.

        Args:
          stored: its layout.
        """
        entry, size = stored.entry, stored.block_entries
        if not self.single and (size % 8 or (self.tile % size and size % self.tile)):
            return (
                f"{size} entries per block neither divide {self.tile} nor are a "
                "multiple of it, or are no multiple of 8"
            )
        for plane in (*entry.key_planes, *entry.value_planes):
            reason = self._plane_refusal(stored, plane)
            if reason is not None:
                return f"plane {plane.name}: {reason}"
        room = self.shared_bytes - self.weights_bytes(stored, 8)
        if self.tile_bytes(stored) > room:
            return (
                f"{self.tile} entries take {self.tile_bytes(stored)} bytes of shared "
                f"memory, there are {room}"
            )
        return None

    def tile_bytes(self, stored: Stored) -> int:
        """Bytes of one tile of every plane, of one KV head."""
        scales = {plane.scale for plane in stored.entry.planes}
        return sum(
            self.tile
            * (p.width if p.name in scales else p.dim)
            * element_bits(p.dtype)
            // 8
            for p in read_planes(stored.entry)
        )

    def weights_bytes(self, stored: Stored, queries: int) -> int:
        """Bytes of the weights of a tile, once for each run of the value.

        Args:
          stored: layout.
          queries: rows of queries.
        """
        planes = stored.entry.value_planes
        runs = sum(p.dim // p.run if p.scale is not None else 1 for p in planes)
        return runs * self.tile * queries * 4

    def _plane_refusal(self, stored: Stored, plane: Plane) -> str | None:
        if plane.dtype not in self.dtypes:
            return f"dtype {plane.dtype} is not one of {sorted(self.dtypes)}"
        if plane.dim % self.columns:
            return f"head dim {plane.dim} is no multiple of {self.columns}"
        if self.single and plane.dim * element_bits(plane.dtype) % 1024:
            return f"{plane.dim} elements are no multiple of 128 bytes"
        if plane.scale is None:
            return None
        if plane.run % self.columns:
            return f"runs of {plane.run} elements are no multiple of {self.columns}"
        if self.single:
            return None
        return _scale_refusal(stored, stored.entry[plane.scale])


def _scale_refusal(stored: Stored, scale: Plane) -> str | None:
    """Copies are of whole 16 bytes in a row, and of 128 together."""
    if scale.dtype != "float32":
        return f"scales of dtype {scale.dtype} are not float32"
    if scale.width == 1 and stored.block_entries % 32:
        return "one scale per entry needs a multiple of 32 entries a block"
    if scale.width > 1 and scale.width % 4:
        return f"{scale.width} scales per entry are neither 1 nor a multiple of 4"
    return None


# XLA gathers whole rows of any width; 4 bytes is the narrowest aligned access that
# every backend has.
XLA = ReadContract(
    name="xla",
    dtypes=frozenset(
        {
            "float32",
            "float16",
            "bfloat16",
            "float8_e4m3fn",
            "float8_e5m2",
            "float4_e2m1fn",
            "int8",
        }
    ),
    max_head_dim=1024,
    block_alignment=4,
)

# Blocks lie in rows of 128 lanes (:mod:`pallas_kernels.lanes`), so planes may have any
# width.  Entries of a block are rows of VMEM, which has 8 to a register.
MOSAIC_TPU = ReadContract(
    name="mosaic_tpu",
    dtypes=frozenset({"float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"}),
    max_head_dim=1024,
    block_alignment=4096,
    scale_dtypes=frozenset({"float32", "bfloat16", "float8_e8m0fnu"}),
    tiles=True,
)

# Hopper and Blackwell give a thread block 227 KiB, less what reductions and barriers
# take.  Cards of other capabilities have less, or lack instructions.
MOSAIC_GPU = TileContract(
    name="mosaic_gpu",
    dtypes=frozenset({"float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"}),
    tile=64,
    columns=64,
    shared_bytes=(227 - 4) << 10,
    capabilities=((9, 0), (10, 0)),
    # What lies beyond every position is still an int32 when a position is added.
    positions=1 << 30,
)
MOSAIC_GPU_ENTRIES = dataclasses.replace(MOSAIC_GPU, single=True)

KERNELS: Mapping[str, Mapping[str, ReadContract | TileContract]] = (
    types.MappingProxyType(
        {
            "mosaic_tpu": types.MappingProxyType(
                {
                    "window_decode": MOSAIC_TPU,
                    "paged_decode": MOSAIC_TPU,
                    "indexed_decode": MOSAIC_TPU,
                    "indexer_scores": MOSAIC_TPU,
                }
            ),
            "mosaic_gpu": types.MappingProxyType(
                {
                    "window_decode": MOSAIC_GPU,
                    "paged_decode": MOSAIC_GPU,
                    "indexed_decode": MOSAIC_GPU_ENTRIES,
                    "indexer_scores": MOSAIC_GPU,
                }
            ),
        }
    )
)
"""By implementation and operation, what a kernel accepts."""
