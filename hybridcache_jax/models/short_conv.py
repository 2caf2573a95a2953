"""Causal depthwise convolution over a few tokens, as linear-attention layers use it.

Its memory is the last ``kernel - 1`` inputs: what a layer must carry from one step to
the next, beside its recurrent state.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.models.modules import normal_param


class ShortConvolution(nnx.Module):
    """``silu(conv(x))``: one causal filter per channel.

    Inputs are rounded to the dtype of the weight, as those of a matrix product are, and
    carried so; sums are float32.

    Attributes:
      weight: ``[channels, 1, kernel]``; the last element meets the token itself.
    """

    def __init__(self, channels: int, kernel: int, *, rngs, param_dtype):
        self.weight = normal_param(rngs, (channels, 1, kernel), param_dtype)

    def __call__(
        self, x: jax.Array, carried: jax.Array, valid: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Filters one step.

        Args:
          x: ``[B, T, channels]`` float32.
          carried: ``[B, kernel - 1, channels]`` float32, the inputs before this step,
            oldest first; zeros before the start of a sequence.
          valid: ``[B, T]`` bool, a prefix of each row.

        Returns:
          ``[B, T, channels]`` float32, and what the next step carries: the last
          ``kernel - 1`` inputs up to the last *valid* token.
        """
        rounded = x.astype(self.weight.dtype).astype(jnp.float32)
        weight = self.weight[...].astype(jnp.float32)
        steps, kernel = x.shape[1], weight.shape[2]
        inputs = jnp.concatenate([carried, rounded], axis=1)
        out = sum(
            inputs[:, tap : tap + steps] * weight[:, 0, tap] for tap in range(kernel)
        )
        count = jnp.sum(valid, axis=1, dtype=jnp.int32)
        last = count[:, None] + jnp.arange(kernel - 1, dtype=jnp.int32)
        carried = jnp.take_along_axis(inputs, last[..., None], axis=1)
        return jax.nn.silu(out), carried
