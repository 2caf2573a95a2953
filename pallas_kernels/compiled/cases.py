"""The reads that are compiled: one per operation, layout and width of a step."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.choice import Kernel
from pallas_kernels.dtypes import named_dtype
from pallas_kernels.indexed_decode.api import selected_attention
from pallas_kernels.indexer_scores.api import top_units
from pallas_kernels.paged_decode.api import paged_attention
from pallas_kernels.source import Source
from pallas_kernels.window_decode.api import window_attention

# So many blocks that no compiler keeps a plane in fast memory: pools are large.
ROWS, COLUMNS, BLOCKS, LAYERS, BLOCK_TOKENS = 4, 64, 8192, 2, 64
WINDOW, SELECTED = 512, 2048


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
    block_tokens: int = BLOCK_TOKENS
    entry_tokens: int = 1

    @property
    def block_entries(self) -> int:
        """Entries of a block."""
        return self.block_tokens // self.entry_tokens


@dataclasses.dataclass(frozen=True)
class Case:
    """One read.

    Attributes:
      operation: folder of the read.
      layout: name of the layout, for people.
      pool: the layout.
      group: query heads per KV head, or index heads.
      width: queries of a row in a step.
    """

    operation: str
    layout: str
    pool: CasePool
    group: int
    width: int

    @property
    def dtype(self) -> str:
        """Of the first plane."""
        return self.pool.entry.planes[0].dtype

    @property
    def pool_bytes(self) -> int:
        """Bytes of the smallest plane of the pool: a copy of it must show."""
        return min(
            LAYERS
            * BLOCKS
            * self.pool.block_entries
            * plane.width
            * named_dtype(plane.dtype).itemsize
            for plane in self.pool.entry.planes
        )

    def program(self, kernel: Kernel) -> tuple[Callable, tuple]:
        """The read as a function of arrays, and the shapes of those."""
        read = functools.partial(_READS[self.operation], self, kernel)
        entry, shape = self.pool.entry, jax.ShapeDtypeStruct
        key = sum(plane.dim for plane in entry.key_planes)
        heads = entry.key_planes[0].heads
        query = shape((ROWS, self.width, heads, self.group, key), jnp.float32)
        planes = {
            plane.name: shape(
                (LAYERS, BLOCKS, self.pool.block_entries, plane.width),
                named_dtype(plane.dtype),
            )
            for plane in entry.planes
        }
        row = shape((ROWS,), jnp.int32)
        positions = shape((ROWS, self.width), jnp.int32)
        table = shape((ROWS, COLUMNS), jnp.int32)
        arguments = (query, planes, table, positions, row, row)
        if self.operation == "indexed_decode":
            chosen = shape((ROWS, self.width, 1, SELECTED), jnp.int32)
            arguments = (*arguments, chosen)
        return read, arguments


def _paged(case: Case, kernel: Kernel, query, planes, table, *rows):
    source = Source(planes, LAYERS - 1, case.pool)
    return paged_attention(query, source, table, **_attention(kernel, *rows))


def _window(case: Case, kernel: Kernel, query, planes, table, *rows):
    return window_attention(
        query,
        Source(planes, LAYERS - 1, case.pool),
        table,
        first_visible=lambda p: jnp.maximum(p - WINDOW + 1, 0),
        reach=WINDOW - 1,
        **_attention(kernel, *rows),
    )


def _indexed(case: Case, kernel: Kernel, query, planes, table, *rows):
    *rows, selected = rows
    source = Source(planes, LAYERS - 1, case.pool)
    return selected_attention(
        query, source, table, selected, **_attention(kernel, *rows)
    )


def _attention(kernel: Kernel, positions, since, end) -> dict[str, Any]:
    rows = {"positions": positions, "since": since, "end": end}
    return {**rows, "scale": 0.1, "soft_cap": None, "kernel": kernel}


def _ranked(case: Case, kernel: Kernel, query, planes, table, positions, since, end):
    return top_units(
        query[:, :, 0],
        query[:, :, 0, :, 0],
        Source(planes, LAYERS - 1, case.pool),
        table,
        scale=0.1,
        groups=1,
        k=SELECTED,
        unit=case.pool.entry_tokens,
        local_units=0,
        skip_open=False,
        positions=positions,
        since=since,
        end=end,
        kernel=kernel,
    )


_READS = {
    "window_decode": _window,
    "paged_decode": _paged,
    "indexed_decode": _indexed,
    "indexer_scores": _ranked,
}


def _kv(heads: int, dim: int, dtype: str) -> CaseEntry:
    planes = (CasePlane("k", heads, dim, dtype), CasePlane("v", heads, dim, dtype))
    return CaseEntry(planes, ("k",), ("v",))


def _row(dim: int, dtype: str) -> CaseEntry:
    """Keys and values are one row."""
    return CaseEntry((CasePlane("k", 1, dim, dtype),), ("k",), ("k",))


def _latent(dtype: str) -> CaseEntry:
    planes = (CasePlane("latent", 1, 512, dtype), CasePlane("rope", 1, 128, dtype))
    return CaseEntry(planes, ("latent", "rope"), ("latent",))


def cases() -> tuple[Case, ...]:
    """All of them."""
    found = []
    for dtype in ("bfloat16", "float32"):
        for name, entry, group in (
            ("8 heads of 128", _kv(8, 128, dtype), 4),
            ("8 heads of 64", _kv(8, 64, dtype), 8),
            ("1 head of 256", _kv(1, 256, dtype), 4),
            ("shared row of 512", _row(512, dtype), 64),
            ("latent 512 + 128", _latent(dtype), 128),
        ):
            for operation in ("window_decode", "paged_decode", "indexed_decode"):
                for width in (1, 16):
                    pool = CasePool(entry)
                    found.append(Case(operation, name, pool, group, width))
        for width in (1, 16):
            keys = CasePool(_row(128, dtype))
            found.append(Case("indexer_scores", "index keys of 128", keys, 64, width))
    return tuple(found)
