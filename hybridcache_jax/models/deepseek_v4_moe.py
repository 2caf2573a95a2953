"""Mixture of experts of DeepSeek-V4.

DeepSeek-AI, "DeepSeek-V4" (2026).  Scores are positive functions of router logits; a
learned correction acts on the choice only (Wang et al., "Auxiliary-Loss-Free Load
Balancing", 2024).  The first layers choose by token id instead (Roller et al., "Hash
Layers", 2021).  Gate and up of every expert are clamped; one expert is shared.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.configs.deepseek_v4 import DeepseekV4Config
from hybridcache_jax.models.modules import GatedMLP, normal_param, project, swiglu
from hybridcache_jax.models.moe import Experts

_TINY = 1e-20


class ExpertTable(nnx.Variable):
    """Experts by token id: integers, loaded and never trained."""


class Router(nnx.Module):
    """Chooses the experts of each token, in float32.

    Args:
      config: the model.
      hashed: whether the choice is a function of the token id.

    Attributes:
      weight: ``[E, hidden]``.
      tid2eid: ``[vocab_size, k]`` int32, if hashed.
      e_score_correction_bias: ``[E]`` added to the scores for the choice, if not.
    """

    def __init__(self, config: DeepseekV4Config, *, hashed: bool, rngs: nnx.Rngs):
        self.config = config
        count, k = config.num_experts, config.experts_per_token
        self.weight = normal_param(rngs, (count, config.hidden_size), jnp.float32)
        if hashed:
            # Checkpoints bring a table; a model to be trained needs one that spreads.
            spread = jnp.arange(config.vocab_size * k, dtype=jnp.int32) % count
            self.tid2eid = ExpertTable(spread.reshape(-1, k))
        else:
            self.e_score_correction_bias = nnx.Param(jnp.zeros((count,), jnp.float32))
        self.hashed = hashed

    def __call__(self, x: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Experts of each token and their weights.

        Args:
          x: ``[B, T, hidden]`` float32.
          tokens: ``[B, T]`` int32 ids; any number where a token is padding.

        Returns:
          ``[B, T, k]`` int32 and ``[B, T, k]`` float32.
        """
        config = self.config
        logits = project(x, self.weight[...])
        if config.scoring == "sigmoid":
            scores = jax.nn.sigmoid(logits)
        else:
            scores = jnp.sqrt(jax.nn.softplus(logits))
        if self.hashed:
            chosen = jnp.take(self.tid2eid[...], tokens, axis=0, mode="clip")
        else:
            ranked = scores + self.e_score_correction_bias[...]
            _, chosen = jax.lax.top_k(ranked, config.experts_per_token)
        weights = jnp.take_along_axis(scores, chosen, axis=-1)
        weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + _TINY)
        return chosen, weights * config.routed_scaling_factor


class MoE(nnx.Module):
    """Routed experts and the shared one.

    Args:
      config: the model.
      hashed: whether tokens are routed by their ids.
    """

    def __init__(
        self, config: DeepseekV4Config, *, hashed: bool, rngs: nnx.Rngs, param_dtype
    ):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        self.gate = Router(config, hashed=hashed, rngs=rngs)
        widths = (config.hidden_size, config.moe_intermediate_size)
        clamped = functools.partial(clamped_swiglu, limit=config.swiglu_limit)
        self.experts = Experts(
            config.num_experts, *widths, activation=clamped, **options
        )
        self.shared_experts = GatedMLP(*widths, activation=clamped, **options)

    def __call__(self, x: jax.Array, tokens: jax.Array) -> jax.Array:
        """Maps ``x [B, T, hidden]`` float32 of ``tokens [B, T]`` to the same shape."""
        return self.experts(x, *self.gate(x, tokens)) + self.shared_experts(x)


def clamped_swiglu(gate: jax.Array, up: jax.Array, *, limit: float) -> jax.Array:
    """:func:`swiglu` of a gate held below ``limit`` and an up held within it."""
    return swiglu(jnp.minimum(gate, limit), jnp.clip(up, -limit, limit))
