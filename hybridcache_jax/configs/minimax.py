"""MiniMax-01 and M1: seven layers of lightning attention, then one of softmax.

The specification of their cache only: a model class for them is not part of this
library, so that settings which do not touch the cache are left unread.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from hybridcache_jax.configs.reading import DecoderConfig, Fields, common_fields
from hybridcache_jax.configs.recurrent import FULL, LINEAR, lightning_layer
from hybridcache_jax.configs.windowed import every, head_fields
from hybridcache_jax.entry import Entry
from hybridcache_jax.layers import Entries, LayerSpec

_MODEL_TYPES = ("minimax", "minimax_text_01", "minimax_m1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinimaxConfig(DecoderConfig):
    """MiniMax-01 or M1 (MiniMax, "MiniMax-01", 2025).

    Attributes:
      num_kv_heads: key/value heads of full layers; linear layers have one state for
        each of ``num_heads``.
      head_dim: elements per head of both kinds.
      layer_types: ``"linear_attention"`` or ``"full_attention"`` per layer.
    """

    num_kv_heads: int
    head_dim: int
    layer_types: tuple[str, ...]

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Reads the content of a ``config.json``, in either published spelling.

        The publisher's has ``attn_type_list``, where 1 is softmax.

        Raises:
          CheckpointError: if a setting is missing, damaged or not supported.
        """
        fields = Fields(config, "minimax")
        model_type = fields.text("model_type", "minimax")
        if model_type not in _MODEL_TYPES:
            raise fields.error("model_type", model_type, " or ".join(_MODEL_TYPES))
        common = common_fields(
            fields, rms_norm_eps=1e-5, tied=False, max_positions=131_072
        )
        count = common["num_layers"]
        default = every(count, 2, FULL, LINEAR)
        if fields.has("attn_type_list"):
            default = _kinds(fields)
        return cls(
            **common,
            **head_fields(fields, kv_heads=8),
            layer_types=fields.layer_types(count, default, (LINEAR, FULL)),
        )

    def layers(self, cache_format: str = "bfloat16") -> tuple[LayerSpec, ...]:
        """What each layer keeps in the cache: a state, or the whole history.

        Args:
          cache_format: dtype of stored keys and values; states are float32 always.
        """
        linear = lightning_layer(
            heads=self.num_heads, key_dim=self.head_dim, value_dim=self.head_dim
        )
        entry = Entry.kv(self.num_kv_heads, self.head_dim, cache_format)
        kinds = {LINEAR: linear, FULL: LayerSpec(global_=Entries(entry))}
        return tuple(kinds[kind] for kind in self.layer_types)


def _kinds(fields: Fields) -> tuple[str, ...]:
    flags = fields.sequence("attn_type_list")
    if not all(flag in (0, 1) for flag in flags):
        raise fields.error("attn_type_list", flags, "a list of 0 and 1")
    return tuple(FULL if flag else LINEAR for flag in flags)
