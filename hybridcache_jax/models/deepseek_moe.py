"""Mixture of experts of the DeepSeek-V3 family: routing, experts, a shared expert.

DeepSeek-AI, "DeepSeek-V3" (2024), auxiliary-loss-free balancing with node-limited
routing: sigmoid scores, a learned correction that acts on the choice only, groups of
experts ranked by their two best, and one gated MLP that every token passes.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.configs.deepseek_moe import RoutingConfig
from hybridcache_jax.models.modules import GatedMLP, normal_param, project, swiglu
from hybridcache_jax.models.moe import Experts

_TINY = 1e-20


class Router(nnx.Module):
    """Chooses experts and their weights, in float32.

    Attributes:
      weight: ``[E, hidden]``.
      e_score_correction_bias: ``[E]``, added to the scores for the choice only.
    """

    def __init__(self, settings: RoutingConfig, hidden: int, *, rngs: nnx.Rngs):
        count = settings.num_experts
        self.settings = settings
        self.weight = normal_param(rngs, (count, hidden), jnp.float32)
        self.e_score_correction_bias = nnx.Param(jnp.zeros((count,), jnp.float32))

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Experts of each token and their weights.

        Args:
          x: ``[..., hidden]`` float32.

        Returns:
          ``[..., k]`` int32 and ``[..., k]`` float32.
        """
        settings = self.settings
        scores = jax.nn.sigmoid(project(x, self.weight[...]))
        ranked = scores + self.e_score_correction_bias[...]
        if settings.chosen_groups < settings.num_groups:
            ranked = jnp.where(self._allowed(ranked), ranked, -jnp.inf)
        _, chosen = jax.lax.top_k(ranked, settings.experts_per_token)
        weights = jnp.take_along_axis(scores, chosen, axis=-1)
        if settings.normalize:
            weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + _TINY)
        return chosen, weights * settings.scaling

    def _allowed(self, ranked: jax.Array) -> jax.Array:
        """Which experts belong to the chosen groups: ``[..., E]`` bool."""
        settings = self.settings
        groups = ranked.reshape(*ranked.shape[:-1], settings.num_groups, -1)
        two_best, _ = jax.lax.top_k(groups, 2)
        _, best = jax.lax.top_k(jnp.sum(two_best, axis=-1), settings.chosen_groups)
        chosen = jnp.any(jax.nn.one_hot(best, settings.num_groups, dtype=bool), -2)
        return jnp.repeat(chosen, groups.shape[-1], axis=-1)


class DeepseekMoE(nnx.Module):
    """Routed experts plus shared ones.

    Args:
      settings: routing and widths.
      hidden: width of the residual stream.
    """

    def __init__(
        self, settings: RoutingConfig, hidden: int, *, rngs: nnx.Rngs, param_dtype
    ):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        self.gate = Router(settings, hidden, rngs=rngs)
        self.experts = Experts(settings.num_experts, hidden, settings.inner, **options)
        self.shared_experts = GatedMLP(
            hidden,
            settings.inner * settings.shared_experts,
            activation=swiglu,
            **options,
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps ``x [..., hidden]`` float32 to the same shape."""
        return self.experts(x, *self.gate(x)) + self.shared_experts(x)
