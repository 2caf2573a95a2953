"""The router of Gemma 4's experts: a softmax over normed states."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.configs.gemma4 import Gemma4Config, Gemma4Experts
from hybridcache_jax.models.modules import Linear, unit_rms


class Router(nnx.Module):
    """Chooses experts by softmax over all, and weighs them by their share and a scale.

    Attributes:
      scale: ``[hidden]``, factor on the normed state.
      proj: ``[E, hidden]``.
      per_expert_scale: ``[E]``, factor on the weights of the chosen.
    """

    def __init__(
        self, config: Gemma4Config, settings: Gemma4Experts, *, rngs, param_dtype
    ):
        hidden = config.hidden_size
        self.eps = config.rms_norm_eps
        self.per_token = settings.per_token
        self.scale = nnx.Param(jnp.ones((hidden,), param_dtype))
        self.proj = Linear(hidden, settings.count, rngs=rngs, param_dtype=param_dtype)
        self.per_expert_scale = nnx.Param(jnp.ones((settings.count,), param_dtype))

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Experts of each token and their weights.

        Args:
          x: ``[..., hidden]`` float32.

        Returns:
          ``[..., k]`` int32 and ``[..., k]`` float32.
        """
        x = unit_rms(x, self.eps) * self.scale[...].astype(jnp.float32)
        scores = self.proj(x * (1 / math.sqrt(x.shape[-1])))
        shares, chosen = jax.lax.top_k(jax.nn.softmax(scores, axis=-1), self.per_token)
        shares = shares / jnp.sum(shares, axis=-1, keepdims=True)
        scales = jnp.take(self.per_expert_scale[...].astype(jnp.float32), chosen)
        return chosen, shares * scales
