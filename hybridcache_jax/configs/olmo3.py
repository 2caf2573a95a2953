"""OLMo 3: three window layers, then a full one; YaRN on the full layers only."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from hybridcache_jax.configs.reading import Fields, common_fields
from hybridcache_jax.configs.rope import RopeConfig, read_rope
from hybridcache_jax.configs.windowed import (
    FULL,
    SLIDING,
    WindowedConfig,
    windowed_fields,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Olmo3Config(WindowedConfig):
    """OLMo 3 (Ai2, "Olmo 3", 2025).

    Attributes:
      rope_sliding: rotary embedding of window layers.
      rope_full: rotary embedding of full layers.
    """

    rope_sliding: RopeConfig
    rope_full: RopeConfig

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Reads the content of a ``config.json``, in either published spelling.

        Raises:
          CheckpointError: if a setting is missing, damaged or not supported.
        """
        fields = Fields(config, "olmo3")
        fields.only("model_type", "olmo3", "olmo3")
        fields.only("hidden_act", "silu", "silu")
        fields.only("attention_bias", False, False)
        common = common_fields(
            fields, rms_norm_eps=1e-5, tied=False, max_positions=2048
        )
        ropes = fields.part("rope_parameters")
        # The old spelling has one base, and a scaling that is meant for full layers.
        options = {
            "theta": fields.number("rope_theta", 500_000.0),
            "max_positions": common["max_position_embeddings"],
        }
        scaled = ropes.part(FULL) if ropes.has(FULL) else fields.part("rope_scaling")
        return cls(
            **common,
            **windowed_fields(fields, period=4, window=4096),
            rope_sliding=read_rope(ropes.part(SLIDING), **options),
            rope_full=read_rope(scaled, **options),
        )
