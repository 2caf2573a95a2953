"""DeepSeek-V3.2 and GLM-5 decoders in Flax NNX, talking to a cache view.

DeepSeek-AI, "DeepSeek-V3.2" (2025): latent attention over the tokens that an indexer
selects, and a mixture of experts with sigmoid routing.  GLM-5 is the same with fewer
indexers: its shared layers read the selection of the full layer before them.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.configs.deepseek_v32 import FULL, SPARSE, DeepseekV32Config
from hybridcache_jax.models import rope
from hybridcache_jax.models.decoder import CausalDecoder
from hybridcache_jax.models.deepseek_moe import DeepseekMoE
from hybridcache_jax.models.indexer import Indexer
from hybridcache_jax.models.latent_attention import LatentAttention
from hybridcache_jax.models.modules import (
    GatedMLP,
    RMSNorm,
    swiglu,
)
from hybridcache_jax.models.moe import expert_recipes
from hybridcache_jax.models.parameters import parameter_shapes
from hybridcache_jax.models.protocol import CacheView
from hybridcache_jax.models.recipes import Recipe, renamed


class Block(nnx.Module):
    """One decoder layer: a norm before attention, a norm before MLP or experts."""

    def __init__(self, config: DeepseekV32Config, layer: int, *, rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, param_dtype=param_dtype)
        self.self_attn = LatentAttention(
            config.latent,
            hidden=hidden,
            num_heads=config.num_heads,
            scale=softmax_scale(config),
            indexer=_indexer(config, layer, **options),
            **options,
        )
        self.post_attention_layernorm = RMSNorm(hidden, eps, param_dtype=param_dtype)
        if config.mlp_types[layer] == SPARSE:
            self.mlp = DeepseekMoE(config.routing, hidden, **options)
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


class DeepseekV32(CausalDecoder):
    """DeepSeek-V3.2 or GLM-5 decoder.

    Args:
      config: the model.
      rngs: source of the random initial parameters.
      param_dtype: dtype in which parameters are kept and multiplied, but for those of
        the router and the indexer's head weights, which stay float32.
    """

    def __init__(
        self, config: DeepseekV32Config, *, rngs: nnx.Rngs, param_dtype=jnp.float32
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
            view.positions, *rope.frequencies(config.rope, config.latent.rope_dim)
        )
        x = self.embed_tokens(tokens)
        for layer, block in enumerate(self.layers):
            x, view = block(x, view, layer, rotation)
        return self.norm(x), view


def softmax_scale(config: DeepseekV32Config) -> float:
    """Factor on the dot products of attention.

    YaRN's factor belongs on cosine and sine, hence twice on a rotated dot product.
    These models put its square on the whole dot product instead.
    """
    magnitude = 1.0
    if config.rope.scaling != "default" and config.rope.mscale_all_dim:
        magnitude = rope.yarn_magnitude(config.rope.factor, config.rope.mscale_all_dim)
    return config.latent.key_dim**-0.5 * magnitude**2


def published_names(config: DeepseekV32Config) -> dict[str, Recipe]:
    """How parameters are made of published tensors: experts are stored one by one."""
    recipes = {name: renamed(name) for name in parameter_shapes(DeepseekV32, config)}
    for layer, kind in enumerate(config.mlp_types):
        if kind == SPARSE:
            prefix = f"layers.{layer}.mlp.experts"
            recipes |= expert_recipes(prefix, prefix, config.routing.num_experts)
    return recipes


def _indexer(
    config: DeepseekV32Config, layer: int, *, rngs: nnx.Rngs, param_dtype
) -> Indexer | None:
    rank = config.latent.query_rank
    if config.indexer_types[layer] != FULL or rank is None:
        return None
    return Indexer(
        hidden=config.hidden_size,
        query_rank=rank,
        num_heads=config.index_heads,
        head_dim=config.index_head_dim,
        rope_dim=config.latent.rope_dim,
        interleaved=config.index_interleaved,
        rngs=rngs,
        param_dtype=param_dtype,
    )
