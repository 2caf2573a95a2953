"""gpt-oss decoder in Flax NNX, talking to a cache view.

OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card" (2025): grouped-query attention with
biases and a learned sink per query head (Xiao et al., "Efficient Streaming Language
Models with Attention Sinks", 2023), windows in every other layer, YaRN, and experts
with a clamped activation of their own.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.configs.gpt_oss import GptOssConfig
from hybridcache_jax.models import rope
from hybridcache_jax.models.decoder import CausalDecoder
from hybridcache_jax.models.modules import (
    Linear,
    RMSNorm,
    normal_param,
)
from hybridcache_jax.models.moe import mix_experts
from hybridcache_jax.models.protocol import CacheView


class Attention(nnx.Module):
    """Grouped-query attention whose keys and values live in the cache.

    Attributes:
      sinks: ``[num_heads]``, one more logit in each head's softmax.
    """

    def __init__(self, config: GptOssConfig, *, rngs, param_dtype):
        hidden, dim = config.hidden_size, config.head_dim
        options = {
            "rngs": rngs,
            "param_dtype": param_dtype,
            "use_bias": config.attention_bias,
        }
        self.head_dim = dim
        self.q_proj = Linear(hidden, config.num_heads * dim, **options)
        self.k_proj = Linear(hidden, config.num_kv_heads * dim, **options)
        self.v_proj = Linear(hidden, config.num_kv_heads * dim, **options)
        self.o_proj = Linear(config.num_heads * dim, hidden, **options)
        self.sinks = normal_param(rngs, (config.num_heads,), param_dtype)

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
        heads = (*x.shape[:2], -1, self.head_dim)
        q = rope.rotate(self.q_proj(x).reshape(heads), *rotation)
        k = rope.rotate(self.k_proj(x).reshape(heads), *rotation)
        view = view.append(layer, k=k, v=self.v_proj(x).reshape(heads))
        out = view.attend(
            layer,
            q,
            scale=self.head_dim**-0.5,
            sinks=self.sinks[...].astype(jnp.float32),
        )
        return self.o_proj(out.reshape(*x.shape[:2], -1)), view


class Experts(nnx.Module):
    """The experts' projections, stacked; gate and up alternate column by column.

    Attributes:
      gate_up_proj: ``[E, hidden, 2 * inner]``, even columns are the gate's.
      gate_up_proj_bias: ``[E, 2 * inner]``.
      down_proj: ``[E, inner, hidden]``.
      down_proj_bias: ``[E, hidden]``.
    """

    def __init__(self, config: GptOssConfig, *, rngs, param_dtype):
        count, hidden = config.num_experts, config.hidden_size
        inner = config.intermediate_size
        self.alpha, self.limit = config.swiglu_alpha, config.swiglu_limit
        self.gate_up_proj = normal_param(rngs, (count, hidden, 2 * inner), param_dtype)
        self.gate_up_proj_bias = nnx.Param(jnp.zeros((count, 2 * inner), param_dtype))
        self.down_proj = normal_param(rngs, (count, inner, hidden), param_dtype)
        self.down_proj_bias = nnx.Param(jnp.zeros((count, hidden), param_dtype))

    def __call__(
        self, x: jax.Array, chosen: jax.Array, weights: jax.Array
    ) -> jax.Array:
        """Weighted sum of the chosen experts of ``x [..., hidden]``; float32."""
        return mix_experts(
            x,
            chosen,
            weights,
            self.gate_up_proj[...],
            self.down_proj[...],
            self._activation,
            first_bias=self.gate_up_proj_bias[...],
            second_bias=self.down_proj_bias[...],
        )

    def _activation(self, rows: jax.Array) -> jax.Array:
        """``(up + 1) * gate * sigmoid(alpha * gate)``, both clamped."""
        gate = jnp.minimum(rows[..., 0::2], self.limit)
        up = jnp.clip(rows[..., 1::2], -self.limit, self.limit)
        return (up + 1) * gate * jax.nn.sigmoid(self.alpha * gate)


class RoutedExperts(nnx.Module):
    """Experts behind a router that softmaxes the scores of the chosen ones only."""

    def __init__(self, config: GptOssConfig, *, rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        self.experts_per_token = config.experts_per_token
        self.router = Linear(
            config.hidden_size, config.num_experts, use_bias=True, **options
        )
        self.experts = Experts(config, **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps ``x [..., hidden]`` to the same shape; float32."""
        scores, chosen = jax.lax.top_k(self.router(x), self.experts_per_token)
        return self.experts(x, chosen, jax.nn.softmax(scores, axis=-1))


class Block(nnx.Module):
    """One decoder layer: a norm before attention, a norm before the experts."""

    def __init__(self, config: GptOssConfig, *, rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, param_dtype=param_dtype)
        self.self_attn = Attention(config, **options)
        self.post_attention_layernorm = RMSNorm(hidden, eps, param_dtype=param_dtype)
        self.mlp = RoutedExperts(config, **options)

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


class GptOss(CausalDecoder):
    """gpt-oss decoder.

    Args:
      config: the model.
      rngs: source of the random initial parameters.
      param_dtype: dtype in which parameters are kept and multiplied.
    """

    def __init__(
        self, config: GptOssConfig, *, rngs: nnx.Rngs, param_dtype=jnp.float32
    ):
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
        rotation = rope.rotation(
            view.positions, *rope.frequencies(config.rope, config.head_dim)
        )
        x = self.embed_tokens(tokens)
        for layer, block in enumerate(self.layers):
            x, view = block(x, view, layer, rotation)
        return self.norm(x), view
