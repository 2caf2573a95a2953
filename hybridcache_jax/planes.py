"""Between the logical values of an entry and the arrays that hold them.

Values enter as the model made them and leave as it will read them; in between they
may be quantised, packed, or held as integers.  Scales are planes of the same entry:
they are made here, written in the same update, and lie in the same block, so values
can never meet the scales of another entry.
"""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from hybridcache_jax.entry import Entry, Plane
from pallas_kernels.dtypes import element_bits, named_dtype
from pallas_kernels.lanes import LANES, WORD, Lanes
from pallas_kernels.stored import Stored
from pallas_kernels.values import spread

Planes = Mapping[str, jax.Array]
"""The arrays of entries, by the name of their plane."""

Memory = tuple[dict[str, jax.Array], ...]
"""The memory of every pool of a cache, plane to ``[L, P, S, width]``; in lanes to
``[L, P, rows, 128]`` (:mod:`pallas_kernels.lanes`)."""


@functools.lru_cache(maxsize=64)
def storage_dtype(name: str, backend: str) -> np.dtype:
    """The dtype in which a backend holds a plane; values are bit-cast at the edge.

    XLA's CPU backend converts a whole pool on every scatter into bfloat16 or
    float8 and writes unsigned integers of the same width in place (measured), so
    on CPU those are held as integers.  Elements of less than a byte are packed into
    bytes everywhere.

    Args:
      name: logical dtype.
      backend: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
    """
    dtype = named_dtype(name)
    if element_bits(name) < 8:
        return np.dtype("uint8")
    if backend == "cpu" and dtype.isbuiltin == 2:
        return np.dtype(f"uint{8 * dtype.itemsize}")
    return dtype


def block_in_memory(
    pool: Stored, plane: Plane, backend: str, lanes: bool
) -> jax.ShapeDtypeStruct:
    """What holds one block of a plane in device memory, for one layer.

    Args:
      pool: layout.
      plane: of its entry.
      backend: decides the storage dtype.
      lanes: whether blocks lie in rows of 128 lanes; else ``[S, storage_width]``.
    """
    dtype = storage_dtype(plane.dtype, backend)
    if not lanes:
        shape = (pool.block_entries, storage_width(plane))
        return jax.ShapeDtypeStruct(shape, dtype)
    laid = Lanes.of(pool, plane)
    return jax.ShapeDtypeStruct((laid.rows, LANES), WORD if laid.turned else dtype)


def blocks_outside(
    pool: Stored, plane: Plane, blocks: jax.Array, backend: str
) -> jax.Array:
    """Blocks as they lie in memory to ``[..., S, storage_width]``, without padding."""
    laid = Lanes.of(pool, plane)
    if not laid.holds(blocks):
        return blocks
    dtype = storage_dtype(plane.dtype, backend)
    return jax.lax.bitcast_convert_type(laid.values(blocks), dtype)


def blocks_inside(
    pool: Stored, plane: Plane, blocks: jax.Array, like: jax.Array
) -> jax.Array:
    """The inverse of :func:`blocks_outside`, padded with zeros.

    Args:
      pool: layout.
      plane: of its entry.
      blocks: ``[..., S, storage_width]``.
      like: memory that the blocks are for.
    """
    laid = Lanes.of(pool, plane)
    return laid.block(blocks) if laid.holds(like) else blocks


def storage_width(plane: Plane) -> int:
    """Elements of the storage dtype that hold one entry of a plane, without padding."""
    bits = element_bits(plane.dtype)
    return plane.width if bits >= 8 else plane.nbytes


