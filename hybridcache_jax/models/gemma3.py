"""Gemma 3 text decoder in Flax NNX, talking to a cache view.

Architecture: Gemma Team, "Gemma 3 Technical Report" (2025), as published in the
Hugging Face checkpoints.  Grouped-query attention with normed queries and keys,
window and full layers with rotary bases of their own, four zero-centred RMS norms
per block, a tanh-GELU gated MLP, and a head tied to the embedding.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.configs.gemma3 import Gemma3Config
from hybridcache_jax.configs.windowed import FULL, SLIDING
from hybridcache_jax.models import rope
from hybridcache_jax.models.decoder import CausalDecoder
from hybridcache_jax.models.modules import (
    GatedMLP,
    Linear,
    RMSNorm,
    geglu,
    soft_cap,
)
from hybridcache_jax.models.protocol import CacheView


class Attention(nnx.Module):
    """Grouped-query attention whose keys and values live in the cache."""

    def __init__(self, config: Gemma3Config, *, rngs, param_dtype):
        self.config = config
        hidden, dim = config.hidden_size, config.head_dim
        options = {
            "rngs": rngs,
            "param_dtype": param_dtype,
            "use_bias": config.attention_bias,
        }
        self.q_proj = Linear(hidden, config.num_heads * dim, **options)
        self.k_proj = Linear(hidden, config.num_kv_heads * dim, **options)
        self.v_proj = Linear(hidden, config.num_kv_heads * dim, **options)
        self.o_proj = Linear(config.num_heads * dim, hidden, **options)
        self.q_norm = _norm(config, dim, param_dtype)
        self.k_norm = _norm(config, dim, param_dtype)

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
          rotation: cosine and sine, ``[B, T, 1, head_dim // 2]``, of this layer's
            kind.

        Returns:
          ``[B, T, hidden]`` float32, and the view with the entries appended.
        """
        config = self.config
        heads = (*x.shape[:2], -1, config.head_dim)
        q = rope.rotate(self.q_norm(self.q_proj(x).reshape(heads)), *rotation)
        k = rope.rotate(self.k_norm(self.k_proj(x).reshape(heads)), *rotation)
        v = self.v_proj(x).reshape(heads)
        view = view.append(layer, k=k, v=v)
        out = view.attend(
            layer,
            q,
            scale=config.query_scale,
            soft_cap=config.attn_logit_softcapping,
        )
        return self.o_proj(out.reshape(*x.shape[:2], -1)), view


class Block(nnx.Module):
    """One decoder layer: norms before and after both attention and MLP."""

    def __init__(self, config: Gemma3Config, *, rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden = config.hidden_size
        self.input_layernorm = _norm(config, hidden, param_dtype)
        self.self_attn = Attention(config, **options)
        self.post_attention_layernorm = _norm(config, hidden, param_dtype)
        self.pre_feedforward_layernorm = _norm(config, hidden, param_dtype)
        self.mlp = GatedMLP(
            hidden, config.intermediate_size, activation=geglu, **options
        )
        self.post_feedforward_layernorm = _norm(config, hidden, param_dtype)

    def __call__(
        self,
        x: jax.Array,
        view: CacheView,
        layer: int,
        rotation: tuple[jax.Array, jax.Array],
    ) -> tuple[jax.Array, CacheView]:
        """Runs the layer on ``x [B, T, hidden]``; arguments as of the attention."""
        attended, view = self.self_attn(self.input_layernorm(x), view, layer, rotation)
        x = x + self.post_attention_layernorm(attended)
        mixed = self.mlp(self.pre_feedforward_layernorm(x))
        return x + self.post_feedforward_layernorm(mixed), view


class Gemma3(CausalDecoder):
    """Gemma 3 text decoder.

    ``nnx.split(model)`` gives a hashable graph definition and a pytree of
    parameters, so that a step can be a pure jitted function of parameters, tokens
    and view.

    Args:
      config: the model.
      rngs: source of the random initial parameters.
      param_dtype: dtype in which parameters are kept and multiplied.
    """

    def __init__(
        self, config: Gemma3Config, *, rngs: nnx.Rngs, param_dtype=jnp.float32
    ):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        super().__init__(
            config,
            lambda layer: Block(config, **options),
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
        x = self.embed_tokens(tokens) * jnp.float32(math.sqrt(config.hidden_size))
        for layer, block in enumerate(self.layers):
            x, view = block(x, view, layer, rotations[config.layer_types[layer]])
        return self.norm(x), view

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Scores as of ``CausalDecoder.logits``, soft-capped if the model is."""
        return soft_cap(super().logits(hidden), self.config.final_logit_softcapping)


def _norm(config: Gemma3Config, dim: int, param_dtype) -> RMSNorm:
    return RMSNorm(dim, config.rms_norm_eps, offset=1, param_dtype=param_dtype)
