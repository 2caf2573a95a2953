"""gpt-oss: window and full layers alternate, window first; all with sinks."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from hybridcache_jax.configs.reading import Fields, common_fields
from hybridcache_jax.configs.rope import RopeConfig, read_rope
from hybridcache_jax.configs.windowed import WindowedConfig, windowed_fields

_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GptOssConfig(WindowedConfig):
    """gpt-oss (OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", 2025).

    Attributes:
      rope: rotary embedding of all layers.
      attention_bias: whether the attention projections have a bias.
      num_experts: experts per layer; ``intermediate_size`` is the width within one.
      experts_per_token: experts of one token.
      swiglu_alpha: factor within the sigmoid of the experts' activation.
      swiglu_limit: clamp of gate (from above) and up (both ways) before it.
    """

    rope: RopeConfig
    attention_bias: bool
    num_experts: int
    experts_per_token: int
    swiglu_alpha: float
    swiglu_limit: float

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Reads the content of a ``config.json``, in either published spelling.

        Raises:
          CheckpointError: if a setting is missing, damaged or not supported.
        """
        fields = Fields(config, "gpt_oss")
        fields.only("model_type", "gpt_oss", "gpt_oss")
        fields.only("hidden_act", "silu", "silu")
        common = common_fields(
            fields, rms_norm_eps=1e-5, tied=False, max_positions=131_072
        )
        experts = fields.positive("num_local_experts", 128)
        chosen = fields.positive("num_experts_per_tok", 4)
        if chosen > experts:
            raise fields.error("num_experts_per_tok", chosen, f"at most {experts}")
        return cls(
            **common,
            **windowed_fields(fields, period=2, window=128, kv_heads=8, head_dim=64),
            rope=_rope(fields, common["max_position_embeddings"]),
            attention_bias=fields.flag("attention_bias", True),
            num_experts=experts,
            experts_per_token=chosen,
            swiglu_alpha=fields.positive_number("swiglu_alpha", 1.702),
            swiglu_limit=fields.positive_number("swiglu_limit", 7.0),
        )


def _rope(fields: Fields, max_positions: int) -> RopeConfig:
    new = fields.has("rope_parameters")
    parameters = fields.part("rope_parameters" if new else "rope_scaling")
    if not parameters.content:
        parameters = Fields(_ROPE, fields.model_type)
    parameters.only("partial_rotary_factor", 1.0, 1.0)
    return read_rope(
        parameters,
        theta=fields.number("rope_theta", 150_000.0),
        max_positions=max_positions,
    )
