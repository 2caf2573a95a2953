"""Multi-head latent attention over a cache of latents.

DeepSeek-AI, "DeepSeek-V2" (2024): keys and values of all heads are linear maps of one
small latent per token, so the latent is all that the cache keeps, beside a key part
that the heads share and that alone is rotated.  The maps are *absorbed*: the key map
is applied to the query and the value map to the output, so that attention runs in the
space of the latents and nothing is expanded per cached token.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.configs.latent import LatentConfig
from hybridcache_jax.models import rope
from hybridcache_jax.models.indexer import Indexer
from hybridcache_jax.models.modules import Linear, RMSNorm
from hybridcache_jax.models.protocol import CacheView

# The norms of the latents have an epsilon of their own, whatever the model's is.
_LATENT_EPS = 1e-6


class LatentAttention(nnx.Module):
    """Latent attention with the parameters of the published checkpoints.

    Args:
      settings: dimensions; with a query rank queries come from a latent of their own
        (``q_a_proj``, ``q_a_layernorm``, ``q_b_proj``), else straight from the input
        (``q_proj``).
      hidden: width of the residual stream.
      num_heads: query heads.
      scale: factor on the dot products; by default that of the expanded keys.
      indexer: selects the tokens attended to, or None where the layer attends to
        all, or reads another layer's selection.
    """

    def __init__(
        self,
        settings: LatentConfig,
        *,
        hidden: int,
        num_heads: int,
        scale: float | None = None,
        indexer: Indexer | None = None,
        rngs: nnx.Rngs,
        param_dtype,
    ):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        rank, queries = settings.query_rank, num_heads * settings.key_dim
        expanded = num_heads * (settings.nope_dim + settings.value_dim)
        self.settings = settings
        self.scale = settings.key_dim**-0.5 if scale is None else scale
        if rank is None:
            self.q_proj = Linear(hidden, queries, **options)
        else:
            self.q_a_proj = Linear(hidden, rank, **options)
            self.q_a_layernorm = RMSNorm(rank, _LATENT_EPS, param_dtype=param_dtype)
            self.q_b_proj = Linear(rank, queries, **options)
        self.kv_a_proj_with_mqa = Linear(
            hidden, settings.kv_rank + settings.rope_dim, **options
        )
        self.kv_a_layernorm = RMSNorm(
            settings.kv_rank, _LATENT_EPS, param_dtype=param_dtype
        )
        self.kv_b_proj = Linear(settings.kv_rank, expanded, **options)
        self.o_proj = Linear(num_heads * settings.value_dim, hidden, **options)
        self.indexer = indexer

    def __call__(
        self,
        x: jax.Array,
        view: CacheView,
        layer: int,
        rotation: tuple[jax.Array, jax.Array] | None = None,
    ) -> tuple[jax.Array, CacheView]:
        """Appends this step's latents, selects, attends.

        Args:
          x: ``[B, T, hidden]`` float32, normed.
          view: the cache; the layer keeps planes ``latent`` and ``rope``.
          layer: 0-based index of this layer in the model.
          rotation: cosine and sine ``[B, T, 1, rope_dim // 2]`` of interleaved pairs;
            None for models without position embedding.

        Returns:
          ``[B, T, hidden]`` float32, and the view with the entries appended.
        """
        settings = self.settings
        if settings.query_rank is None:
            source, expand = x, self.q_proj
        else:
            source, expand = self.q_a_layernorm(self.q_a_proj(x)), self.q_b_proj
        q = expand(source).reshape(*x.shape[:2], -1, settings.key_dim)
        q_nope, q_rope = jnp.split(q, [settings.nope_dim], axis=-1)
        latent, shared = jnp.split(
            self.kv_a_proj_with_mqa(x)[:, :, None], [settings.kv_rank], axis=-1
        )
        view = view.append(
            layer, latent=self.kv_a_layernorm(latent), rope=_rotated(shared, rotation)
        )
        if self.indexer is not None:
            view = self.indexer(x, source, view, layer, rotation)

        to_key, to_value = self._maps()
        q_latent = _per_head("bthn,hnr->hbtr", q_nope, to_key)
        query = jnp.concatenate([q_latent, _rotated(q_rope, rotation)], axis=-1)
        attended = view.attend(layer, query, scale=self.scale)
        out = _per_head("bthr,hvr->hbtv", attended, to_value)
        return self.o_proj(out.reshape(*x.shape[:2], -1)), view

    def _maps(self) -> tuple[jax.Array, jax.Array]:
        """Maps of each head from the latent: to keys and to values, ``[H, out, r]``."""
        settings = self.settings
        weight = self.kv_b_proj.weight[...]
        per_head = settings.nope_dim + settings.value_dim
        weight = weight.reshape(-1, per_head, settings.kv_rank)
        return weight[:, : settings.nope_dim], weight[:, settings.nope_dim :]


def _rotated(x: jax.Array, rotation: tuple[jax.Array, jax.Array] | None) -> jax.Array:
    """Interleaved pairs of ``x [B, T, H, D]`` rotated and left de-interleaved.

    Dot products do not mind the order, and contiguous halves are cheap to rotate.
    """
    return x if rotation is None else rope.rotate(rope.deinterleave(x), *rotation)


def _per_head(equation: str, x: jax.Array, weight: jax.Array) -> jax.Array:
    """``x [B, T, H, in]`` mapped head by head to ``[B, T, H, out]`` float32.

    Args:
      equation: with heads first in the result.  Other orders make the weight the left
        operand, which the CPU backend does not multiply in bfloat16.
      x: cast to the weight's dtype.
      weight: one matrix per head.
    """
    out = jnp.einsum(
        equation, x.astype(weight.dtype), weight, preferred_element_type=jnp.float32
    )
    return jnp.moveaxis(out, 0, 2)
