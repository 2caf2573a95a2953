"""Gemma 4: window layers with small heads, full layers with large ones, shared KV."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from hybridcache_jax.configs.reading import (
    DecoderConfig,
    Fields,
    common_fields,
    text_part,
)
from hybridcache_jax.configs.rope import RopeConfig, read_rope
from hybridcache_jax.configs.windowed import (
    FULL,
    SLIDING,
    every,
    head_fields,
    window_size,
)
from hybridcache_jax.entry import Entry
from hybridcache_jax.layers import Entries, LayerSpec, Window

_PATTERN = 6
_THETA = 10_000.0
_SCALINGS = ("default", "linear", "proportional")
_DEFAULTS = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
_ROPES = {
    SLIDING: {"rope_theta": _THETA},
    FULL: {
        "rope_type": "proportional",
        "rope_theta": 1_000_000.0,
        "partial_rotary_factor": 0.25,
    },
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gemma4Experts:
    """Mixture of experts beside the dense MLP.

    Attributes:
      count: experts per layer.
      per_token: experts of one token.
      inner: width within one.
    """

    count: int
    per_token: int
    inner: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gemma4Config(DecoderConfig):
    """Gemma 4, text part (Google DeepMind, 2026).

    Attributes:
      intermediate_size: width of the gated MLP.
      wide_shared_mlp: whether layers that share KV have an MLP of twice that width.
      num_kv_heads: key/value heads of window layers.
      head_dim: elements per head of window layers, even.
      full_kv_heads: key/value heads of full layers.
      full_head_dim: elements per head of full layers, even.
      keys_as_values: whether full layers use one projection for keys and values.
      sliding_window: keys a window layer's query sees, its own included.
      layer_types: ``"sliding_attention"`` or ``"full_attention"`` per layer.
      num_shared_layers: last layers that read the keys and values of an earlier one.
      rope_sliding: rotary embedding of window layers.
      rope_full: rotary embedding of full layers.
      per_layer_vocab: rows of the embedding that every layer adds; 0 without one.
      per_layer_size: its width within one layer; 0 without one.
      experts: experts beside the MLP, or None.
      final_logit_softcapping: soft cap of the logits, or None.
      attention_bias: whether the attention projections have a bias.
    """

    intermediate_size: int
    wide_shared_mlp: bool
    num_kv_heads: int
    head_dim: int
    full_kv_heads: int
    full_head_dim: int
    keys_as_values: bool
    sliding_window: int
    layer_types: tuple[str, ...]
    num_shared_layers: int
    rope_sliding: RopeConfig
    rope_full: RopeConfig
    per_layer_vocab: int
    per_layer_size: int
    experts: Gemma4Experts | None
    final_logit_softcapping: float | None
    attention_bias: bool

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Reads the content of a ``config.json``.

        Accepts a text config or a multimodal one with a nested ``text_config``; the
        heads of full layers either as ``global_head_dim`` and
        ``num_global_key_value_heads`` or as ``per_layer_config``.

        Raises:
          CheckpointError: if it is another model, or a setting is damaged or not
            supported.
        """
        text = text_part(config, multimodal="gemma4", text="gemma4_text")
        fields = Fields({**_DEFAULTS, **text}, "gemma4_text")
        fields.only("hidden_activation", "gelu_pytorch_tanh", "gelu_pytorch_tanh")
        _refuse_bidirectional(fields)
        common = common_fields(
            fields, rms_norm_eps=1e-6, tied=True, max_positions=131_072
        )
        kinds = _layer_types(fields, common["num_layers"])
        return cls(
            **common,
            **head_fields(fields, kv_heads=4, head_dim=256),
            **_full_heads(fields, kinds),
            **_per_layer_input(fields),
            intermediate_size=fields.positive("intermediate_size"),
            wide_shared_mlp=fields.flag("use_double_wide_mlp", False),
            keys_as_values=fields.flag("attention_k_eq_v", False),
            sliding_window=window_size(fields, 512),
            layer_types=kinds,
            num_shared_layers=_shared_layers(fields, kinds),
            rope_sliding=_rope(fields, SLIDING),
            rope_full=_rope(fields, FULL),
            experts=_experts(fields),
            final_logit_softcapping=fields.cap("final_logit_softcapping"),
            attention_bias=fields.flag("attention_bias", False),
        )

    @property
    def kv_owners(self) -> tuple[int | None, ...]:
        """Of each layer, the earlier one whose keys and values it reads, or None."""
        own = self.num_layers - self.num_shared_layers
        last = {kind: layer for layer, kind in enumerate(self.layer_types[:own])}
        return (None,) * own + tuple(last[kind] for kind in self.layer_types[own:])

    def heads(self, kind: str) -> tuple[int, int]:
        """Key/value heads and elements per head of a kind of layer."""
        if kind == FULL:
            return self.full_kv_heads, self.full_head_dim
        return self.num_kv_heads, self.head_dim

    def layers(self, cache_format: str = "bfloat16") -> tuple[LayerSpec, ...]:
        """What each layer keeps: a window, the whole history, or nothing of its own.

        Args:
          cache_format: dtype of stored keys and values.
        """
        window = Entry.kv(*self.heads(SLIDING), cache_format)
        kinds = {
            SLIDING: LayerSpec(local=Window(self.sliding_window, window)),
            FULL: LayerSpec(global_=Entries(Entry.kv(*self.heads(FULL), cache_format))),
        }
        return tuple(
            kinds[kind] if owner is None else LayerSpec(kv_owner=owner)
            for kind, owner in zip(self.layer_types, self.kv_owners, strict=True)
        )


