"""Llama 4: three layers that attend within chunks, then a full one without rope."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from hybridcache_jax.configs.reading import (
    DecoderConfig,
    Fields,
    common_fields,
    text_part,
)
from hybridcache_jax.configs.rope import RopeConfig
from hybridcache_jax.configs.windowed import (
    CHUNKED,
    FULL,
    head_fields,
    single_rope,
)
from hybridcache_jax.entry import Entry
from hybridcache_jax.layers import Chunk, Entries, LayerSpec

_ROPED = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama4Config(DecoderConfig):
    """Llama 4, text part (Meta AI, 2025).

    Attributes:
      intermediate_size: width within an expert, and of the shared one.
      dense_size: width of the gated MLP of layers without experts.
      num_kv_heads: key/value heads; divides ``num_heads``.
      head_dim: elements per head, even.
      chunk_size: tokens per attention chunk; None in models without chunks.
      layer_types: ``"chunked_attention"`` or ``"full_attention"`` per layer.
      roped: whether each layer rotates queries and keys.
      rope: rotary embedding of those layers.
      qk_norm: whether rotated queries and keys are normed.
      temperature: strength by which queries of layers without rope grow with their
        position (Nakanishi, "Scalable-Softmax", 2025); 0 for none.
      temperature_floor: positions per step of that growth.
      moe_layers: layers with experts, ascending.
      num_experts: routed experts.
      experts_per_token: routed experts of one token.
    """

    intermediate_size: int
    dense_size: int
    num_kv_heads: int
    head_dim: int
    chunk_size: int | None
    layer_types: tuple[str, ...]
    roped: tuple[bool, ...]
    rope: RopeConfig
    qk_norm: bool
    temperature: float
    temperature_floor: int
    moe_layers: tuple[int, ...]
    num_experts: int
    experts_per_token: int

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Reads the content of a ``config.json``, in either published spelling.

        A multimodal config has all this in a nested ``text_config``.

        Raises:
          CheckpointError: if a setting is missing, damaged or not supported.
        """
        text = text_part(config, multimodal="llama4", text="llama4_text")
        fields = Fields(text, "llama4")
        fields.only("hidden_act", "silu", "silu")
        fields.only("attention_bias", False, False)
        common = common_fields(
            fields, rms_norm_eps=1e-5, tied=False, max_positions=131_072
        )
        count = common["num_layers"]
        roped = _roped(fields, count)
        chunk = None
        if fields.content.get("attention_chunk_size", 8192) is not None:
            chunk = fields.positive("attention_chunk_size", 8192)
        allowed = (FULL,) if chunk is None else (CHUNKED, FULL)
        return cls(
            **common,
            **head_fields(fields, kv_heads=8, head_dim=128),
            intermediate_size=fields.positive("intermediate_size", 8192),
            dense_size=fields.positive("intermediate_size_mlp", 16384),
            chunk_size=chunk,
            layer_types=fields.layer_types(
                count, [allowed[0] if flag else FULL for flag in roped], allowed
            ),
            roped=roped,
            rope=single_rope(
                fields,
                theta=500_000.0,
                max_positions=common["max_position_embeddings"],
            ),
            qk_norm=fields.flag("use_qk_norm", True),
            temperature=_temperature(fields),
            temperature_floor=fields.positive("floor_scale", 8192),
            moe_layers=_moe_layers(fields, count),
            num_experts=fields.positive("num_local_experts", 16),
            experts_per_token=fields.positive("num_experts_per_tok", 1),
        )

    def layers(self, cache_format: str = "bfloat16") -> tuple[LayerSpec, ...]:
        """What each layer keeps in the cache: a chunk, or the whole history.

        Args:
          cache_format: dtype of stored keys and values.
        """
        entry = Entry.kv(self.num_kv_heads, self.head_dim, cache_format)
        kinds = {FULL: LayerSpec(global_=Entries(entry))}
        if self.chunk_size is not None:
            kinds[CHUNKED] = LayerSpec(local=Chunk(self.chunk_size, entry))
        return tuple(kinds[kind] for kind in self.layer_types)


def _roped(fields: Fields, count: int) -> tuple[bool, ...]:
    """Which layers rotate: flagged by 1 (despite the field's name), or by period.

    An empty list counts as left out; a list may be longer than the model.
    """
    interval = fields.positive("no_rope_layer_interval", 4)
    default = tuple(int((i + 1) % interval != 0) for i in range(count))
    flags = fields.sequence("no_rope_layers", default) or default
    if len(flags) < count or not set(flags) <= {0, 1}:
        raise fields.error("no_rope_layers", flags, f"0 or 1 for each of {count}")
    return tuple(flag == _ROPED for flag in flags[:count])


def _temperature(fields: Fields) -> float:
    """Strength of the tuning; first releases switch it on by a number."""
    switch = fields.content.get("attn_temperature_tuning", True)
    if not isinstance(switch, int):
        raise fields.error("attn_temperature_tuning", switch, "true or false")
    return fields.number("attn_scale", 0.1) if switch else 0.0


def _moe_layers(fields: Fields, count: int) -> tuple[int, ...]:
    """Layers with experts: listed, or every so many."""
    step = fields.positive("interleave_moe_layer_step", 1)
    chosen = fields.sequence("moe_layers", range(step - 1, count, step))
    if not all(isinstance(layer, int) and 0 <= layer < count for layer in chosen):
        raise fields.error("moe_layers", chosen, f"layers from 0 to {count - 1}")
    return tuple(sorted(set(chosen)))
