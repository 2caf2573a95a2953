"""Llama 4 text decoder in Flax NNX, talking to a cache view.

Meta AI, "Llama 4" (2025): layers that attend within chunks rotate queries and keys
and norm them without weights afterwards; full layers do neither, and make their
queries grow with their position instead (Nakanishi, "Scalable-Softmax Is Superior for
Attention", 2025).  An expert's weight scales its input, and one shared expert sees
every token.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.configs.llama4 import Llama4Config
from hybridcache_jax.models import rope
from hybridcache_jax.models.decoder import CausalDecoder
from hybridcache_jax.models.modules import (
    GatedMLP,
    Linear,
    RMSNorm,
    normal_param,
    swiglu,
    unit_rms,
)
from hybridcache_jax.models.moe import mix_experts
from hybridcache_jax.models.protocol import CacheView


class Attention(nnx.Module):
    """Grouped-query attention whose keys and values live in the cache."""

    def __init__(self, config: Llama4Config, layer: int, *, rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden, dim = config.hidden_size, config.head_dim
        self.config = config
        self.roped = config.roped[layer]
        self.q_proj = Linear(hidden, config.num_heads * dim, **options)
        self.k_proj = Linear(hidden, config.num_kv_heads * dim, **options)
        self.v_proj = Linear(hidden, config.num_kv_heads * dim, **options)
        self.o_proj = Linear(config.num_heads * dim, hidden, **options)

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
          rotation: cosine and sine, ``[B, T, 1, head_dim // 2]``.

        Returns:
          ``[B, T, hidden]`` float32, and the view with the entries appended.
        """
        config = self.config
        heads = (*x.shape[:2], -1, config.head_dim)
        q = self.q_proj(x).reshape(heads)
        k = self.k_proj(x).reshape(heads)
        if self.roped:
            q = rope.rotate_interleaved(q, *rotation)
            k = rope.rotate_interleaved(k, *rotation)
            if config.qk_norm:
                q, k = (
                    unit_rms(q, config.rms_norm_eps),
                    unit_rms(k, config.rms_norm_eps),
                )
        elif config.temperature:
            q = q * _temperature(config, view.positions)[..., None, None]
        view = view.append(layer, k=k, v=self.v_proj(x).reshape(heads))
        out = view.attend(layer, q, scale=config.head_dim**-0.5)
        return self.o_proj(out.reshape(*x.shape[:2], -1)), view


class Experts(nnx.Module):
    """The experts' projections, stacked, inputs first.

    Attributes:
      gate_up_proj: ``[E, hidden, 2 * inner]``, columns of the gate first.
      down_proj: ``[E, inner, hidden]``.
    """

    def __init__(self, config: Llama4Config, *, rngs, param_dtype):
        count, hidden = config.num_experts, config.hidden_size
        inner = config.intermediate_size
        self.gate_up_proj = normal_param(rngs, (count, hidden, 2 * inner), param_dtype)
        self.down_proj = normal_param(rngs, (count, inner, hidden), param_dtype)

    def __call__(
        self, x: jax.Array, chosen: jax.Array, weights: jax.Array
    ) -> jax.Array:
        """Sum of the chosen experts' outputs for their weighted inputs.

        Args:
          x: ``[..., hidden]`` float32.
          chosen: ``[..., k]`` int32.
          weights: ``[..., k]`` float32.

        Returns:
          ``[..., hidden]`` float32.
        """
        # One row per choice: each expert sees the token scaled by its own weight.
        outputs = mix_experts(
            x[..., None, :] * weights[..., None],
            chosen[..., None],
            jnp.ones_like(weights)[..., None],
            self.gate_up_proj[...],
            self.down_proj[...],
            lambda rows: swiglu(*jnp.split(rows, 2, axis=-1)),
        )
        return jnp.sum(outputs, axis=-2)


class MoE(nnx.Module):
    """Routed experts plus one that every token passes."""

    def __init__(self, config: Llama4Config, *, rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden = config.hidden_size
        self.experts_per_token = config.experts_per_token
        self.router = Linear(hidden, config.num_experts, **options)
        self.experts = Experts(config, **options)
        self.shared_expert = GatedMLP(
            hidden, config.intermediate_size, activation=swiglu, **options
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps ``x [..., hidden]`` float32 to the same shape."""
        scores, chosen = jax.lax.top_k(self.router(x), self.experts_per_token)
        routed = self.experts(x, chosen, jax.nn.sigmoid(scores))
        return routed + self.shared_expert(x)


class Block(nnx.Module):
    """One decoder layer: a norm before attention, a norm before MLP or experts."""

    def __init__(self, config: Llama4Config, layer: int, *, rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, param_dtype=param_dtype)
        self.self_attn = Attention(config, layer, **options)
        self.post_attention_layernorm = RMSNorm(hidden, eps, param_dtype=param_dtype)
        if layer in config.moe_layers:
            self.feed_forward = MoE(config, **options)
        else:
            self.feed_forward = GatedMLP(
                hidden, config.dense_size, activation=swiglu, **options
            )

    def __call__(
        self,
        x: jax.Array,
        view: CacheView,
        layer: int,
        rotation: tuple[jax.Array, jax.Array],
    ) -> tuple[jax.Array, CacheView]:
        """Runs the layer on ``x [B, T, hidden]``; arguments as of the attention."""
        attended, view = self.self_attn(self.input_layernorm(x), view, layer, rotation)
        x = x + attended
        return x + self.feed_forward(self.post_attention_layernorm(x)), view


class Llama4(CausalDecoder):
    """Llama 4 text decoder.

    Args:
      config: the model.
      rngs: source of the random initial parameters.
      param_dtype: dtype in which parameters are kept and multiplied.
    """

    def __init__(
        self, config: Llama4Config, *, rngs: nnx.Rngs, param_dtype=jnp.float32
    ):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        super().__init__(
            config,
            lambda layer: Block(config, layer, **options),
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
          view with the entries of these tokens in every layer.
        """
        config = self.config
        rotation = rope.rotation(
            view.positions, *rope.frequencies(config.rope, config.head_dim)
        )
        x = self.embed_tokens(tokens)
        for layer, block in enumerate(self.layers):
            x, view = block(x, view, layer, rotation)
        return self.norm(x), view


def _temperature(config: Llama4Config, positions: jax.Array) -> jax.Array:
    """Factor on queries by position ``[B, T]``: grows with the log of the steps."""
    steps = jnp.floor((positions.astype(jnp.float32) + 1) / config.temperature_floor)
    return 1 + config.temperature * jnp.log1p(steps)
