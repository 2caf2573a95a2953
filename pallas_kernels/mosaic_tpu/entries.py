"""Scores and weighted sums over blocks that lie in VMEM as they are stored."""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp

from pallas_kernels.dtypes import element_bits, named_dtype
from pallas_kernels.lanes import WORD_BITS
from pallas_kernels.stored import Entry, Plane

Loaded = Mapping[str, jax.Array]
"""By plane, ``[N, width]`` as stored, or wider; scales as words, ``[words, N]``."""


def head_scores(entry: Entry, query: jax.Array, loaded: Loaded, head: int) -> jax.Array:
    """``[M, D]`` queries to ``[M, N]`` float32 products with one head's keys."""
    total, at = jnp.zeros((), jnp.float32), 0
    for plane in entry.key_planes:
        keys = _of_head(plane, loaded, head).astype(_product_dtype(entry))
        for start, stop, scales in _runs(entry, plane, loaded, head):
            part = query[:, at + start : at + stop]
            scores = _dot(part, keys[:, start:stop], (1, 1))
            # A key's scale is the same for all queries, so it waits for the product.
            total = total + (scores if scales is None else scores * scales)
        at += plane.dim
    return total


def head_sums(
    entry: Entry, weights: jax.Array, loaded: Loaded, head: int, alive: jax.Array
) -> jax.Array:
    """``[M, N]`` weights to ``[M, Dv]`` float32 sums of one head's values.

    ``alive`` ``[N, 1]`` bool: what counts; the rest may hold anything.
    """
    parts = []
    for plane in entry.value_planes:
        values = _of_head(plane, loaded, head).astype(jnp.float32)
        # A zero weight does not silence NaN.
        values = jnp.where(alive, values, 0.0).astype(_product_dtype(entry))
        for start, stop, scales in _runs(entry, plane, loaded, head):
            scaled = weights
            if scales is not None:
                scaled = jnp.where(weights == 0, 0.0, weights * scales)
            parts.append(_dot(scaled, values[:, start:stop], (1, 0)))
    return jnp.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]


def _runs(
    entry: Entry, plane: Plane, loaded: Loaded, head: int
) -> Iterator[tuple[int, int, jax.Array | None]]:
    """Elements of a head that share scales, and those, ``[1, N]`` float32."""
    if plane.scale is None:
        yield 0, plane.dim, None
        return
    scale = entry[plane.scale]
    for run in range(plane.dim // plane.run):
        scales = _scales(scale, loaded[scale.name], head * scale.dim + run)
        yield run * plane.run, (run + 1) * plane.run, scales


def _scales(plane: Plane, words: jax.Array, number: int) -> jax.Array:
    """One scale of each entry, ``[1, N]`` float32, out of words of 32 bits."""
    bits = element_bits(plane.dtype)
    per = WORD_BITS // bits
    code = words[number // per : number // per + 1]
    if plane.dtype == "float8_e8m0fnu":
        # The exponent of a float32; all ones are NaN there too, with any fraction.
        code = (code >> (bits * (number % per))) & 0xFF
        code = (code << 23) | jnp.where(code == 0xFF, jnp.uint32(1), jnp.uint32(0))
    elif bits == 16:
        # bfloat16 is the upper half of a float32.
        code = (code >> (bits * (number % per))) << bits
    return jax.lax.bitcast_convert_type(code, jnp.float32)


def _of_head(plane: Plane, loaded: Loaded, head: int) -> jax.Array:
    """``[N, dim]`` of one head, in the logical dtype."""
    values = loaded[plane.name][:, head * plane.dim : (head + 1) * plane.dim]
    dtype = named_dtype(plane.dtype)
    # The CPU holds narrow floats as integers.
    if values.dtype != dtype:
        values = jax.lax.bitcast_convert_type(values, dtype)
    return values


def _product_dtype(entry: Entry):
    """What enters the matrix unit.

    Beside numbers in 8 bits, bfloat16 ones are float32 too: a query that is rounded for
    one plane and not for the other moves what later layers quantise.
    """
    planes = (*entry.key_planes, *entry.value_planes)
    narrow = all(plane.dtype == "bfloat16" for plane in planes)
    return jnp.bfloat16 if narrow else jnp.float32


def _dot(a: jax.Array, b: jax.Array, axes: tuple[int, int]) -> jax.Array:
    exact = b.dtype == jnp.float32
    return jax.lax.dot_general(
        a.astype(b.dtype),
        b,
        (((axes[0],), (axes[1],)), ((), ())),
        precision=jax.lax.Precision.HIGHEST if exact else None,
        preferred_element_type=jnp.float32,
    )
