"""Compressors of DeepSeek-V4: raw rows for the cache, and entries made of them.

DeepSeek-AI, "DeepSeek-V4" (2026), sections on compressed sparse and heavily compressed
attention.  Per token a compressor gives a value and a gate; the cache holds them until
their block is complete, and then asks for its entry: a softmax over the gates for each
element, a weighted sum of the values, a norm, and a rotation at the block's first
position.  The raw gate carries no position bias: it is added while pooling.

Compressors are float32 throughout, as in the publisher's inference code: what goes into
an entry is read by every later query.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax import pooling
from hybridcache_jax.configs.deepseek_v4 import DeepseekV4Config
from hybridcache_jax.configs.rope import RopeConfig
from hybridcache_jax.models import rope
from hybridcache_jax.models.modules import Linear, RMSNorm
from hybridcache_jax.models.protocol import CacheView
from hybridcache_jax.planes import Planes

Rotation = tuple[jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Interleaved rotation of the last elements of a vector.

    Attributes:
      settings: frequencies and scaling.
      dim: elements that are rotated.
    """

    settings: RopeConfig
    dim: int

    def at(self, positions: jax.Array) -> Rotation:
        """Cosine and sine for ``positions [B, n]``: ``[B, n, 1, dim // 2]`` each."""
        return rope.rotation(positions, *rope.frequencies(self.settings, self.dim))


def rotate_last(x: jax.Array, rotation: Rotation) -> jax.Array:
    """``x [B, n, H, D]`` with its last elements rotated; float32."""
    cos, sin = rotation
    still, turned = jnp.split(x, [x.shape[-1] - 2 * cos.shape[-1]], axis=-1)
    return jnp.concatenate([still, rope.rotate_interleaved(turned, cos, sin)], axis=-1)


