"""What each read accepts, in one place.

The contract of a read is checked when a cache is built and for every block that
comes back from an outer tier (validation layers 2 and 4).
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class ReadContract:
    """Layouts that one implementation of a read accepts.

    Attributes:
      name: implementation, for example ``"xla"``.
      dtypes: logical dtypes of the planes.
      max_head_dim: largest head dimension.
      block_alignment: bytes of which every block's address and length in each
        plane and layer must be a multiple.
    """

    name: str
    dtypes: frozenset[str]
    max_head_dim: int
    block_alignment: int

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
