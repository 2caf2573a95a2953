"""Families that mix window layers with full ones: what their configs share."""

import dataclasses
from typing import Any

from hybridcache_jax.configs.reading import DecoderConfig, Fields
from hybridcache_jax.configs.rope import RopeConfig, read_rope
from hybridcache_jax.entry import Entry
from hybridcache_jax.layers import Entries, LayerSpec, Window

SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
FULL = "full_attention"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowedConfig(DecoderConfig):
    """Grouped-query attention over a window in some layers and over all in others.

    Attributes:
      intermediate_size: width of the gated MLP.
      num_kv_heads: key/value heads; divides ``num_heads``.
      head_dim: elements per head, even.
      sliding_window: keys a window layer's query sees, its own included; None in
        models without window layers.
      layer_types: :data:`SLIDING` or :data:`FULL` per layer.
    """

    intermediate_size: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None
    layer_types: tuple[str, ...]

    def layers(self, cache_format: str = "bfloat16") -> tuple[LayerSpec, ...]:
        """What each layer keeps in the cache: a window, or the whole history.

        Args:
          cache_format: dtype of stored keys and values.
        """
        entry = Entry.kv(self.num_kv_heads, self.head_dim, cache_format)
        kinds = {FULL: LayerSpec(global_=Entries(entry))}
        if self.sliding_window is not None:
            kinds[SLIDING] = LayerSpec(local=Window(self.sliding_window, entry))
        return tuple(kinds[kind] for kind in self.layer_types)


def windowed_fields(
    fields: Fields,
    *,
    period: int,
    window: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
) -> dict[str, Any]:
    """Arguments that :class:`WindowedConfig` adds, with the family's defaults.

    Args:
      fields: the config.
      period: every how many layers one is full, where the config lists no kinds.
      window: keys a window layer's query sees, where the config does not say.
      kv_heads: default key/value heads; by default one per query head.
      head_dim: default elements per head; by default the hidden size per head.
    """
    count = fields.layer_count()
    return {
        "intermediate_size": fields.positive("intermediate_size"),
        **head_fields(fields, kv_heads=kv_heads, head_dim=head_dim),
        "sliding_window": window_size(fields, window),
        "layer_types": fields.layer_types(
            count, every(count, period, SLIDING, FULL), (SLIDING, FULL)
        ),
    }


def head_fields(
    fields: Fields, *, kv_heads: int | None = None, head_dim: int | None = None
) -> dict[str, Any]:
    """Key/value heads and elements per head, checked against each other.

    Args:
      fields: the config.
      kv_heads: default key/value heads; by default one per query head.
      head_dim: default elements per head; by default the hidden size per head.
    """
    heads = fields.positive("num_attention_heads")
    shared = fields.positive("num_key_value_heads", kv_heads or heads)
    if heads % shared:
        raise fields.error("num_key_value_heads", shared, f"a divisor of {heads}")
    dim = fields.positive(
        "head_dim", head_dim or fields.positive("hidden_size") // heads
    )
    if dim % 2:
        raise fields.error("head_dim", dim, "an even number, for rotary embedding")
    return {"num_kv_heads": shared, "head_dim": dim}


def window_size(fields: Fields, default: int) -> int:
    """Size of the window, the query's own key included.

    Only an absent size has a default: ``null`` says that there is no window, which a
    family with window layers cannot mean.
    """
    if fields.content.get("sliding_window", default) is None:
        raise fields.error("sliding_window", None, "an integer of at least 1")
    return fields.positive("sliding_window", default)


def every(count: int, period: int, usual: str, other: str) -> tuple[str, ...]:
    """``count`` layer kinds, each ``period``-th of them the other one."""
    return tuple(usual if (i + 1) % period else other for i in range(count))


def single_rope(fields: Fields, *, theta: float, max_positions: int) -> RopeConfig:
    """The rotary embedding of a model that has one for all layers.

    Args:
      fields: the config: ``rope_parameters``, or ``rope_theta`` with
        ``rope_scaling``.
      theta: the family's base.
      max_positions: the original length, where a scaling does not say.
    """
    new = fields.has("rope_parameters")
    return read_rope(
        fields.part("rope_parameters" if new else "rope_scaling"),
        theta=fields.number("rope_theta", theta),
        max_positions=max_positions,
    )
