"""Indexer of sparse latent attention: keys per token, a score, a selection.

DeepSeek-AI, "DeepSeek-V3.2" (2025), the lightning indexer of DeepSeek sparse
attention.  The score of a token is a weighted sum over small index heads of the
rectified dot products; the cache ranks by it and attends to the best tokens only.

The rotation by a Hadamard matrix and the quantisation that published inference code
applies to index queries and keys are left out: the one changes no dot product, and the
other is the cache format's business.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.models import rope
from hybridcache_jax.models.modules import LayerNorm, Linear
from hybridcache_jax.models.protocol import CacheView

_NORM_EPS = 1e-6


class Indexer(nnx.Module):
    """Appends index keys of this step's tokens and selects for its queries.

    Args:
      hidden: width of the residual stream.
      query_rank: width of the query latent of the attention it serves.
      num_heads: index heads.
      head_dim: elements per index head.
      rope_dim: elements rotated, the *first* of a head.
      interleaved: whether interleaved pairs are rotated (GLM-5), and left
        de-interleaved; else half-split pairs (DeepSeek-V3.2).
    """

    def __init__(
        self,
        *,
        hidden: int,
        query_rank: int,
        num_heads: int,
        head_dim: int,
        rope_dim: int,
        interleaved: bool,
        rngs: nnx.Rngs,
        param_dtype,
    ):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        self.head_dim = head_dim
        self.rope_dim = rope_dim
        self.interleaved = interleaved
        self.wq_b = Linear(query_rank, num_heads * head_dim, **options)
        self.wk = Linear(hidden, head_dim, **options)
        self.k_norm = LayerNorm(head_dim, _NORM_EPS, param_dtype=param_dtype)
        # Scores that differ little decide what is seen at all: checkpoints keep the
        # weights of the heads in float32.
        self.weights_proj = Linear(
            hidden, num_heads, rngs=rngs, param_dtype=jnp.float32
        )

    def __call__(
        self,
        x: jax.Array,
        query_latent: jax.Array,
        view: CacheView,
        layer: int,
        rotation: tuple[jax.Array, jax.Array] | None,
    ) -> CacheView:
        """Appends index keys, then ranks.

        Args:
          x: ``[B, T, hidden]`` float32, the input of the attention.
          query_latent: ``[B, T, query_rank]``.
          view: the cache; the layer keeps index keys with one plane ``k``.
          layer: 0-based index of this layer in the model.
          rotation: as the attention's, or None.

        Returns:
          The view, with the selection that ``attend`` reads in this layer and in
          those that share it.
        """
        heads = (*x.shape[:2], -1, self.head_dim)
        q = self._rotated(self.wq_b(query_latent).reshape(heads), rotation)
        k = self._rotated(self.k_norm(self.wk(x)).reshape(heads), rotation)
        view = view.append(layer, to="index", k=k)
        weights = self.weights_proj(x)
        return view.select(
            layer, q, weights * weights.shape[-1] ** -0.5, scale=self.head_dim**-0.5
        )

    def _rotated(
        self, x: jax.Array, rotation: tuple[jax.Array, jax.Array] | None
    ) -> jax.Array:
        """``x [B, T, H, head_dim]`` with its first dimensions rotated."""
        if rotation is None:
            return x
        turned, rest = jnp.split(x, [self.rope_dim], axis=-1)
        if self.interleaved:
            turned = rope.deinterleave(turned)
        return jnp.concatenate([rope.rotate(turned, *rotation), rest], axis=-1)
