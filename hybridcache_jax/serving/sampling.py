"""Choosing the next token: greedy, or temperature with nucleus (top-p) sampling.

Randomness depends on a row's seed and on the position alone, so a resumed sequence
draws what the cold one would have drawn, in any batch.
Nucleus sampling: Holtzman et al. 2020.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hybridcache_jax._typing import AnyArray


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """How one request samples.

    Attributes:
      temperature: 0 for greedy.
      top_p: probability mass of the nucleus, in (0, 1].
      seed: the request's seed.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self):
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be >= 0, got {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}.")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must lie in 0..2**31-1, got {self.seed}.")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SamplingInputs:
    """Sampling settings of a batch."""

    temperature: AnyArray  # [B] float32
    top_p: AnyArray  # [B] float32
    seed: AnyArray  # [B] int32


def sampling_inputs(params: Sequence[SamplingParams], batch: int) -> SamplingInputs:
    """Settings of up to ``batch`` rows; padding rows are greedy."""
    temperature, top_p = np.zeros(batch, np.float32), np.ones(batch, np.float32)
    seed = np.zeros(batch, np.int32)
    for place, row in enumerate(params):
        temperature[place], top_p[place] = row.temperature, row.top_p
        seed[place] = row.seed
    return SamplingInputs(temperature, top_p, seed)


def sample(logits: jax.Array, inputs: SamplingInputs, positions: jax.Array):
    """Draws one token per row.

    Args:
      logits: ``[B, V]`` float32.
      inputs: settings of the rows.
      positions: ``[B]`` int32, position of the token to be drawn.

    Returns:
      ``[B]`` int32.
    """
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def draw():
        drawn = jax.vmap(_draw)(
            logits, inputs.temperature, inputs.top_p, inputs.seed, positions
        )
        return jnp.where(inputs.temperature > 0, drawn, greedy)

    # Sorting a large vocabulary costs more than a small model's step.
    return jax.lax.cond(jnp.any(inputs.temperature > 0), draw, lambda: greedy)


def _draw(logits, temperature, top_p, seed, position):
    scaled = logits / jnp.where(temperature > 0, temperature, 1.0)
    order = jnp.argsort(-scaled)
    ranked = scaled[order]
    chance = jax.nn.softmax(ranked)
    before = jnp.cumsum(chance) - chance
    key = jax.random.fold_in(jax.random.key(seed), position)
    noise = jax.random.gumbel(key, ranked.shape)
    best = jnp.argmax(jnp.where(before < top_p, ranked + noise, -jnp.inf))
    return order[best].astype(jnp.int32)
