"""Mixture of experts of the DeepSeek-V3 family: routing, experts, a shared expert.

DeepSeek-AI, "DeepSeek-V3" (2024), auxiliary-loss-free balancing with node-limited
routing: sigmoid scores, a learned correction that acts on the choice only, groups of
experts ranked by their two best, and one gated MLP that every token passes.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hybridcache_jax.configs.deepseek_moe import RoutingConfig
from hybridcache_jax.models.modules import GatedMLP, normal_param, project, swiglu
from hybridcache_jax.models.moe import mix_experts
from hybridcache_jax.models.recipes import Recipe, stacked

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


class Experts(nnx.Module):
    """The experts' projections, stacked.

    Attributes:
      gate_up_proj: ``[E, 2 * inner, hidden]``, rows of the gate first.
      down_proj: ``[E, hidden, inner]``.
    """

    def __init__(
        self, count: int, hidden: int, inner: int, *, rngs: nnx.Rngs, param_dtype
    ):
        self.gate_up_proj = normal_param(rngs, (count, 2 * inner, hidden), param_dtype)
        self.down_proj = normal_param(rngs, (count, hidden, inner), param_dtype)

    def __call__(
        self, x: jax.Array, chosen: jax.Array, weights: jax.Array
    ) -> jax.Array:
        """Weighted sum of the chosen experts of ``x [..., hidden]``; float32."""
        return mix_experts(
            x,
            chosen,
            weights,
            jnp.swapaxes(self.gate_up_proj[...], 1, 2),
            jnp.swapaxes(self.down_proj[...], 1, 2),
            lambda rows: swiglu(*jnp.split(rows, 2, axis=-1)),
        )


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


def expert_recipes(
    prefix: str,
    stored: str,
    count: int,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> dict[str, Recipe]:
    """How :class:`Experts` are made of one tensor per expert and projection.

    Args:
      prefix: of the parameters, for example ``"layers.1.mlp.experts"``.
      stored: prefix of the stored tensors; the number of the expert follows.
      count: number of experts.
      names: stored names of the gate, up and down projections.
    """
    gate, up, down = (
        [f"{stored}.{expert}.{name}.weight" for expert in range(count)]
        for name in names
    )
    return {
        f"{prefix}.gate_up_proj": Recipe((*gate, *up), _gates_over_ups),
        f"{prefix}.down_proj": stacked(down),
    }


def _gates_over_ups(tensors: list[np.ndarray]) -> np.ndarray:
    """``[E, 2 * inner, hidden]`` of the gates of all experts, then their ups."""
    half = len(tensors) // 2
    return np.concatenate([np.stack(tensors[:half]), np.stack(tensors[half:])], axis=1)
