"""The reads that are compiled: one per operation, layout and width of a step."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.choice import Kernel
from pallas_kernels.compiled import layouts
from pallas_kernels.compiled.layouts import FP8, INT8, CasePool
from pallas_kernels.dtypes import named_dtype
from pallas_kernels.indexed_decode.api import selected_attention
from pallas_kernels.indexer_scores.api import top_units
from pallas_kernels.lanes import LANES, WORD, Lanes
from pallas_kernels.paged_decode.api import paged_attention
from pallas_kernels.source import Source
from pallas_kernels.window_decode.api import window_attention

# So many blocks, of 64 entries, that no compiler keeps a plane in fast memory, and that
# nothing else in a program is as large: pools are large.
ROWS, COLUMNS, BLOCKS, LAYERS = 4, 64, 8192, 2
WINDOW, SELECTED = 512, 2048


@dataclasses.dataclass(frozen=True)
class Case:
    """One read.

    Attributes:
      operation: folder of the read.
      layout: name of the layout, for people.
      pool: the layout.
      group: query heads per KV head, or heads of the indexer.
      width: queries of a row in a step.
      window: positions that a query of ``window_decode`` sees.
    """

    operation: str
    layout: str
    pool: CasePool
    group: int
    width: int
    window: int = WINDOW

    @property
    def identity(self) -> tuple[str, str, str, int]:
        """As ``outcomes.Outcome.case``."""
        return self.operation, self.layout, self.dtype, self.width

    @property
    def dtype(self) -> str:
        """Of the first plane."""
        return self.pool.entry.planes[0].dtype

    def planes(self, backend: str) -> dict[str, jax.ShapeDtypeStruct]:
        """The arrays of the pool, as a backend has them."""
        found, blocks = {}, BLOCKS * 64 // self.pool.block_entries
        for plane in self.pool.entry.planes:
            block, dtype = (self.pool.block_entries, plane.width), plane.dtype
            if backend == "tpu":
                lanes = Lanes.of(self.pool, plane)
                block = (lanes.rows, LANES)
                dtype = WORD.name if lanes.turned else dtype
            shape = (LAYERS, blocks, *block)
            found[plane.name] = jax.ShapeDtypeStruct(shape, named_dtype(dtype))
        return found

    def layer_bytes(self, backend: str) -> int:
        """Bytes of one layer of the smallest plane of keys and values.

        A copy of so much must show.
        """
        entry, planes = self.pool.entry, self.planes(backend)
        arrays = [planes[p.name] for p in (*entry.key_planes, *entry.value_planes)]
        return min(array.size // LAYERS * array.dtype.itemsize for array in arrays)

    def program(self, kernel: Kernel, backend: str) -> tuple[Callable, tuple]:
        """The read as a function of arrays, and the shapes of those."""
        entry, shape = self.pool.entry, jax.ShapeDtypeStruct
        key = sum(plane.dim for plane in entry.key_planes)
        each = (ROWS, self.width)
        heads = () if self.ranks else (entry.key_planes[0].heads,)
        arguments = {
            "query": shape((*each, *heads, self.group, key), jnp.float32),
            "table": shape((ROWS, COLUMNS), jnp.int32),
            "positions": shape(each, jnp.int32),
            "since": shape((ROWS,), jnp.int32),
            "end": shape((ROWS,), jnp.int32),
        }
        if self.ranks:
            arguments["weights"] = shape((*each, self.group), jnp.float32)
        if self.operation == "indexed_decode":
            arguments["selected"] = shape((*each, 1, SELECTED), jnp.int32)
        return functools.partial(_read, self, kernel), (self.planes(backend), arguments)

    @property
    def ranks(self) -> bool:
        """Whether it ranks keys, and reads no values."""
        return self.operation == "indexer_scores"


def _read(case: Case, kernel: Kernel, planes, arguments):
    source, rest = Source(planes, LAYERS - 1, case.pool), dict(arguments)
    query, table = rest.pop("query"), rest.pop("table")
    rest |= {"kernel": kernel, "scale": 0.1}
    if case.ranks:
        weights = rest.pop("weights")
        rest |= {"groups": 1, "k": SELECTED, "unit": case.pool.entry_tokens}
        rest |= {"local_units": 0, "skip_open": False}
        return top_units(query, weights, source, table, **rest)
    options: dict[str, Any] = rest | {"soft_cap": None}
    if case.operation == "indexed_decode":
        return selected_attention(
            query, source, table, options.pop("selected"), **options
        )
    if case.operation == "paged_decode":
        return paged_attention(query, source, table, **options)
    return window_attention(
        query,
        source,
        table,
        first_visible=lambda p: jnp.maximum(p - case.window + 1, 0),
        reach=case.window - 1,
        **options,
    )


def cases() -> tuple[Case, ...]:
    """All of them: decoding in every dtype, and chunks of 16 tokens in some."""
    ordered, every = ("window_decode", "paged_decode"), ("bfloat16", "float32", FP8)
    selected, ranked = ("paged_decode", "indexed_decode"), ("indexer_scores",)
    attended, window = (*ordered, "indexed_decode"), ("window_decode",)
    found = []
    for dtype in every:
        for name, pool, group, operations in (
            ("8 heads of 128", layouts.heads(8, 128, dtype), 4, attended),
            ("8 heads of 64", layouts.heads(8, 64, dtype), 8, ordered),
            ("1 head of 256", layouts.heads(1, 256, dtype), 4, ordered),
            ("shared row of 512", layouts.shared_row(512, dtype), 64, selected),
            ("latent 512 + 128", layouts.latent(128, dtype), 128, selected),
            ("index key of 128", layouts.index_key(dtype), 64, ranked),
        ):
            for operation in operations:
                for width in (1, 16) if dtype == "bfloat16" else (1,):
                    found.append(Case(operation, name, pool, group, width))
    # Of widths that are no whole tiles of a TPU, where they are padded, among them what
    # DeepSeek-V3.2 and V4 keep; and other forms of the same.
    for dtype in every:
        for name, pool, group, operations in (
            ("1 head of 64", layouts.heads(1, 64, dtype), 8, ordered),
            ("1 head of 576", layouts.heads(1, 576, dtype), 8, ordered),
            ("latent 512 + 64", layouts.latent(64, dtype), 128, selected),
            ("row of 448 + 64", layouts.two_parts(64, dtype), 64, selected),
            ("16 of 448 + 64", layouts.two_parts(16, dtype), 64, selected),
            ("row of 448 + 64", layouts.two_parts(128, dtype, 1), 64, window),
        ):
            found += [Case(read, name, pool, group, 1) for read in operations]
    for name, pool, group, operations in (
        ("8 heads of 128", layouts.heads(8, 128, INT8), 4, attended),
        ("8 heads of 64", layouts.heads(8, 64, INT8), 8, ordered),
    ):
        found += [Case(read, name, pool, group, 1) for read in operations]
    return tuple(found)