def _refuse_bidirectional(fields: Fields) -> None:
    """Tokens of images may see later ones; if all do, no prefix stands by itself."""
    name = "use_bidirectional_attention"
    value = fields.content.get(name)
    if value not in (None, False, "vision"):
        raise fields.error(name, value, "null or 'vision'")


def _rope(fields: Fields, kind: str) -> RopeConfig:
    """Rotary embedding of a kind of layer; where one is given, so must the other be."""
    ropes = fields.part("rope_parameters")
    if not ropes.content:
        ropes = Fields(_ROPES, fields.model_type)
    if not ropes.has(kind):
        raise fields.error("rope_parameters", dict(ropes.content), f"one for {kind}")
    parameters = ropes.part(kind)
    rope = read_rope(parameters, theta=_THETA)
    if rope.scaling not in _SCALINGS:
        raise parameters.error("rope_type", rope.scaling, " or ".join(_SCALINGS))
    if rope.scaling != "proportional":
        parameters.only("partial_rotary_factor", 1.0, 1.0)
    return rope


def _layer_types(fields: Fields, count: int) -> tuple[str, ...]:
    """Kinds of layers; the last one is full whatever the config says."""
    usual = every(count, _PATTERN, SLIDING, FULL)
    kinds = fields.layer_types(count, usual, (SLIDING, FULL))
    return (*kinds[:-1], FULL)


def _full_heads(fields: Fields, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Heads of full layers, from either spelling."""
    heads = fields.positive("num_attention_heads")
    kv_heads = fields.positive("num_key_value_heads", 4)
    dim = fields.positive("global_head_dim", 512)
    if fields.flag("attention_k_eq_v", False):
        kv_heads = fields.positive("num_global_key_value_heads", kv_heads)
    if fields.has("per_layer_config"):
        override = _override(fields, kinds)
        dim = override.positive("head_dim", fields.positive("head_dim", 256))
        kv_heads = override.positive(
            "num_key_value_heads", fields.positive("num_key_value_heads", 4)
        )
    if heads % kv_heads:
        raise fields.error(
            "key/value heads of full layers", kv_heads, f"a divisor of {heads}"
        )
    if dim % 2:
        raise fields.error("head size of full layers", dim, "an even number")
    return {"full_kv_heads": kv_heads, "full_head_dim": dim}


def _override(fields: Fields, kinds: tuple[str, ...]) -> Fields:
    """What ``per_layer_config`` says of full layers, the same of each."""
    overrides = fields.part("per_layer_config")
    full = {str(layer) for layer, kind in enumerate(kinds) if kind == FULL}
    given = {str(layer): value for layer, value in overrides.content.items()}
    first = next(iter(given.values()), {})
    if given.keys() != full or any(value != first for value in given.values()):
        raise fields.error(
            "per_layer_config",
            dict(overrides.content),
            "the same heads for each full layer and none for others",
        )
    return Fields(given, fields.model_type).part(next(iter(given)))


def _per_layer_input(fields: Fields) -> dict[str, Any]:
    name = "hidden_size_per_layer_input"
    absent = name in fields.content and not fields.has(name)
    size = 0 if absent else fields.integer(name, 256)
    if not size:
        return {"per_layer_vocab": 0, "per_layer_size": 0}
    rows = fields.positive("vocab_size_per_layer_input", 262_144)
    vocab = fields.positive("vocab_size")
    if rows < vocab:
        raise fields.error(
            "vocab_size_per_layer_input", rows, f"a row for each of {vocab} tokens"
        )
    return {"per_layer_vocab": rows, "per_layer_size": size}


def _shared_layers(fields: Fields, kinds: tuple[str, ...]) -> int:
    """Number of layers without KV; a layer of the same kind must come before them."""
    count = fields.integer("num_kv_shared_layers", 0)
    own = kinds[: max(len(kinds) - count, 0)]
    if not set(kinds) <= set(own):
        raise fields.error(
            "num_kv_shared_layers", count, "a layer of each kind before the shared ones"
        )
    return count


def _experts(fields: Fields) -> Gemma4Experts | None:
    if not fields.flag("enable_moe_block", False):
        return None
    count = fields.positive("num_experts")
    chosen = fields.positive("top_k_experts")
    if chosen > count:
        raise fields.error("top_k_experts", chosen, f"at most {count}")
    return Gemma4Experts(
        count=count, per_token=chosen, inner=fields.positive("moe_intermediate_size")
    )
