"""Attention of DeepSeek-V4: a window, compressed entries, one shared key-value head.

DeepSeek-AI, "DeepSeek-V4" (2026).  Queries come from a low-rank latent and are normed
without weights; keys and values are the same vector, so what attention gives is still
rotated and is turned back by the query's own position.  One logit per head, the sink,
takes part in the softmax and adds nothing.  The output is projected by groups of heads.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.configs.deepseek_v4 import CSA, WINDOW, DeepseekV4Config
from hybridcache_jax.models.deepseek_v4_compressor import (
    EntryCompressor,
    Rotary,
    Rotation,
    rotate_last,
    split_row,
)
from hybridcache_jax.models.modules import Linear, RMSNorm, normal_param, unit_rms
from hybridcache_jax.models.protocol import CacheView


class GroupedLinear(nnx.Module):
    """One projection for each group of features.

    Attributes:
      weight: ``[groups * out_dim, in_dim]``.
    """

    def __init__(
        self, groups: int, in_dim: int, out_dim: int, *, rngs: nnx.Rngs, param_dtype
    ):
        self.groups = groups
        self.weight = normal_param(rngs, (groups * out_dim, in_dim), param_dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps ``x [B, T, groups * in_dim]`` to ``[B, T, groups * out_dim]``."""
        weight = self.weight[...]
        out = jnp.einsum(
            "btgi,goi->btgo",
            x.reshape(*x.shape[:2], self.groups, -1).astype(weight.dtype),
            weight.reshape(self.groups, -1, weight.shape[1]),
            preferred_element_type=jnp.float32,
        )
        return out.reshape(*x.shape[:2], -1)


class Attention(nnx.Module):
    """One layer's attention; what it keeps lies in the cache.

    Args:
      config: the model.
      kind: ``WINDOW``, ``CSA`` or ``HCA``.

    Attributes:
      sinks: ``[heads]`` float32.
    """

    def __init__(
        self, config: DeepseekV4Config, kind: str, *, rngs: nnx.Rngs, param_dtype
    ):
        self.config = config
        hidden, heads, dim = config.hidden_size, config.num_heads, config.head_dim
        options = {"rngs": rngs, "param_dtype": param_dtype}

        def norm(size: int) -> RMSNorm:
            return RMSNorm(size, config.rms_norm_eps, param_dtype=jnp.float32)

        self.q_a_proj = Linear(hidden, config.q_lora_rank, **options)
        self.q_a_norm = norm(config.q_lora_rank)
        self.q_b_proj = Linear(config.q_lora_rank, heads * dim, **options)
        self.kv_proj = Linear(hidden, dim, **options)
        self.kv_norm = norm(dim)
        self.o_a_proj = GroupedLinear(
            config.o_groups,
            heads * dim // config.o_groups,
            config.o_lora_rank,
            **options,
        )
        self.o_b_proj = Linear(config.o_groups * config.o_lora_rank, hidden, **options)
        self.sinks = nnx.Param(jnp.zeros((heads,), jnp.float32))
        rotary = Rotary(config.rope_compress, config.rope_head_dim)
        self.compressor = (
            None
            if kind == WINDOW
            else EntryCompressor(config, sparse=kind == CSA, rotary=rotary, **options)
        )

    def __call__(
        self, x: jax.Array, view: CacheView, layer: int, rotation: Rotation
    ) -> tuple[jax.Array, CacheView]:
        """Adds what this step leaves to the cache, then attends.

        Args:
          x: ``[B, T, hidden]`` float32, normed.
          view: the cache.
          layer: 0-based index of this layer in the model.
          rotation: at the positions of the step, of this layer's kind.

        Returns:
          ``[B, T, hidden]`` float32, and the view with this step's rows.
        """
        config = self.config
        heads = (*x.shape[:2], -1, config.head_dim)
        query_latent = self.q_a_norm(self.q_a_proj(x))
        q = unit_rms(self.q_b_proj(query_latent).reshape(heads), config.rms_norm_eps)
        row = rotate_last(self.kv_norm(self.kv_proj(x)).reshape(heads), rotation)
        k, k_rope = split_row(row, config.rope_head_dim)
        view = view.append(layer, k=k, k_rope=k_rope)
        if self.compressor is not None:
            view = self.compressor(x, query_latent, view, layer, rotation)
        out = view.attend(
            layer,
            rotate_last(q, rotation),
            scale=config.head_dim**-0.5,
            sinks=self.sinks[...],
        )
        cos, sin = rotation
        out = rotate_last(out, (cos, -sin))
        return self.o_b_proj(self.o_a_proj(out.reshape(*x.shape[:2], -1))), view
