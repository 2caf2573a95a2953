"""MiMo-V2-Flash: small windows with sinks, and a full layer in every six."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

from hybridcache_jax.configs.deepseek_moe import RoutingConfig
from hybridcache_jax.configs.reading import DecoderConfig, Fields, common_fields
from hybridcache_jax.configs.rope import RopeConfig, read_rope
from hybridcache_jax.configs.windowed import FULL, SLIDING, head_fields
from hybridcache_jax.entry import Entry, Plane
from hybridcache_jax.layers import Entries, LayerSpec, Window

DENSE = "dense"
SPARSE = "sparse"
_ROTATED = 0.334


@dataclasses.dataclass(frozen=True, kw_only=True)
class MimoV2FlashConfig(DecoderConfig):
    """MiMo-V2-Flash (Xiaomi, "MiMo-V2-Flash", 2026).

    Attributes:
      intermediate_size: width of dense gated MLPs.
      num_kv_heads: key/value heads of full layers.
      window_kv_heads: key/value heads of window layers.
      head_dim: elements per query and key head.
      value_dim: elements per value head.
      lookback: keys *before* its own that a window layer's query sees; the publisher
        counts so.
      layer_types: ``"sliding_attention"`` or ``"full_attention"`` per layer.
      mlp_layer_types: :data:`DENSE` or :data:`SPARSE` per layer.
      rope_sliding: rotary embedding of window layers, on a part of the head.
      rope_full: rotary embedding of full layers, on a part of the head.
      value_scale: factor on values, before they are stored.
      routing: mixture of experts of sparse layers.
    """

    intermediate_size: int
    num_kv_heads: int
    window_kv_heads: int
    head_dim: int
    value_dim: int
    lookback: int
    layer_types: tuple[str, ...]
    mlp_layer_types: tuple[str, ...]
    rope_sliding: RopeConfig
    rope_full: RopeConfig
    value_scale: float
    routing: RoutingConfig

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Reads the content of a ``config.json``, in either published spelling.

        The publisher's has ``hybrid_layer_pattern`` and ``moe_layer_freq`` for the
        kinds of layers, ``swa_*`` for window layers, and ``sliding_window_size`` for
        the keys before the query's own.  The other counts the own key in
        ``sliding_window``.

        Raises:
          CheckpointError: if a setting is missing, damaged or not supported.
        """
        fields = Fields(config, "mimo_v2_flash")
        _refuse_unsupported(fields)
        count = fields.layer_count()
        heads = head_fields(fields, kv_heads=4, head_dim=192)
        window_kv_heads = fields.positive(
            "swa_num_key_value_heads", 2 * heads["num_kv_heads"]
        )
        if fields.positive("num_attention_heads") % window_kv_heads:
            raise fields.error(
                "swa_num_key_value_heads", window_kv_heads, "a divisor of the heads"
            )
        value_scale = 1.0
        if config.get("attention_value_scale", 0.707) is not None:
            value_scale = fields.number("attention_value_scale", 0.707)
        lookback = fields.integer(
            "sliding_window_size", fields.positive("sliding_window", 129) - 1
        )
        return cls(
            **common_fields(
                fields,
                rms_norm_eps=fields.number("layernorm_epsilon", 1e-5),
                tied=False,
                max_positions=131_072,
            ),
            **heads,
            intermediate_size=fields.positive("intermediate_size"),
            window_kv_heads=window_kv_heads,
            value_dim=fields.positive("v_head_dim", 128),
            lookback=lookback,
            layer_types=_attention_kinds(fields, count),
            mlp_layer_types=_mlp_kinds(fields, count),
            rope_sliding=_rope(fields, SLIDING, "swa_rope_theta", 10_000.0),
            rope_full=_rope(fields, FULL, "rope_theta", 5_000_000.0),
            value_scale=value_scale,
            routing=_routing(fields),
        )

    def layers(self, cache_format: str = "bfloat16") -> tuple[LayerSpec, ...]:
        """What each layer keeps in the cache: a window, or the whole history.

        Args:
          cache_format: dtype of stored keys and values.
        """

        def entry(heads: int) -> Entry:
            return Entry(
                (
                    Plane("k", heads, self.head_dim, cache_format),
                    Plane("v", heads, self.value_dim, cache_format),
                )
            )

        window = Window.from_lookback(self.lookback, entry(self.window_kv_heads))
        full = Entries(entry(self.num_kv_heads))
        kinds = {SLIDING: LayerSpec(local=window), FULL: LayerSpec(global_=full)}
        return tuple(kinds[kind] for kind in self.layer_types)


