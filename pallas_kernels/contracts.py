"""What each read accepts, in one place.

The contract of a read is checked when a cache is built and for every block that
comes back from an outer tier (validation layers 2 and 4), and decides which
implementation serves a pool (:mod:`pallas_kernels.choice`).
"""

import dataclasses

from pallas_kernels.dtypes import element_bits
from pallas_kernels.stored import Stored, read_planes


@dataclasses.dataclass(frozen=True)
class ReadContract:
    """Layouts that one implementation of a read accepts.

    Attributes:
      name: implementation, for example ``"xla"``.
      dtypes: logical dtypes of the planes.
      max_head_dim: largest head dimension.
      block_alignment: bytes of which every block's address and length in each
        plane and layer must be a multiple.
      lanes: elements of which the width of every plane must be a multiple.
      tile_bytes: bytes of one column of a tile; a block must fill whole tiles, so its
        entries are a multiple of this over the bytes of an element.
    """

    name: str
    dtypes: frozenset[str]
    max_head_dim: int
    block_alignment: int
    lanes: int = 1
    tile_bytes: int = 1

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
        for plane in read_planes(stored.entry):
            refusal = self.refusal(dtype=plane.dtype, dim=plane.dim)
            if refusal is None and plane.width % self.lanes:
                refusal = (
                    f"{plane.width} elements per entry are no multiple of {self.lanes}"
                )
            rows = max(1, 8 * self.tile_bytes // element_bits(plane.dtype))
            if refusal is None and stored.block_entries % rows:
                refusal = (
                    f"{stored.block_entries} entries per block are no multiple of "
                    f"{rows}"
                )
            if refusal:
                return f"plane {plane.name}: {refusal}"
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

# Blocks enter VMEM as they lie in memory, so they are whole tiles of 8 rows of 4 bytes
# by 128 lanes.  XLA would lay a narrower plane out in another way, and copy the whole
# pool before every read to undo that.
MOSAIC_TPU = ReadContract(
    name="mosaic_tpu",
    dtypes=frozenset({"float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"}),
    max_head_dim=1024,
    block_alignment=4096,
    lanes=128,
    tile_bytes=32,
)

KERNELS = {"window_decode": MOSAIC_TPU, "paged_decode": MOSAIC_TPU}
"""By operation, what its TPU kernel accepts."""
