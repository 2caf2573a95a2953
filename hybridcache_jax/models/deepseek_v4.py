"""DeepSeek-V4 decoder in Flax NNX, talking to a cache view.

DeepSeek-AI, "DeepSeek-V4" (2026), as published in its checkpoints and inference code:
hyper-connected streams, window attention with compressed entries, a mixture of experts
in every layer.  The draft layers for multi-token prediction are not part of it.

Parameters have the names and shapes of transformers, without their prefix.  Matrices
are kept in ``param_dtype``; what the published inference code keeps in float32 stays
so: norms, sinks, routers, compressors, hyper-connections.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.configs.deepseek_v4 import HASHED, WINDOW, DeepseekV4Config
from hybridcache_jax.models.deepseek_v4_attention import Attention
from hybridcache_jax.models.deepseek_v4_compressor import Rotary, Rotation
from hybridcache_jax.models.deepseek_v4_moe import MoE
from hybridcache_jax.models.hyper_connections import (
    HyperConnection,
    StreamReadout,
    write,
)
from hybridcache_jax.models.modules import Embedding, Linear, RMSNorm, project
from hybridcache_jax.models.moe import expert_recipes
from hybridcache_jax.models.parameters import parameter_shapes
from hybridcache_jax.models.protocol import CacheView
from hybridcache_jax.models.recipes import Recipe, renamed

# Parts of parameter names and what the publisher calls them, applied in this order.
_SPELLINGS = (
    ("embed_tokens.", "embed."),
    ("lm_head.", "head."),
    ("hc_head.hc_", "hc_head_"),
    (".attn_hc.", ".hc_attn_"),
    (".ffn_hc.", ".hc_ffn_"),
    (".input_layernorm.", ".attn_norm."),
    (".post_attention_layernorm.", ".ffn_norm."),
    (".self_attn.", ".attn."),
    (".sinks", ".attn_sink"),
    (".q_a_norm.", ".q_norm."),
    (".compressor.indexer.scorer.", ".indexer."),
    (".compressor.indexer.q_b_proj.", ".indexer.wq_b."),
    (".compressor.indexer.", ".indexer.compressor."),
    (".compressor.kv_norm.", ".compressor.norm."),
    (".compressor.gate_proj.", ".compressor.wgate."),
    (".position_bias", ".ape"),
    (".kv_proj.", ".wkv."),
    (".q_a_proj.", ".wq_a."),
    (".q_b_proj.", ".wq_b."),
    (".o_a_proj.", ".wo_a."),
    (".o_b_proj.", ".wo_b."),
    (".mlp.", ".ffn."),
    (".e_score_correction_bias", ".bias"),
    (".gate_proj.", ".w1."),
    (".down_proj.", ".w2."),
    (".up_proj.", ".w3."),
)


class Block(nnx.Module):
    """One layer: attention, then experts, each behind a hyper-connection.

    Args:
      config: the model.
      layer: 0-based index of the layer.
    """

    def __init__(
        self, config: DeepseekV4Config, layer: int, *, rngs: nnx.Rngs, param_dtype
    ):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden = config.hidden_size

        def norm() -> RMSNorm:
            return RMSNorm(hidden, config.rms_norm_eps, param_dtype=jnp.float32)

        def connection() -> HyperConnection:
            return HyperConnection(
                config.hc_mult,
                hidden,
                iterations=config.hc_sinkhorn_iters,
                norm_eps=config.rms_norm_eps,
                eps=config.hc_eps,
                rngs=rngs,
            )

        self.attn_hc = connection()
        self.input_layernorm = norm()
        self.self_attn = Attention(config, config.layer_types[layer], **options)
        self.ffn_hc = connection()
        self.post_attention_layernorm = norm()
        self.mlp = MoE(
            config, hashed=config.mlp_layer_types[layer] == HASHED, **options
        )

    def __call__(
        self,
        streams: jax.Array,
        tokens: jax.Array,
        view: CacheView,
        layer: int,
        rotation: Rotation,
    ) -> tuple[jax.Array, CacheView]:
        """Runs the layer.

        Args:
          streams: ``[B, T, hc_mult, hidden]`` float32.
          tokens: ``[B, T]`` int32.
          view: the cache.
          layer: 0-based index of this layer in the model.
          rotation: at the positions of the step, of this layer's kind.
        """
        x, weights, mixing = self.attn_hc.read(streams)
        out, view = self.self_attn(self.input_layernorm(x), view, layer, rotation)
        streams = write(streams, out, weights, mixing)
        x, weights, mixing = self.ffn_hc.read(streams)
        out = self.mlp(self.post_attention_layernorm(x), tokens)
        return write(streams, out, weights, mixing), view


class DeepseekV4(nnx.Module):
    """DeepSeek-V4 decoder.

    Args:
      config: the model.
      rngs: source of the random initial parameters.
      param_dtype: dtype in which matrices are kept and multiplied.
    """

    def __init__(
        self, config: DeepseekV4Config, *, rngs: nnx.Rngs, param_dtype=jnp.float32
    ):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden = config.hidden_size
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, hidden, **options)
        self.layers = nnx.List(
            [Block(config, layer, **options) for layer in range(config.num_layers)]
        )
        self.hc_head = StreamReadout(
            config.hc_mult,
            hidden,
            norm_eps=config.rms_norm_eps,
            eps=config.hc_eps,
            rngs=rngs,
        )
        self.norm = RMSNorm(hidden, config.rms_norm_eps, param_dtype=jnp.float32)
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else Linear(hidden, config.vocab_size, **options)
        )

    def __call__(
        self, tokens: jax.Array, view: CacheView
    ) -> tuple[jax.Array, CacheView]:
        """Runs one step: any number of tokens per sequence.

        Args:
          tokens: ``[B, T]`` int32 ids at ``view.positions``.
          view: the cache.

        Returns:
          Hidden states after the final norm, ``[B, T, hidden]`` float32, and the
          view with what these tokens leave in every layer.
        """
        config = self.config
        main, compress = (
            Rotary(settings, config.rope_head_dim).at(view.positions)
            for settings in (config.rope_main, config.rope_compress)
        )
        x = self.embed_tokens(tokens)
        streams = jnp.broadcast_to(
            x[:, :, None], (*x.shape[:2], config.hc_mult, x.shape[2])
        )
        for layer, (kind, block) in enumerate(
            zip(config.layer_types, self.layers, strict=True)
        ):
            rotation = main if kind == WINDOW else compress
            streams, view = block(streams, tokens, view, layer, rotation)
        return self.norm(self.hc_head(streams)), view

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Scores of the next token.

        Args:
          hidden: ``[..., hidden]`` states from a step.

        Returns:
          ``[..., vocab_size]`` float32.
        """
        if self.lm_head is None:
            return project(hidden, self.embed_tokens.weight[...])
        return self.lm_head(hidden)


def published_names(config: DeepseekV4Config) -> dict[str, Recipe]:
    """Of which tensors of the publisher's checkpoint each parameter is made."""
    recipes = {}
    for name in parameter_shapes(DeepseekV4, config):
        theirs = name
        for ours, published in _SPELLINGS:
            theirs = theirs.replace(ours, published)
        recipes[name] = renamed(theirs)
    for layer in range(config.num_layers):
        recipes |= expert_recipes(
            f"layers.{layer}.mlp.experts",
            f"layers.{layer}.ffn.experts",
            config.num_experts,
            ("w1", "w3", "w2"),
        )
    return recipes