def _refuse_unsupported(fields: Fields) -> None:
    """Refuses by name what no MiMo-V2-Flash has and the model does not do."""
    fields.only("model_type", "mimo_v2_flash", "mimo_v2_flash")
    fields.only("hidden_act", "silu", "silu")
    fields.only("attention_bias", False, False)
    fields.only("add_swa_attention_sink_bias", True, True)
    fields.only("add_full_attention_sink_bias", False, False)
    fields.only("n_shared_experts", 0, 0)
    fields.only("scoring_func", "sigmoid", "sigmoid")
    fields.only("topk_method", "noaux_tc", "noaux_tc")
    for name, of_full, default in (
        ("swa_num_attention_heads", "num_attention_heads", 64),
        ("swa_head_dim", "head_dim", 192),
        ("swa_v_head_dim", "v_head_dim", 128),
    ):
        same = fields.positive(of_full, default)
        fields.only(name, same, same)


def _attention_kinds(fields: Fields, count: int) -> tuple[str, ...]:
    """Window and full layers: listed, flagged, or the publisher's schedule."""
    default = [SLIDING if i and (i + 1) % 6 else FULL for i in range(count)]
    if fields.has("hybrid_layer_pattern"):
        default = _flagged(fields, "hybrid_layer_pattern", FULL, SLIDING)
    return fields.layer_types(count, default, (SLIDING, FULL))


def _mlp_kinds(fields: Fields, count: int) -> tuple[str, ...]:
    """Dense and sparse layers: listed, flagged, or the first one dense."""
    default: Sequence[str] = (DENSE,) + (SPARSE,) * (count - 1)
    if fields.has("moe_layer_freq"):
        default = _flagged(fields, "moe_layer_freq", DENSE, SPARSE)
    return fields.layer_types(count, default, (DENSE, SPARSE), "mlp_layer_types")


def _flagged(fields: Fields, name: str, unset: str, flagged: str) -> tuple[str, ...]:
    """Kinds that the publisher spells as a list of 0 and 1."""
    flags = fields.sequence(name)
    if not all(flag in (0, 1) for flag in flags):
        raise fields.error(name, flags, "a list of 0 and 1")
    return tuple(flagged if flag else unset for flag in flags)


def _rope(fields: Fields, kind: str, theta_name: str, theta: float) -> RopeConfig:
    """The rotary embedding of one kind of layer."""
    ropes = fields.part("rope_parameters")
    return read_rope(
        ropes.part(kind) if ropes.has(kind) else fields.part("rope_scaling"),
        theta=fields.number(theta_name, theta),
        partial=fields.number("partial_rotary_factor", _ROTATED),
    )


def _routing(fields: Fields) -> RoutingConfig:
    """The mixture of experts; a ``routed_scaling_factor`` of null is 1."""
    experts = fields.positive("n_routed_experts", 256)
    groups = fields.positive("n_group", 1)
    if experts % groups:
        raise fields.error("n_group", groups, f"a divisor of {experts}")
    return RoutingConfig(
        num_experts=experts,
        experts_per_token=fields.positive("num_experts_per_tok", 8),
        num_groups=groups,
        chosen_groups=fields.positive("topk_group", 1),
        normalize=fields.flag("norm_topk_prob", True),
        scaling=fields.number("routed_scaling_factor", 1.0),
        inner=fields.positive("moe_intermediate_size", 2048),
        shared_experts=0,
    )
