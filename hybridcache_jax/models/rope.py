"""Rotary position embedding in float32: frequencies, rotations, conventions.

Su et al., "RoFormer" (2021).  Two conventions of pairing: half-split (dimension ``i``
with ``i + D/2``) and interleaved (``2i`` with ``2i + 1``).  Scalings of the
frequencies: linear (Chen et al., "Position Interpolation", 2023), YaRN (Peng et al.,
2023), and Llama 3's.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from hybridcache_jax.configs.rope import RopeConfig


def frequencies(settings: RopeConfig, head_dim: int) -> tuple[np.ndarray, float]:
    """Frequencies and magnitude of a configured rotary embedding.

    Args:
      settings: from the model's config.
      head_dim: elements per head; ``settings.partial`` of them are rotated.

    Returns:
      ``[rotated // 2]`` float32 radians per position, ``[head_dim // 2]`` where the
      scaling is proportional; and the factor on cosine and sine.
    """
    rotated = int(head_dim * settings.partial)
    if settings.scaling == "yarn":
        stretched = yarn_frequencies(
            rotated,
            settings.theta,
            factor=settings.factor,
            original_length=settings.original_length,
            beta_fast=settings.beta_fast,
            beta_slow=settings.beta_slow,
            truncate=settings.truncate,
        )
        return stretched, _yarn_attention_factor(settings)
    if settings.scaling == "llama3":
        stretched = llama3_frequencies(
            rotated,
            settings.theta,
            factor=settings.factor,
            original_length=settings.original_length,
            low_freq_factor=settings.low_freq_factor,
            high_freq_factor=settings.high_freq_factor,
        )
        return stretched, 1.0
    if settings.scaling == "proportional":
        plain = inverse_frequencies(head_dim, settings.theta, settings.factor)
        # The other pairs turn by nothing, so that the whole head can be rotated.
        return np.where(np.arange(len(plain)) < rotated // 2, plain, 0), 1.0
    if settings.scaling == "linear":
        return inverse_frequencies(rotated, settings.theta, settings.factor), 1.0
    if settings.scaling == "default":
        return inverse_frequencies(rotated, settings.theta), 1.0
    raise ValueError(f"Rope scaling {settings.scaling!r} has no frequencies here.")


def inverse_frequencies(head_dim: int, theta: float, factor: float = 1.0) -> np.ndarray:
    """Radians per position of each pair of dimensions.

    Args:
      head_dim: elements that are rotated, even.
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


def yarn_frequencies(
    head_dim: int,
    theta: float,
    *,
    factor: float,
    original_length: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> np.ndarray:
    """YaRN: fast dimensions keep their frequency, slow ones are divided by ``factor``.

    Args:
      head_dim: elements that are rotated, even.
      theta: base of the geometric progression.
      factor: by how much the context is stretched.
      original_length: positions the model was trained for before stretching.
      beta_fast: turns within ``original_length`` from which a dimension is fast.
      beta_slow: turns below which it is slow.
      truncate: whether the ends of the ramp are rounded outward to whole dimensions.

    Returns:
      ``[head_dim // 2]`` float32.
    """
    plain = inverse_frequencies(head_dim, theta)

    def dimension(turns: float) -> float:
        wave = original_length / (turns * 2 * math.pi)
        return head_dim * math.log(wave) / (2 * math.log(theta))

    low, high = dimension(beta_fast), dimension(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = np.float32(max(high - low, 0.001))
    ramp = (np.arange(head_dim // 2, dtype=np.float32) - np.float32(low)) / span
    slow = np.clip(ramp, 0, 1)
    return plain / np.float32(factor) * slow + plain * (1 - slow)


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """YaRN's factor on cosine and sine: ``0.1 mscale ln(factor) + 1``."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def llama3_frequencies(
    head_dim: int,
    theta: float,
    *,
    factor: float,
    original_length: int,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
) -> np.ndarray:
    """Llama 3: short waves keep their frequency, long ones are divided by ``factor``.

    Between the two the frequency is a mean, weighted by the turns within
    ``original_length`` (Llama Team, "The Llama 3 Herd of Models", 2024).

    Args:
      head_dim: elements that are rotated, even.
      theta: base of the geometric progression.
      factor: by how much the context is stretched.
      original_length: positions the model was trained for before stretching.
      low_freq_factor: turns below which a wave is long.
      high_freq_factor: turns above which it is short; more than ``low_freq_factor``.

    Returns:
      ``[head_dim // 2]`` float32.
    """
    plain = inverse_frequencies(head_dim, theta)
    turns = np.float32(original_length) * plain / np.float32(2 * math.pi)
    span = np.float32(high_freq_factor - low_freq_factor)
    kept = np.clip((turns - np.float32(low_freq_factor)) / span, 0, 1)
    return plain / np.float32(factor) * (1 - kept) + plain * kept


def rotation(
    positions: jax.Array, frequencies: np.ndarray, magnitude: float = 1.0
) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of the rotation at each position.

    Args:
      positions: ``[..., T]`` int32 absolute positions.
      frequencies: ``[D // 2]`` float32, see :func:`inverse_frequencies`.
      magnitude: factor on both, see :func:`yarn_magnitude`.

    Returns:
      Two arrays ``[..., T, 1, D // 2]`` float32; the axis of length 1 is the head's.
    """
    angles = positions.astype(jnp.float32)[..., None, None] * frequencies
    return jnp.cos(angles) * magnitude, jnp.sin(angles) * magnitude


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotates half-split pairs.

    Args:
      x: ``[..., T, H, D]``.
      cos: ``[..., T, 1, D // 2]`` float32, see :func:`rotation`.
      sin: the same shape.

    Returns:
      ``[..., T, H, D]`` float32.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate(_turn(first, second, cos, sin), axis=-1)


def rotate_first(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotates half-split pairs of the first elements of a head, and keeps the rest.

    Args:
      x: ``[..., T, H, D]``.
      cos: ``[..., T, 1, R // 2]`` float32, ``R`` elements are rotated.
      sin: the same shape.

    Returns:
      ``[..., T, H, D]`` float32.
    """
    first, rest = jnp.split(x.astype(jnp.float32), [2 * cos.shape[-1]], axis=-1)
    return jnp.concatenate([rotate(first, cos, sin), rest], axis=-1)


def rotate_interleaved(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotates interleaved pairs; shapes as of :func:`rotate`, order kept."""
    x = x.astype(jnp.float32)
    turned = _turn(x[..., 0::2], x[..., 1::2], cos, sin)
    return jnp.stack(turned, axis=-1).reshape(x.shape)


def deinterleave(x: jax.Array) -> jax.Array:
    """``[..., D]`` with even elements first, then odd ones.

    Half-split rotation of the result is interleaved rotation, de-interleaved.
    """
    return jnp.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)


def _yarn_attention_factor(settings: RopeConfig) -> float:
    if settings.attention_factor is not None:
        return settings.attention_factor
    if settings.mscale and settings.mscale_all_dim:
        over = yarn_magnitude(settings.factor, settings.mscale_all_dim)
        return yarn_magnitude(settings.factor, settings.mscale) / over
    return yarn_magnitude(settings.factor)


def _turn(first, second, cos, sin) -> list[jax.Array]:
    return [first * cos - second * sin, second * cos + first * sin]
