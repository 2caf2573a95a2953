"""Mistral: a window in every layer, or in none."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from hybridcache_jax.configs.reading import Fields, common_fields
from hybridcache_jax.configs.rope import RopeConfig
from hybridcache_jax.configs.windowed import (
    FULL,
    SLIDING,
    WindowedConfig,
    head_fields,
    single_rope,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MistralConfig(WindowedConfig):
    """Mistral (Jiang et al., "Mistral 7B", 2023).

    Attributes:
      rope: rotary embedding of all layers.
    """

    rope: RopeConfig

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Reads the content of a ``config.json``, in either published spelling.

        Where ``sliding_window`` is null all layers see everything; where it is left
        out they have the window of the first release.

        Raises:
          CheckpointError: if a setting is missing, damaged or not supported.
        """
        fields = Fields(config, "mistral")
        fields.only("model_type", "mistral", "mistral")
        fields.only("hidden_act", "silu", "silu")
        common = common_fields(
            fields, rms_norm_eps=1e-6, tied=False, max_positions=131_072
        )
        window = None
        if config.get("sliding_window", 4096) is not None:
            window = fields.positive("sliding_window", 4096)
        kind = FULL if window is None else SLIDING
        count = common["num_layers"]
        return cls(
            **common,
            **head_fields(fields, kv_heads=8),
            intermediate_size=fields.positive("intermediate_size"),
            sliding_window=window,
            layer_types=fields.layer_types(count, (kind,) * count, (kind,)),
            rope=single_rope(
                fields,
                theta=10_000.0,
                max_positions=common["max_position_embeddings"],
            ),
        )
