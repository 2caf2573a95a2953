"""Cohere 2 (Command R7B, Command A): three window layers, then a full one."""

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
class Cohere2Config(WindowedConfig):
    """Cohere 2 (Cohere, "Command A", 2025).

    Its norms are layer norms; ``rms_norm_eps`` is their epsilon.

    Attributes:
      rope: rotary embedding of window layers; full layers have none.
      logit_scale: factor on the logits.
    """

    rope: RopeConfig
    logit_scale: float

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Reads the content of a ``config.json``, in either published spelling.

        Raises:
          CheckpointError: if a setting is missing, damaged or not supported.
        """
        fields = Fields(config, "cohere2")
        fields.only("model_type", "cohere2", "cohere2")
        fields.only("hidden_act", "silu", "silu")
        fields.only("attention_bias", False, False)
        fields.only("use_qk_norm", False, False)
        common = common_fields(
            fields,
            rms_norm_eps=fields.number("layer_norm_eps", 1e-5),
            tied=True,
            max_positions=8192,
        )
        return cls(
            **common,
            **windowed_fields(
                fields,
                period=fields.positive("sliding_window_pattern", 4),
                window=4096,
            ),
            rope=single_rope(
                fields,
                theta=10_000.0,
                max_positions=common["max_position_embeddings"],
            ),
            logit_scale=fields.number("logit_scale", 0.0625),
        )
