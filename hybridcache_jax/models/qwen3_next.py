"""Qwen3-Next decoder in Flax NNX, talking to a cache view.

Qwen Team, "Qwen3-Next" (2025), as published in the Hugging Face checkpoints: three
layers of Gated DeltaNet (Yang et al., 2024), then one of grouped-query attention whose
output is gated, everywhere with zero-centred RMS norms and a mixture of many small
experts beside one that every token passes.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.configs.qwen3_next import SPARSE, Qwen3NextConfig
from hybridcache_jax.configs.recurrent import LINEAR
from hybridcache_jax.models import rope
from hybridcache_jax.models.decoder import CausalDecoder
from hybridcache_jax.models.gated_delta_net import GatedDeltaNet
from hybridcache_jax.models.modules import (
    GatedMLP,
    Linear,
    RMSNorm,
    swiglu,
)
from hybridcache_jax.models.moe import Experts, expert_recipes
from hybridcache_jax.models.parameters import parameter_shapes
from hybridcache_jax.models.protocol import CacheView
from hybridcache_jax.models.recipes import Recipe, renamed


class GatedAttention(nnx.Module):
    """Grouped-query attention whose output is gated per element.

    Attributes:
      q_proj: to each head's query and, behind it, its gate.
    """

    def __init__(self, config: Qwen3NextConfig, *, rngs: nnx.Rngs, param_dtype):
        hidden, dim, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
        options = {
            "rngs": rngs,
            "param_dtype": param_dtype,
            "use_bias": config.attention_bias,
        }
        self.config = config
        self.q_proj = Linear(hidden, config.num_heads * 2 * dim, **options)
        self.k_proj = Linear(hidden, config.num_kv_heads * dim, **options)
        self.v_proj = Linear(hidden, config.num_kv_heads * dim, **options)
        self.o_proj = Linear(config.num_heads * dim, hidden, **options)
        self.q_norm = RMSNorm(dim, eps, offset=1, param_dtype=param_dtype)
        self.k_norm = RMSNorm(dim, eps, offset=1, param_dtype=param_dtype)

    def __call__(
        self,
        x: jax.Array,
        view: CacheView,
        layer: int,
        rotation: tuple[jax.Array, jax.Array],
    ) -> tuple[jax.Array, CacheView]:
        """Appends this step's keys and values, then attends.

        Args:
          x: ``[B, T, hidden]`` float32, normed.
          view: the cache.
          layer: 0-based index of this layer in the model.
          rotation: cosine and sine ``[B, T, 1, rotated // 2]``.

        Returns:
          ``[B, T, hidden]`` float32, and the view with the entries appended.
        """
        dim = self.config.head_dim
        heads = (*x.shape[:2], -1, dim)
        q, gate = jnp.split(self.q_proj(x).reshape(*x.shape[:2], -1, 2 * dim), 2, -1)
        k = self.k_norm(self.k_proj(x).reshape(heads))
        view = view.append(
            layer, k=rope.rotate_first(k, *rotation), v=self.v_proj(x).reshape(heads)
        )
        q = rope.rotate_first(self.q_norm(q), *rotation)
        out = view.attend(layer, q, scale=dim**-0.5) * jax.nn.sigmoid(gate)
        return self.o_proj(out.reshape(*x.shape[:2], -1)), view


class SparseMLP(nnx.Module):
    """Routed experts, and one gated expert that every token passes.

    Attributes:
      gate: the router; softmax over all experts, then the best of them.
      shared_expert_gate: to the logit of how much of the shared expert is added.
    """

    def __init__(self, config: Qwen3NextConfig, *, rngs: nnx.Rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden = config.hidden_size
        self.config = config
        self.gate = Linear(hidden, config.num_experts, **options)
        self.experts = Experts(
            config.num_experts, hidden, config.expert_size, **options
        )
        self.shared_expert = GatedMLP(
            hidden, config.shared_expert_size, activation=swiglu, **options
        )
        self.shared_expert_gate = Linear(hidden, 1, **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps ``x [..., hidden]`` float32 to the same shape."""
        scores = jax.nn.softmax(self.gate(x), axis=-1)
        weights, chosen = jax.lax.top_k(scores, self.config.experts_per_token)
        if self.config.normalize_experts:
            weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
        shared = jax.nn.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        return self.experts(x, chosen, weights) + shared


class Block(nnx.Module):
    """One decoder layer: a norm before attention, a norm before MLP or experts."""

    def __init__(self, config: Qwen3NextConfig, layer: int, *, rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden, eps = config.hidden_size, config.rms_norm_eps
        norm = {"offset": 1, "param_dtype": param_dtype}
        self.linear = config.layer_types[layer] == LINEAR
        self.input_layernorm = RMSNorm(hidden, eps, **norm)
        if self.linear:
            self.linear_attn = GatedDeltaNet(config, **options)
        else:
            self.self_attn = GatedAttention(config, **options)
        self.post_attention_layernorm = RMSNorm(hidden, eps, **norm)
        if config.mlp_types[layer] == SPARSE:
            self.mlp = SparseMLP(config, **options)
        else:
            self.mlp = GatedMLP(
                hidden, config.intermediate_size, activation=swiglu, **options
            )

    def __call__(
        self,
        x: jax.Array,
        view: CacheView,
        layer: int,
        rotation: tuple[jax.Array, jax.Array],
    ) -> tuple[jax.Array, CacheView]:
        """Runs the layer on ``x [B, T, hidden]``; arguments as of the attention."""
        normed = self.input_layernorm(x)
        if self.linear:
            mixed, view = self.linear_attn(normed, view, layer)
        else:
            mixed, view = self.self_attn(normed, view, layer, rotation)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), view


class Qwen3Next(CausalDecoder):
    """Qwen3-Next decoder.

    Args:
      config: the model.
      rngs: source of the random initial parameters.
      param_dtype: dtype in which parameters are kept and multiplied, but for decay
        rates and their bias, which stay float32.
    """

    def __init__(
        self, config: Qwen3NextConfig, *, rngs: nnx.Rngs, param_dtype=jnp.float32
    ):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        super().__init__(
            config,
            lambda layer: Block(config, layer, **options),
            norm_offset=1,
            **options,
        )
        self.config = config

    def __call__(
        self, tokens: jax.Array, view: CacheView
    ) -> tuple[jax.Array, CacheView]:
        """Runs one step: any number of tokens per sequence.

        Args:
          tokens: ``[B, T]`` int32 ids at ``view.positions``.
          view: the cache.

        Returns:
          Hidden states after the final norm, ``[B, T, hidden]`` float32, and the
          view with the entries and states of these tokens in every layer.
        """
        config = self.config
        rotation = rope.rotation(
            view.positions, *rope.frequencies(config.rope, config.head_dim)
        )
        x = self.embed_tokens(tokens)
        for layer, block in enumerate(self.layers):
            x, view = block(x, view, layer, rotation)
        return self.norm(x), view


def published_names(config: Qwen3NextConfig) -> dict[str, Recipe]:
    """How parameters are made of published tensors: experts are stored one by one."""
    recipes = {name: renamed(name) for name in parameter_shapes(Qwen3Next, config)}
    for layer, kind in enumerate(config.mlp_types):
        if kind == SPARSE:
            prefix = f"layers.{layer}.mlp.experts"
            recipes |= expert_recipes(prefix, prefix, config.num_experts)
    return recipes
