"""Gemma 3: five window layers, then a full one, each kind with a rope of its own."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from hybridcache_jax.configs.reading import Fields, common_fields, text_part
from hybridcache_jax.configs.rope import RopeConfig, read_rope
from hybridcache_jax.configs.windowed import (
    FULL,
    SLIDING,
    WindowedConfig,
    windowed_fields,
)

LOCAL_THETA = 10_000.0
THETA = 1_000_000.0
_PATTERN = 6
_SCALINGS = ("default", "linear")
# Published configs of Gemma 3 leave out what others always say.
_DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "bos_token_id": 2,
    "eos_token_id": 1,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gemma3Config(WindowedConfig):
    """Gemma 3, text part (Gemma Team, "Gemma 3 Technical Report", 2025).

    Attributes:
      rope_sliding: rotary embedding of window layers.
      rope_full: rotary embedding of full layers.
      query_pre_attn_scalar: queries are scaled by its inverse square root.
      attn_logit_softcapping: soft cap of attention scores, or None.
      final_logit_softcapping: soft cap of the logits, or None.
      attention_bias: whether the attention projections have a bias.
    """

    rope_sliding: RopeConfig = RopeConfig(theta=LOCAL_THETA)
    rope_full: RopeConfig = RopeConfig(theta=THETA)
    query_pre_attn_scalar: float = 256.0
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    attention_bias: bool = False

    @property
    def query_scale(self) -> float:
        """Factor on the dot products of queries and keys."""
        return self.query_pre_attn_scalar**-0.5

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Reads the content of a ``config.json``.

        Accepts a text config, a multimodal one (``model_type`` ``"gemma3"`` with a
        nested ``text_config``), nested ``rope_parameters`` as well as
        ``rope_theta`` / ``rope_local_base_freq`` / ``rope_scaling``, and either
        ``layer_types`` or a sliding-window pattern.

        Raises:
          CheckpointError: if it is another model, or a setting is damaged or not
            supported.
        """
        text = text_part(config, multimodal="gemma3", text="gemma3_text")
        fields = _complete({**_DEFAULTS, **text})
        fields.only("hidden_activation", "gelu_pytorch_tanh", "gelu_pytorch_tanh")
        # An embedding model: what a token leaves depends on those after it.
        fields.only("use_bidirectional_attention", False, False)
        sliding, full = _ropes(fields)
        return cls(
            **common_fields(
                fields, rms_norm_eps=1e-6, tied=True, max_positions=131_072
            ),
            **windowed_fields(
                fields, period=_PATTERN, window=4096, kv_heads=4, head_dim=256
            ),
            rope_sliding=sliding,
            rope_full=full,
            query_pre_attn_scalar=fields.positive_number("query_pre_attn_scalar", 256),
            attn_logit_softcapping=fields.cap("attn_logit_softcapping"),
            final_logit_softcapping=fields.cap("final_logit_softcapping"),
            attention_bias=fields.flag("attention_bias", False),
        )


def _complete(content: Mapping[str, Any]) -> Fields:
    """The fields, layer kinds included."""
    fields = Fields(content, "gemma3_text")
    if fields.has("layer_types"):
        return fields
    return Fields({**content, "layer_types": _schedule(fields)}, "gemma3_text")


def _schedule(fields: Fields) -> tuple[str, ...]:
    """Layer kinds where only a pattern is given: a period, or one flag per layer."""
    count = fields.layer_count()
    old, new = "_sliding_window_pattern", "sliding_window_pattern"
    name = new if fields.has(new) else old
    if isinstance(fields.content.get(name, _PATTERN), int):
        period = fields.positive(name, _PATTERN)
        sliding = [(layer + 1) % period != 0 for layer in range(count)]
    else:
        sliding = fields.sequence(name)
    return tuple(SLIDING if flag else FULL for flag in sliding)


def _ropes(fields: Fields) -> tuple[RopeConfig, RopeConfig]:
    """Rotary embeddings of window and full layers, from either spelling."""
    nested = fields.part("rope_parameters")
    if nested.has(FULL) or nested.has(SLIDING):
        local, full = nested.part(SLIDING), nested.part(FULL)
    else:
        new = fields.has("rope_parameters")
        local = Fields({}, fields.model_type)
        full = nested if new else fields.part("rope_scaling")
    return (
        _rope(local, fields.number("rope_local_base_freq", LOCAL_THETA)),
        _rope(full, fields.number("rope_theta", THETA)),
    )


def _rope(parameters: Fields, theta: float) -> RopeConfig:
    rope = read_rope(parameters, theta=theta)
    if rope.scaling not in _SCALINGS:
        raise parameters.error("rope_type", rope.scaling, " or ".join(_SCALINGS))
    parameters.only("partial_rotary_factor", 1.0, 1.0)
    if rope.scaling == "linear":
        parameters.positive_number("factor")
    return rope
