"""OLMo 3 decoder in Flax NNX, talking to a cache view.

Ai2, "Olmo 3" (2025), on the block of "2 OLMo 2 Furious" (2024): attention and MLP
take the residual stream as it is, and their outputs are normed before they are added.
Queries and keys are normed over all heads together.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.configs.olmo3 import Olmo3Config
from hybridcache_jax.configs.windowed import FULL, SLIDING
from hybridcache_jax.models import rope
from hybridcache_jax.models.decoder import CausalDecoder
from hybridcache_jax.models.modules import (
    GatedMLP,
    Linear,
    RMSNorm,
    swiglu,
)
from hybridcache_jax.models.protocol import CacheView


class Attention(nnx.Module):
    """Grouped-query attention whose keys and values live in the cache."""

    def __init__(self, config: Olmo3Config, *, rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden, eps = config.hidden_size, config.rms_norm_eps
        queries = config.num_heads * config.head_dim
        keys = config.num_kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.q_proj = Linear(hidden, queries, **options)
        self.k_proj = Linear(hidden, keys, **options)
        self.v_proj = Linear(hidden, keys, **options)
        self.o_proj = Linear(queries, hidden, **options)
        self.q_norm = RMSNorm(queries, eps, param_dtype=param_dtype)
        self.k_norm = RMSNorm(keys, eps, param_dtype=param_dtype)

    def __call__(
        self,
        x: jax.Array,
        view: CacheView,
        layer: int,
        rotation: tuple[jax.Array, jax.Array],
    ) -> tuple[jax.Array, CacheView]:
        """Appends this step's keys and values, then attends.

        Args:
          x: ``[B, T, hidden]`` float32.
          view: the cache.
          layer: 0-based index of this layer in the model.
          rotation: cosine and sine, ``[B, T, 1, head_dim // 2]``, of this layer's
            kind.

        Returns:
          ``[B, T, hidden]`` float32, and the view with the entries appended.
        """
        heads = (*x.shape[:2], -1, self.head_dim)
        q = rope.rotate(self.q_norm(self.q_proj(x)).reshape(heads), *rotation)
        k = rope.rotate(self.k_norm(self.k_proj(x)).reshape(heads), *rotation)
        view = view.append(layer, k=k, v=self.v_proj(x).reshape(heads))
        out = view.attend(layer, q, scale=self.head_dim**-0.5)
        return self.o_proj(out.reshape(*x.shape[:2], -1)), view


class Block(nnx.Module):
    """One decoder layer: norms after attention and after the MLP."""

    def __init__(self, config: Olmo3Config, *, rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = Attention(config, **options)
        self.post_attention_layernorm = RMSNorm(hidden, eps, param_dtype=param_dtype)
        self.mlp = GatedMLP(
            hidden, config.intermediate_size, activation=swiglu, **options
        )
        self.post_feedforward_layernorm = RMSNorm(hidden, eps, param_dtype=param_dtype)

    def __call__(
        self,
        x: jax.Array,
        view: CacheView,
        layer: int,
        rotation: tuple[jax.Array, jax.Array],
    ) -> tuple[jax.Array, CacheView]:
        """Runs the layer on ``x [B, T, hidden]``; arguments as of the attention."""
        attended, view = self.self_attn(x, view, layer, rotation)
        x = x + self.post_attention_layernorm(attended)
        return x + self.post_feedforward_layernorm(self.mlp(x)), view


class Olmo3(CausalDecoder):
    """OLMo 3 decoder.

    Args:
      config: the model.
      rngs: source of the random initial parameters.
      param_dtype: dtype in which parameters are kept and multiplied.
    """

    def __init__(self, config: Olmo3Config, *, rngs: nnx.Rngs, param_dtype=jnp.float32):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        super().__init__(
            config,
            lambda layer: Block(config, **options),
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
