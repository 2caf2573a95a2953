"""Rotary position embedding, half-split convention, in float32.

Su et al., "RoFormer" (2021).  Dimension ``i`` is paired with ``i + D/2``, as in the
Hugging Face checkpoints of Gemma; checkpoints that interleave pairs need another
function.  Linear scaling (Chen et al., "Extending Context Window via Position
Interpolation", 2023) divides positions by a factor.
"""

import jax
import jax.numpy as jnp
import numpy as np


def inverse_frequencies(head_dim: int, theta: float, factor: float = 1.0) -> np.ndarray:
    """Radians per position of each pair of dimensions.

    Args:
      head_dim: elements per head, even.
      theta: base of the geometric progression.
      factor: linear scaling; positions count ``1 / factor`` each.

    Returns:
      ``[head_dim // 2]`` float32.
    """
    # Float32 at every operation, as in the implementations that published results
    # come from; one rounding of a float64 result may differ in the last bit.
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = np.float32(1) / np.power(np.float32(theta), exponent)
    return frequencies / np.float32(factor)


def rotation(
    positions: jax.Array, frequencies: np.ndarray
) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of the rotation at each position.

    Args:
      positions: ``[B, T]`` int32 absolute positions.
      frequencies: ``[D // 2]`` float32, see :func:`inverse_frequencies`.

    Returns:
      Two arrays ``[B, T, 1, D // 2]`` float32; the axis of length 1 is the head's.
    """
    angles = positions.astype(jnp.float32)[..., None, None] * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotates queries or keys.

    Args:
      x: ``[B, T, H, D]``.
      cos: ``[B, T, 1, D // 2]`` float32, see :func:`rotation`.
      sin: the same shape.

    Returns:
      ``[B, T, H, D]`` float32.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate(
        [first * cos - second * sin, second * cos + first * sin], axis=-1
    )
