"""MiMo-V2-Flash decoder in Flax NNX, talking to a cache view.

Xiaomi, "MiMo-V2-Flash" (2026): window layers with a learned sink per query head and
twice the key/value heads of full layers; keys and values of different width; values
scaled before they are stored; and a mixture of experts routed as in DeepSeek-V3,
without shared experts.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.configs.deepseek_moe import RoutingConfig
from hybridcache_jax.configs.mimo_v2_flash import SPARSE, MimoV2FlashConfig
from hybridcache_jax.configs.windowed import FULL, SLIDING
from hybridcache_jax.models import rope
from hybridcache_jax.models.decoder import CausalDecoder
from hybridcache_jax.models.deepseek_moe import Router
from hybridcache_jax.models.modules import (
    GatedMLP,
    Linear,
    RMSNorm,
    normal_param,
    swiglu,
)
from hybridcache_jax.models.moe import Experts, expert_recipes
from hybridcache_jax.models.parameters import parameter_shapes
from hybridcache_jax.models.protocol import CacheView
from hybridcache_jax.models.recipes import Recipe, renamed


class Attention(nnx.Module):
    """Grouped-query attention whose keys and values live in the cache.

    Attributes:
      sinks: ``[num_heads]`` in window layers, None in full ones.
    """

    def __init__(self, config: MimoV2FlashConfig, kind: str, *, rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden, heads = config.hidden_size, config.num_heads
        local = kind == SLIDING
        kv_heads = config.window_kv_heads if local else config.num_kv_heads
        self.config = config
        self.q_proj = Linear(hidden, heads * config.head_dim, **options)
        self.k_proj = Linear(hidden, kv_heads * config.head_dim, **options)
        self.v_proj = Linear(hidden, kv_heads * config.value_dim, **options)
        self.o_proj = Linear(heads * config.value_dim, hidden, **options)
        self.sinks = normal_param(rngs, (heads,), param_dtype) if local else None

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
          rotation: cosine and sine, ``[B, T, 1, rotated // 2]``, of this layer's
            kind.

        Returns:
          ``[B, T, hidden]`` float32, and the view with the entries appended.
        """
        config, tokens = self.config, x.shape[:2]
        q = self.q_proj(x).reshape(*tokens, -1, config.head_dim)
        k = self.k_proj(x).reshape(*tokens, -1, config.head_dim)
        v = self.v_proj(x).reshape(*tokens, -1, config.value_dim)
        sinks = None if self.sinks is None else self.sinks[...].astype(jnp.float32)
        view = view.append(
            layer, k=rope.rotate_first(k, *rotation), v=v * config.value_scale
        )
        out = view.attend(
            layer,
            rope.rotate_first(q, *rotation),
            scale=config.head_dim**-0.5,
            sinks=sinks,
        )
        return self.o_proj(out.reshape(*tokens, -1)), view


class RoutedExperts(nnx.Module):
    """Experts that tokens are routed to, none that all tokens pass."""

    def __init__(self, settings: RoutingConfig, hidden: int, *, rngs, param_dtype):
        self.gate = Router(settings, hidden, rngs=rngs)
        self.experts = Experts(
            settings.num_experts,
            hidden,
            settings.inner,
            rngs=rngs,
            param_dtype=param_dtype,
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps ``x [..., hidden]`` float32 to the same shape."""
        return self.experts(x, *self.gate(x))


class Block(nnx.Module):
    """One decoder layer: a norm before attention, a norm before MLP or experts."""

    def __init__(self, config: MimoV2FlashConfig, layer: int, *, rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, param_dtype=param_dtype)
        self.self_attn = Attention(config, config.layer_types[layer], **options)
        self.post_attention_layernorm = RMSNorm(hidden, eps, param_dtype=param_dtype)
        if config.mlp_layer_types[layer] == SPARSE:
            self.mlp = RoutedExperts(config.routing, hidden, **options)
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
        attended, view = self.self_attn(self.input_layernorm(x), view, layer, rotation)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), view


class MimoV2Flash(CausalDecoder):
    """MiMo-V2-Flash decoder.

    Args:
      config: the model.
      rngs: source of the random initial parameters.
      param_dtype: dtype in which parameters are kept and multiplied, but for those of
        the router, which stay float32.
    """

    def __init__(
        self, config: MimoV2FlashConfig, *, rngs: nnx.Rngs, param_dtype=jnp.float32
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
        rotations = {
            kind: rope.rotation(
                view.positions, *rope.frequencies(settings, config.head_dim)
            )
            for kind, settings in (
                (SLIDING, config.rope_sliding),
                (FULL, config.rope_full),
            )
        }
        x = self.embed_tokens(tokens)
        for layer, block in enumerate(self.layers):
            x, view = block(x, view, layer, rotations[config.layer_types[layer]])
        return self.norm(x), view


def published_names(config: MimoV2FlashConfig) -> dict[str, Recipe]:
    """How parameters are made of published tensors.

    Experts are stored one by one, and sinks under another name.
    """
    recipes = {name: renamed(name) for name in parameter_shapes(MimoV2Flash, config)}
    for layer in range(config.num_layers):
        if config.layer_types[layer] == SLIDING:
            attention = f"layers.{layer}.self_attn"
            recipes[f"{attention}.sinks"] = renamed(f"{attention}.attention_sink_bias")
        if config.mlp_layer_types[layer] == SPARSE:
            experts = f"layers.{layer}.mlp.experts"
            recipes |= expert_recipes(experts, experts, config.routing.num_experts)
    return recipes