class Compressor(nnx.Module):
    """Makes one entry for each block of tokens.

    Args:
      hidden: width of the residual stream.
      dim: elements of an entry.
      ratio: tokens of a block.
      overlap: whether an entry also pools the block before its own; values and gates
        are then twice as wide, the first half for the next block.
      rotary: rotation of the entries.
      eps: epsilon of their norm.

    Attributes:
      position_bias: ``[ratio, dim or 2 * dim]``, added to the gates by place in the
        block.
    """

    def __init__(
        self,
        hidden: int,
        dim: int,
        *,
        ratio: int,
        overlap: bool,
        rotary: Rotary,
        eps: float,
        rngs: nnx.Rngs,
    ):
        self.overlap = overlap
        self.rotary = rotary
        width = 2 * dim if overlap else dim
        options = {"rngs": rngs, "param_dtype": jnp.float32}
        self.kv_proj = Linear(hidden, width, **options)
        self.gate_proj = Linear(hidden, width, **options)
        self.position_bias = nnx.Param(jnp.zeros((ratio, width), jnp.float32))
        self.kv_norm = RMSNorm(dim, eps, param_dtype=jnp.float32)

    def raw(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Value and gate ``[B, T, 1, width]`` of ``x [B, T, hidden]``, float32."""
        return self.kv_proj(x)[:, :, None], self.gate_proj(x)[:, :, None]

    def pool(self, raw: Planes, valid: jax.Array, first: jax.Array) -> jax.Array:
        """Entries ``[B, K, 1, dim]`` of complete blocks; see ``pooling.Pooling``."""
        pooled = (
            pooling.overlapped_gated_softmax if self.overlap else pooling.gated_softmax
        )(raw["value"], raw["gate"], valid, self.position_bias[...])
        return rotate_last(self.kv_norm(pooled), self.rotary.at(first))


class Indexer(Compressor):
    """Ranks a layer's entries by keys of its own, one for each of them.

    The rotation by a Hadamard matrix that published inference code applies to index
    queries and keys before it quantises them is left out: it changes no dot product,
    only how a quantised cache rounds.

    Args:
      config: the model.
      rotary: rotation of keys and queries.
    """

    def __init__(
        self, config: DeepseekV4Config, rotary: Rotary, *, rngs: nnx.Rngs, param_dtype
    ):
        super().__init__(
            config.hidden_size,
            config.index_head_dim,
            ratio=config.csa_ratio,
            overlap=True,
            rotary=rotary,
            eps=config.rms_norm_eps,
            rngs=rngs,
        )
        self.head_dim = config.index_head_dim
        self.q_b_proj = Linear(
            config.q_lora_rank,
            config.index_heads * config.index_head_dim,
            rngs=rngs,
            param_dtype=param_dtype,
        )
        self.scorer = Scorer(config, rngs=rngs, param_dtype=param_dtype)

    def select(
        self,
        x: jax.Array,
        query_latent: jax.Array,
        view: CacheView,
        layer: int,
        rotation: Rotation,
    ) -> CacheView:
        """Adds this step's index keys and selects for its queries.

        Args:
          x: ``[B, T, hidden]`` float32, the input of the attention.
          query_latent: ``[B, T, q_lora_rank]``, that of the attention.
          view: the cache.
          layer: 0-based index of this layer in the model.
          rotation: at the positions of the step.
        """

        def keys(raw: Planes, valid: jax.Array, first: jax.Array) -> Planes:
            return {"k": self.pool(raw, valid, first)}

        value, gate = self.raw(x)
        view = view.compress(layer, keys, to="index", value=value, gate=gate)
        q = self.q_b_proj(query_latent)
        q = rotate_last(q.reshape(*q.shape[:2], -1, self.head_dim), rotation)
        return view.select(layer, q, self.scorer(x), scale=self.head_dim**-0.5)


class Scorer(nnx.Module):
    """Weights of the index heads."""

    def __init__(self, config: DeepseekV4Config, *, rngs: nnx.Rngs, param_dtype):
        self.weights_proj = Linear(
            config.hidden_size, config.index_heads, rngs=rngs, param_dtype=param_dtype
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, T, index_heads]`` float32 for ``x [B, T, hidden]``."""
        weights = self.weights_proj(x)
        return weights * weights.shape[-1] ** -0.5


class EntryCompressor(Compressor):
    """Makes the entries that attention reads, and selects them where it selects.

    Args:
      config: the model.
      sparse: whether this is a CSA layer, with overlap and an indexer; else HCA.
      rotary: rotation of entries, index keys and queries.
    """

    def __init__(
        self,
        config: DeepseekV4Config,
        *,
        sparse: bool,
        rotary: Rotary,
        rngs: nnx.Rngs,
        param_dtype,
    ):
        super().__init__(
            config.hidden_size,
            config.head_dim,
            ratio=config.csa_ratio if sparse else config.hca_ratio,
            overlap=sparse,
            rotary=rotary,
            eps=config.rms_norm_eps,
            rngs=rngs,
        )
        self.indexer = (
            Indexer(config, rotary, rngs=rngs, param_dtype=param_dtype)
            if sparse
            else None
        )

    def __call__(
        self,
        x: jax.Array,
        query_latent: jax.Array,
        view: CacheView,
        layer: int,
        rotation: Rotation,
    ) -> CacheView:
        """Adds this step's raw rows; arguments as of :meth:`Indexer.select`."""

        def entries(raw: Planes, valid: jax.Array, first: jax.Array) -> Planes:
            k, k_rope = split_row(self.pool(raw, valid, first), self.rotary.dim)
            return {"k": k, "k_rope": k_rope}

        value, gate = self.raw(x)
        view = view.compress(layer, entries, value=value, gate=gate)
        if self.indexer is None:
            return view
        return self.indexer.select(x, query_latent, view, layer, rotation)


def split_row(x: jax.Array, rope_dim: int) -> tuple[jax.Array, jax.Array]:
    """The two planes of a row or entry ``[..., D]``: the rotated elements are last."""
    still, turned = jnp.split(x, [x.shape[-1] - rope_dim], axis=-1)
    return still, turned
