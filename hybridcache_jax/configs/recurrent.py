"""What linear-attention layers keep: one state per sequence, folded over its prefix."""

from hybridcache_jax.entry import Entry, Plane
from hybridcache_jax.layers import LayerSpec, RecurrentState

LINEAR = "linear_attention"
FULL = "full_attention"

# Engines exist that hold the transpose; with key_dim == value_dim shapes do not tell.
_CONVENTION = "state [key, value]; conv oldest first, before filter and activation"


def delta_layer(
    *,
    heads: int,
    key_dim: int,
    value_dim: int,
    kernel: int,
    channels: int,
    cache_format: str,
) -> LayerSpec:
    """A delta-rule layer (Gated DeltaNet, Kimi Delta Attention).

    The state is float32 in every cache format: rounding would add up over the length
    of the sequence.  Inputs of the convolution are read a few tokens later and gone.

    Args:
      heads: value heads; each has a state of its own.
      key_dim: elements per key.
      value_dim: elements per value.
      kernel: taps of the short convolution, at least 2; all but one are carried.
      channels: inputs of the convolution: queries, keys and values of all heads.
      cache_format: of the model's entries; those inputs are bfloat16 unless it is
        float32.
    """
    state = Plane("state", heads, key_dim * value_dim)
    dtype = "float32" if cache_format == "float32" else "bfloat16"
    conv = Plane("conv", 1, (kernel - 1) * channels, dtype)
    return LayerSpec(
        recurrent=RecurrentState(Entry((state, conv), convention=_CONVENTION))
    )


def lightning_layer(*, heads: int, key_dim: int, value_dim: int) -> LayerSpec:
    """A lightning-attention layer: the state alone, float32 in every cache format.

    Args:
      heads: heads; each has a state of its own.
      key_dim: elements per key.
      value_dim: elements per value.
    """
    state = Plane("state", heads, key_dim * value_dim)
    return LayerSpec(recurrent=RecurrentState(Entry((state,), convention=_CONVENTION)))
