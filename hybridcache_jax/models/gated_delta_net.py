"""Gated DeltaNet, the linear attention of Qwen3-Next.

Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule" (2024).
"""

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.configs.qwen3_next import Qwen3NextConfig
from hybridcache_jax.models.delta_rule import INITIAL_STEP, delta_attention
from hybridcache_jax.models.modules import Linear, RMSNorm
from hybridcache_jax.models.protocol import CacheView
from hybridcache_jax.models.short_conv import ShortConvolution


class GatedDeltaNet(nnx.Module):
    """Linear attention by the delta rule, with one decay per head.

    Attributes:
      in_proj_qkvz: to queries, keys, values and output gates, grouped by key head.
      in_proj_ba: to the strength of the correction and the decay, grouped likewise.
      A_log: ``[value heads]`` float32, logarithm of each head's decay rate.
      dt_bias: ``[value heads]`` float32, added to the decay before its softplus.
    """

    def __init__(self, config: Qwen3NextConfig, *, rngs: nnx.Rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden, heads = config.hidden_size, config.linear_value_heads
        values = heads * config.linear_value_dim
        self.config = config
        self.in_proj_qkvz = Linear(hidden, config.linear_channels + values, **options)
        self.in_proj_ba = Linear(hidden, 2 * heads, **options)
        self.conv1d = ShortConvolution(
            config.linear_channels, config.conv_kernel, **options
        )
        self.A_log = nnx.Param(jnp.zeros((heads,), jnp.float32))
        self.dt_bias = nnx.Param(jnp.full((heads,), INITIAL_STEP, jnp.float32))
        self.norm = RMSNorm(
            config.linear_value_dim, config.rms_norm_eps, param_dtype=param_dtype
        )
        self.out_proj = Linear(values, hidden, **options)

    def __call__(
        self, x: jax.Array, view: CacheView, layer: int
    ) -> tuple[jax.Array, CacheView]:
        """Reads the layer's state, folds this step's tokens into it, writes it.

        Args:
          x: ``[B, T, hidden]`` float32, normed.
          view: the cache.
          layer: 0-based index of this layer in the model.

        Returns:
          ``[B, T, hidden]`` float32, and the view with the new state.
        """
        config = self.config
        mixed, gate = self._split(self.in_proj_qkvz(x))
        # Each key head's row: what its value heads correct by, then their decays.
        pairs = self.in_proj_ba(x).reshape(*x.shape[:2], config.linear_key_heads, 2, -1)
        strength, step = (
            pairs[..., part, :].reshape(*x.shape[:2], -1) for part in (0, 1)
        )
        rate = jnp.exp(self.A_log[...])
        decay = -rate * jax.nn.softplus(step + self.dt_bias[...])
        out, view = delta_attention(
            view,
            layer,
            mixed,
            self.conv1d,
            decay=decay[..., None],
            beta=jax.nn.sigmoid(strength),
            key_heads=config.linear_key_heads,
            key_dim=config.linear_key_dim,
            value_dim=config.linear_value_dim,
        )
        out = self.norm(out) * jax.nn.silu(gate)
        return self.out_proj(out.reshape(*x.shape[:2], -1)), view

    def _split(self, grouped: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Queries, keys and values of all heads in this order, and the output gates.

        Args:
          grouped: ``[B, T, ...]``: for each key head its query, its key, the values of
            its value heads and their gates.

        Returns:
          ``[B, T, channels]`` and ``[B, T, value heads, value_dim]``.
        """
        config = self.config
        lead, dim = grouped.shape[:2], config.linear_key_dim
        rows = grouped.reshape(*lead, config.linear_key_heads, -1)
        values = (rows.shape[-1] - 2 * dim) // 2
        q, k, v, gate = jnp.split(rows, [dim, 2 * dim, 2 * dim + values], axis=-1)
        mixed = jnp.concatenate([part.reshape(*lead, -1) for part in (q, k, v)], -1)
        return mixed, gate.reshape(*lead, -1, config.linear_value_dim)
