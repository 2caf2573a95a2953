"""Gemma 2: window and full layers alternate, window first."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from hybridcache_jax.configs.reading import Fields, common_fields
from hybridcache_jax.configs.rope import RopeConfig
from hybridcache_jax.configs.windowed import (
    WindowedConfig,
    single_rope,
    windowed_fields,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gemma2Config(WindowedConfig):
    """Gemma 2 (Gemma Team, "Gemma 2", 2024).

    Attributes:
      rope: rotary embedding of all layers.
      query_pre_attn_scalar: queries are scaled by its inverse square root.
      attn_logit_softcapping: soft cap of attention scores, or None.
      final_logit_softcapping: soft cap of the logits, or None.
    """

    rope: RopeConfig
    query_pre_attn_scalar: float
    attn_logit_softcapping: float | None
    final_logit_softcapping: float | None

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Reads the content of a ``config.json``, in either published spelling.

        Raises:
          CheckpointError: if a setting is missing, damaged or not supported.
        """
        fields = Fields(config, "gemma2")
        fields.only("model_type", "gemma2", "gemma2")
        fields.only("hidden_activation", "gelu_pytorch_tanh", "gelu_pytorch_tanh")
        fields.only("attention_bias", False, False)
        fields.only("use_bidirectional_attention", False, False)
        common = common_fields(fields, rms_norm_eps=1e-6, tied=True, max_positions=8192)
        return cls(
            **common,
            **windowed_fields(fields, period=2, window=4096, kv_heads=4, head_dim=256),
            rope=single_rope(
                fields,
                theta=10_000.0,
                max_positions=common["max_position_embeddings"],
            ),
            query_pre_attn_scalar=fields.number("query_pre_attn_scalar", 256),
            attn_logit_softcapping=_cap(fields, "attn_logit_softcapping", 50.0),
            final_logit_softcapping=_cap(fields, "final_logit_softcapping", 30.0),
        )


def _cap(fields: Fields, name: str, default: float) -> float | None:
    """A soft cap; unlike a missing one, ``null`` means none."""
    return fields.cap(name) if name in fields.content else default
