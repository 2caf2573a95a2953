"""The layouts that are compiled: what published models keep of a token."""

import dataclasses

FP8, INT8 = "float8_e4m3fn", "int8"


@dataclasses.dataclass(frozen=True)
class CasePlane:
    """A ``stored.Plane``."""

    name: str
    heads: int
    dim: int
    dtype: str
    scale: str | None = None
    run: int = 0

    @property
    def width(self) -> int:
        """``heads * dim``."""
        return self.heads * self.dim


@dataclasses.dataclass(frozen=True)
class CaseEntry:
    """A ``stored.Entry``."""

    planes: tuple[CasePlane, ...]
    key: tuple[str, ...]
    value: tuple[str, ...]

    def __getitem__(self, name: str) -> CasePlane:
        """The plane called ``name``."""
        return next(plane for plane in self.planes if plane.name == name)

    @property
    def key_planes(self) -> tuple[CasePlane, ...]:
        """Planes of the key."""
        return tuple(self[name] for name in self.key)

    @property
    def value_planes(self) -> tuple[CasePlane, ...]:
        """Planes of the value."""
        return tuple(self[name] for name in self.value)


@dataclasses.dataclass(frozen=True)
class CasePool:
    """A ``stored.Stored``."""

    entry: CaseEntry
    block_tokens: int = 64
    entry_tokens: int = 1

    @property
    def block_entries(self) -> int:
        """Entries of a block."""
        return self.block_tokens // self.entry_tokens


def heads(count: int, dim: int, dtype: str) -> CasePool:
    """Keys and values of some KV heads, with a scale for each head in 8 bits."""
    if dtype not in (FP8, INT8):
        planes = tuple(CasePlane(name, count, dim, dtype) for name in "kv")
    else:
        planes = tuple(
            plane
            for name in "kv"
            for plane in (
                CasePlane(name, count, dim, dtype, scale=f"{name}s", run=dim),
                CasePlane(f"{name}s", count, 1, "float32"),
            )
        )
    return CasePool(CaseEntry(planes, ("k",), ("v",)))


def shared_row(dim: int, dtype: str) -> CasePool:
    """Entries of 4 tokens, one row that is key and value (DeepSeek-V4)."""
    entry = CaseEntry(_scaled("k", dim, dtype), ("k",), ("k",))
    return CasePool(entry, block_tokens=256, entry_tokens=4)


def two_parts(entries: int, dtype: str, entry_tokens: int = 4) -> CasePool:
    """Entries that are key and value, 448 elements and 64 rotated ones (DeepSeek-V4).

    In FP8 a power of two scales every 64 of the 448.

    Args:
      entries: of a block.
      dtype: of the 448.
      entry_tokens: that an entry stands for.
    """
    parts = (CasePlane("k", 1, 448, dtype), CasePlane("r", 1, 64, dtype))
    if dtype == FP8:
        parts = (
            CasePlane("k", 1, 448, dtype, scale="s", run=64),
            CasePlane("s", 1, 8, "float8_e8m0fnu"),
            CasePlane("r", 1, 64, "bfloat16"),
        )
    entry = CaseEntry(parts, ("k", "r"), ("k", "r"))
    return CasePool(entry, entries * entry_tokens, entry_tokens)


def latent(rope: int, dtype: str) -> CasePool:
    """A latent, and the part of the key that is rotated (DeepSeek-V3)."""
    rotated = CasePlane("rope", 1, rope, "bfloat16" if dtype == FP8 else dtype)
    planes = (*_scaled("latent", 512, dtype), rotated)
    return CasePool(CaseEntry(planes, ("latent", "rope"), ("latent",)))


def index_key(dtype: str) -> CasePool:
    """A key that the indexer ranks."""
    return CasePool(CaseEntry(_scaled("k", 128, dtype), ("k",), ("k",)))


def _scaled(name: str, dim: int, dtype: str) -> tuple[CasePlane, ...]:
    """A row with a scale for every 128 elements, if it is FP8."""
    if dtype != FP8:
        return (CasePlane(name, 1, dim, dtype),)
    return (
        CasePlane(name, 1, dim, dtype, scale="s", run=128),
        CasePlane("s", 1, dim // 128, "float32"),
    )
