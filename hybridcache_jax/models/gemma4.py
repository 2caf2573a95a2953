"""Gemma 4 text decoder in Flax NNX, talking to a cache view.

Google DeepMind, "Gemma 4" (2026), as published in the Hugging Face checkpoints.  It
differs from Gemma 3 in plain norms, values that are normed too, no factor on attention
scores, larger heads with a partial rotary embedding in full layers, last layers that
read the keys and values of earlier ones, an embedding of each token for each layer,
a learned factor on each layer's output, and experts beside the MLP in some models.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.configs.gemma4 import Gemma4Config
from hybridcache_jax.configs.windowed import FULL, SLIDING
from hybridcache_jax.models import rope
from hybridcache_jax.models.decoder import CausalDecoder
from hybridcache_jax.models.gemma4_router import Router
from hybridcache_jax.models.modules import (
    Embedding,
    GatedMLP,
    Linear,
    RMSNorm,
    geglu,
    soft_cap,
    unit_rms,
)
from hybridcache_jax.models.moe import Experts
from hybridcache_jax.models.protocol import CacheView


class Attention(nnx.Module):
    """Grouped-query attention whose keys and values live in the cache.

    A layer that reads the keys and values of another has neither projections nor norms
    for them.
    """

    def __init__(self, config: Gemma4Config, layer: int, *, rngs, param_dtype):
        kind = config.layer_types[layer]
        kv_heads, dim = config.heads(kind)
        hidden, queries = config.hidden_size, config.num_heads * dim
        options = {
            "rngs": rngs,
            "param_dtype": param_dtype,
            "use_bias": config.attention_bias,
        }
        self.config = config
        self.head_dim = dim
        self.shared = config.kv_owners[layer] is not None
        self.q_proj = Linear(hidden, queries, **options)
        self.q_norm = _norm(config, dim, param_dtype)
        self.o_proj = Linear(queries, hidden, **options)
        if not self.shared:
            self.k_proj = Linear(hidden, kv_heads * dim, **options)
            self.k_norm = _norm(config, dim, param_dtype)
            joint = kind == FULL and config.keys_as_values
            self.v_proj = None if joint else Linear(hidden, kv_heads * dim, **options)

    def __call__(
        self,
        x: jax.Array,
        view: CacheView,
        layer: int,
        rotation: tuple[jax.Array, jax.Array],
    ) -> tuple[jax.Array, CacheView]:
        """Appends this step's keys and values, if it has its own, then attends.

        Args:
          x: ``[B, T, hidden]`` float32, normed.
          view: the cache.
          layer: 0-based index of this layer in the model.
          rotation: cosine and sine, ``[B, T, 1, head_dim // 2]``, of this layer's
            kind.

        Returns:
          ``[B, T, hidden]`` float32, and the view with the entries appended.
        """
        heads = (*x.shape[:2], -1, self.head_dim)
        q = rope.rotate(self.q_norm(self.q_proj(x).reshape(heads)), *rotation)
        if not self.shared:
            k = self.k_proj(x).reshape(heads)
            v = k if self.v_proj is None else self.v_proj(x).reshape(heads)
            view = view.append(
                layer,
                k=rope.rotate(self.k_norm(k), *rotation),
                v=unit_rms(v, self.config.rms_norm_eps),
            )
        out = view.attend(layer, q, scale=1.0)
        return self.o_proj(out.reshape(*x.shape[:2], -1)), view


class Block(nnx.Module):
    """One decoder layer: attention, MLP with or without experts, per-layer input."""

    def __init__(self, config: Gemma4Config, layer: int, *, rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden, small = config.hidden_size, config.per_layer_size
        wide = config.wide_shared_mlp and config.kv_owners[layer] is not None
        inner = config.intermediate_size * (2 if wide else 1)

        def norm() -> RMSNorm:
            return _norm(config, hidden, param_dtype)

        self.input_layernorm = norm()
        self.self_attn = Attention(config, layer, **options)
        self.post_attention_layernorm = norm()
        self.pre_feedforward_layernorm = norm()
        self.mlp = GatedMLP(hidden, inner, activation=geglu, **options)
        self.post_feedforward_layernorm = norm()
        self.layer_scalar = nnx.Param(jnp.ones((1,), param_dtype))
        self.routed = config.experts is not None
        if config.experts is not None:
            self.router = Router(config, config.experts, **options)
            self.experts = Experts(
                config.experts.count,
                hidden,
                config.experts.inner,
                activation=geglu,
                **options,
            )
            self.post_feedforward_layernorm_1 = norm()
            self.post_feedforward_layernorm_2 = norm()
            self.pre_feedforward_layernorm_2 = norm()
        if small:
            self.per_layer_input_gate = Linear(hidden, small, **options)
            self.per_layer_projection = Linear(small, hidden, **options)
            self.post_per_layer_input_norm = norm()

    def __call__(
        self,
        x: jax.Array,
        view: CacheView,
        layer: int,
        rotation: tuple[jax.Array, jax.Array],
        per_layer: jax.Array | None,
    ) -> tuple[jax.Array, CacheView]:
        """Runs the layer.

        Args:
          x: ``[B, T, hidden]`` float32.
          view: the cache.
          layer: 0-based index of this layer in the model.
          rotation: of this layer's kind, see :class:`Attention`.
          per_layer: ``[B, T, per_layer_size]`` float32, this layer's input of each
            token, or None in models without.

        Returns:
          ``[B, T, hidden]`` float32, and the view after.
        """
        attended, view = self.self_attn(self.input_layernorm(x), view, layer, rotation)
        x = x + self.post_attention_layernorm(attended)
        mixed = self.mlp(self.pre_feedforward_layernorm(x))
        if self.routed:
            mixed = self.post_feedforward_layernorm_1(mixed) + self._mix(x)
        x = x + self.post_feedforward_layernorm(mixed)
        if per_layer is not None:
            gated = geglu(self.per_layer_input_gate(x), per_layer)
            added = self.per_layer_projection(gated)
            x = x + self.post_per_layer_input_norm(added)
        return x * self.layer_scalar[...].astype(jnp.float32), view

    def _mix(self, x: jax.Array) -> jax.Array:
        """The experts' part; the router sees the states before their norm."""
        mixed = self.experts(self.pre_feedforward_layernorm_2(x), *self.router(x))
        return self.post_feedforward_layernorm_2(mixed)


class Gemma4(CausalDecoder):
    """Gemma 4 text decoder.

    Args:
      config: the model.
      rngs: source of the random initial parameters.
      param_dtype: dtype in which parameters are kept and multiplied.
    """

    def __init__(
        self, config: Gemma4Config, *, rngs: nnx.Rngs, param_dtype=jnp.float32
    ):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden = config.hidden_size
        small, count = config.per_layer_size, config.num_layers
        super().__init__(
            config,
            lambda layer: Block(config, layer, **options),
            **options,
        )
        self.config = config
        if small:
            self.embed_tokens_per_layer = Embedding(
                config.per_layer_vocab, count * small, **options
            )
            self.per_layer_model_projection = Linear(hidden, count * small, **options)
            self.per_layer_projection_norm = _norm(config, small, param_dtype)

    def __call__(
        self, tokens: jax.Array, view: CacheView
    ) -> tuple[jax.Array, CacheView]:
        """Runs one step: any number of tokens per sequence.

        Args:
          tokens: ``[B, T]`` int32 ids at ``view.positions``.
          view: the cache.

        Returns:
          Hidden states after the final norm, ``[B, T, hidden]`` float32, and the
          view with the entries of these tokens in every layer that owns some.
        """
        config = self.config
        rotations = {
            kind: rope.rotation(
                view.positions, *rope.frequencies(settings, config.heads(kind)[1])
            )
            for kind, settings in (
                (SLIDING, config.rope_sliding),
                (FULL, config.rope_full),
            )
        }
        x = self.embed_tokens(tokens) * jnp.float32(math.sqrt(config.hidden_size))
        inputs = self._per_layer(tokens, x) if config.per_layer_size else None
        for layer, block in enumerate(self.layers):
            own = None if inputs is None else inputs[:, :, layer]
            rotation = rotations[config.layer_types[layer]]
            x, view = block(x, view, layer, rotation, own)
        return self.norm(x), view

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Scores as of ``CausalDecoder.logits``, soft-capped if the model is."""
        return soft_cap(super().logits(hidden), self.config.final_logit_softcapping)

    def _per_layer(self, tokens: jax.Array, x: jax.Array) -> jax.Array:
        """Each layer's input: of the token itself, and of its embedding projected.

        Args:
          tokens: ``[B, T]`` int32.
          x: ``[B, T, hidden]`` float32, their scaled embeddings.

        Returns:
          ``[B, T, num_layers, per_layer_size]`` float32.
        """
        size = self.config.per_layer_size
        shape = (*tokens.shape, self.config.num_layers, size)
        own = self.embed_tokens_per_layer(tokens).reshape(shape) * math.sqrt(size)
        seen = self.per_layer_model_projection(x) / math.sqrt(x.shape[-1])
        seen = self.per_layer_projection_norm(seen.reshape(shape))
        return (seen + own) / math.sqrt(2)


def _norm(config: Gemma4Config, dim: int, param_dtype) -> RMSNorm:
    return RMSNorm(dim, config.rms_norm_eps, param_dtype=param_dtype)
