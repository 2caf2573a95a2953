"""From stored arrays to the values that a read works with."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from pallas_kernels.dtypes import element_bits, named_dtype
from pallas_kernels.stored import Entry, Plane


def from_storage(plane: Plane, stored: jax.Array) -> jax.Array:
    """Stored elements ``[..., width]`` to ``[..., heads, dim]`` in the logical dtype.

    Packed elements are unpacked, floats that are held as integers are cast back.
    """
    dtype = named_dtype(plane.dtype)
    if element_bits(plane.dtype) < 8:
        codes = jnp.stack([stored & 15, stored >> 4], axis=-1)
        stored = codes.reshape(*stored.shape[:-1], plane.width).astype(jnp.uint4)
    value = jax.lax.bitcast_convert_type(stored, dtype)
    return value.reshape(*value.shape[:-1], plane.heads, plane.dim)


def dequantise(entry: Entry, planes: Mapping[str, jax.Array], name: str) -> jax.Array:
    """One plane as the model gave it, float32, up to its rounding.

    Args:
      entry: layout.
      planes: every plane, ``[..., heads, dim]`` in its logical dtype.
      name: the plane.
    """
    plane, value = entry[name], planes[name].astype(jnp.float32)
    if plane.scale is None:
        return value
    return value * spread(plane, planes[plane.scale])


def keys_and_values(
    entry: Entry, planes: Mapping[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """What attention reads of entries: ``[..., heads, D]`` and ``[..., heads, Dv]``."""
    parts = {
        plane.name: dequantise(entry, planes, plane.name)
        for plane in (*entry.key_planes, *entry.value_planes)
    }

    def join(wanted: Sequence[Plane]) -> jax.Array:
        return jnp.concatenate([parts[plane.name] for plane in wanted], axis=-1)

    return join(entry.key_planes), join(entry.value_planes)


def spread(plane: Plane, scale: jax.Array) -> jax.Array:
    """Scales repeated over their runs: ``[..., heads, dim]`` float32."""
    used = scale[..., : plane.dim // plane.run].astype(jnp.float32)
    return jnp.repeat(used, plane.run, axis=-1)