def quantise(entry: Entry, planes: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Every plane of an entry in its logical dtype, scales made where they are due.

    The scale of a run is the least that brings its largest magnitude within the
    dtype's range, rounded up to a power of two where the scale's dtype holds nothing
    else (microscaling: Rouhani et al., 2023).  Where the scale's dtype ends,
    values saturate; a run that holds NaN or infinity is read back as NaN.

    Args:
      entry: layout.
      planes: ``[..., heads, dim]`` each, without the planes of scales.

    Raises:
      ValueError: for planes of other names than the entry declares.
    """
    names = [p.name for p in entry.planes if p.name not in entry.scale_planes]
    if sorted(planes) != sorted(names):
        raise ValueError(
            f"This entry takes the planes {names}, got {sorted(planes)}; give exactly "
            "what the layer's Entry declares, without the planes of scales."
        )
    result: dict[str, jax.Array] = {}
    for name in names:
        plane, value = entry[name], planes[name]
        if plane.scale is not None:
            scale = _scales(plane, entry[plane.scale], value)
            result[plane.scale] = scale
            value = value / spread(plane, scale)
        value = _within_range(plane, value)
        result[name] = value.astype(named_dtype(plane.dtype))
    return result


def to_storage(plane: Plane, value: jax.Array, backend: str) -> jax.Array:
    """``[..., heads, dim]`` in the logical dtype to ``[..., storage_width]``."""
    value = value.reshape(*value.shape[:-2], plane.width)
    if element_bits(plane.dtype) >= 8:
        return jax.lax.bitcast_convert_type(value, storage_dtype(plane.dtype, backend))
    codes = jax.lax.bitcast_convert_type(value, jnp.uint4).astype(jnp.uint8)
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def _scales(plane: Plane, scale: Plane, value: jax.Array) -> jax.Array:
    """``[..., heads, scale.dim]``; places beyond the runs are 1."""
    runs = value.astype(jnp.float32).reshape(*value.shape[:-1], -1, plane.run)
    top = jnp.max(jnp.abs(runs), axis=-1)
    # XLA would turn a division by a constant into a product with its reciprocal, which
    # is not exact; that ``top`` is never negative it does not know.
    needed = top / jnp.where(top < 0, 1.0, _largest(plane))
    # A run with NaN or infinity is read back as NaN, never as a number.
    finite = jnp.isfinite(needed)
    if scale.dtype == "float8_e8m0fnu":
        mantissa, exponent = jnp.frexp(needed)
        exponent = jnp.clip(exponent - (mantissa == 0.5), -126, 127)
        power = jnp.ldexp(jnp.float32(1), exponent)
        needed = jnp.where(needed > 0, power, needed)
    smallest, largest = _positive_range(scale)
    needed = jnp.where(needed == 0, 1.0, jnp.clip(needed, smallest, largest))
    needed = jnp.where(finite, needed, jnp.nan)
    needed = _rounded_up(scale, needed, largest)
    spare = [(0, 0)] * (needed.ndim - 1) + [(0, scale.dim - needed.shape[-1])]
    padded = jnp.pad(needed, spare, constant_values=1.0)
    return padded.astype(named_dtype(scale.dtype))


def _within_range(plane: Plane, value: jax.Array) -> jax.Array:
    """Values as the dtype can hold them; NaN and infinity stay what they are.

    Beyond its range float8 has only NaN; a number becomes the largest one instead.
    """
    dtype = named_dtype(plane.dtype)
    if element_bits(plane.dtype) > 8:
        return value
    if dtype.kind in "iu":
        value = jnp.round(value)
    largest = _largest(plane)
    return jnp.where(jnp.isfinite(value), jnp.clip(value, -largest, largest), value)


def _largest(plane: Plane) -> float:
    dtype = named_dtype(plane.dtype)
    if dtype.kind in "iu":
        return float(np.iinfo(dtype).max)
    return float(ml_dtypes.finfo(dtype).max)


def _rounded_up(plane: Plane, value: jax.Array, largest: float) -> jax.Array:
    """Positive values as the least numbers of a plane's dtype not below them."""
    dtype = named_dtype(plane.dtype)
    near = value.astype(dtype)
    # The codes of positive floats stand in the order of their values.
    code = jax.lax.bitcast_convert_type(near, np.dtype(f"uint{8 * dtype.itemsize}"))
    above = jax.lax.bitcast_convert_type(code + 1, dtype).astype(jnp.float32)
    near = near.astype(jnp.float32)
    return jnp.where(near < value, jnp.minimum(above, largest), near)


def _positive_range(plane: Plane) -> tuple[float, float]:
    """Least and largest positive numbers that a plane's dtype holds, none denormal."""
    numbers = ml_dtypes.finfo(named_dtype(plane.dtype))
    least = max(float(numbers.smallest_subnormal), float(np.finfo(np.float32).tiny))
    return least, float(numbers.max)
