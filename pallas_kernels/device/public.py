"""The nearest kernels that JAX ships, to be timed beside ours.

They read pages of keys and of values of the same head dim, one head after the other,
in the dtype of the query and without scales: a layout of their own, which is made
before the clock runs.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.compiled.cases import Case
from pallas_kernels.dtypes import named_dtype

_READS = {
    "window_decode": "its windows need ragged_paged_attention, which is for TPUs",
    "indexed_decode": "none reads selected entries",
    "indexer_scores": "none ranks paged keys",
}


@dataclasses.dataclass(frozen=True)
class Public:
    """A kernel of JAX that does nearly what a read does.

    Attributes:
      name: of its module.
      function: of ``arguments``, to ``[B, T, H, Q, D]``, normalised.
      arguments: arrays.
    """

    name: str
    function: Callable[..., jax.Array]
    arguments: tuple[jax.Array, ...]


def reason_for_none(case: Case, backend: str) -> str | None:
    """Why no kernel is near a read; None if one is.

    Args:
      case: the read.
      backend: ``"tpu"`` or ``"gpu"``.
    """
    entry, read = case.pool.entry, case.operation
    if read in _READS and not (read == "window_decode" and backend == "tpu"):
        return _READS[read]
    keys, values = entry.key_planes, entry.value_planes
    if entry.key == entry.value or len(keys) + len(values) > 2:
        return "theirs have keys and values of one plane each"
    if any(plane.scale is not None for plane in keys):
        return "theirs take no scale for each head and token"
    dim = keys[0].dim
    if backend == "tpu" and (dim % 128 or keys[0].dtype != "bfloat16"):
        return "theirs are for bfloat16 heads of whole 128 lanes"
    if backend == "gpu" and (case.width > 1 or dim & (dim - 1)):
        return "theirs take one query, of a power of two"
    return None


def nearest(
    case: Case,
    backend: str,
    pages: dict[str, Any],
    arguments: dict[str, jax.Array],
    *,
    scale: float,
    interpret: bool,
) -> Public:
    """The kernel that is near a read, with its arguments.

    Args:
      case: a read with none of :func:`reason_for_none`.
      backend: ``"tpu"`` or ``"gpu"``.
      pages: ``[P, S, H, D]`` by plane.
      arguments: of ``Case.program``.
      scale: factor on the scores.
      interpret: whether no accelerator runs it.
    """
    (key,), (value,) = case.pool.entry.key, case.pool.entry.value
    dtype = named_dtype(case.dtype)
    query, table = arguments["query"].astype(dtype), arguments["table"]
    keys, values = (jnp.asarray(pages[name], dtype) for name in (key, value))
    make = _ragged if backend == "tpu" else _triton
    return make(
        case, query, keys, values, table, arguments["end"], scale, interpret=interpret
    )


def _triton(case, query, keys, values, table, end, scale, *, interpret) -> Public:
    """Pages by head; the table is as wide as its splits of 16 pages."""
    from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention

    del case
    keys, values = (jnp.moveaxis(x, 2, 0) for x in (keys, values))
    splits = 16
    table = jnp.pad(table, ((0, 0), (0, -table.shape[1] % splits)))

    def function(query, keys, values, table, end):
        batch, _, heads, group, dim = query.shape
        flat = query.reshape(batch, heads * group, dim) * scale
        out = paged_attention(
            flat.astype(keys.dtype),
            keys,
            values,
            table,
            end,
            k_splits=splits,
            pages_per_compute_block=1,
            interpret=interpret,
        )
        return out.reshape(query.shape)

    return Public(
        "pallas.ops.gpu.paged_attention", function, (query, keys, values, table, end)
    )


def _ragged(case, query, keys, values, table, end, scale, *, interpret) -> Public:
    """Keys and values by turns in one array of pages."""
    from jax.experimental.pallas.ops.tpu import ragged_paged_attention as ragged

    both = jnp.stack([keys, values], axis=3)
    both = both.reshape(*keys.shape[:2], -1, keys.shape[-1])
    rows, width = query.shape[:2]
    starts = jnp.arange(rows + 1, dtype=jnp.int32) * width
    window = case.window if case.operation == "window_decode" else None
    # Pallas' interpreter does not know what the kernel does to its references; JAX
    # brings a reference of the same arguments.
    read = (
        ragged.ref_ragged_paged_attention
        if interpret
        else ragged.ragged_paged_attention
    )

    def function(query, both, table, end):
        flat = query.reshape(rows * width, -1, query.shape[-1])
        out = read(
            flat,
            both,
            end,
            table,
            starts,
            jnp.array([rows], jnp.int32),
            sm_scale=scale,
            sliding_window=window,
        )
        return out.reshape(query.shape)

    name = "pallas.ops.tpu.ragged_paged_attention"
    name += "'s reference" * interpret
    return Public(name, function, (query, both, table, end))
