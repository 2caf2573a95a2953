"""Qwen3-Next: three Gated DeltaNet layers, then one of gated full attention."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from hybridcache_jax.configs.reading import DecoderConfig, Fields, common_fields
from hybridcache_jax.configs.recurrent import FULL, LINEAR, delta_layer
from hybridcache_jax.configs.rope import RopeConfig, read_rope
from hybridcache_jax.configs.windowed import every, head_fields
from hybridcache_jax.entry import Entry
from hybridcache_jax.layers import Entries, LayerSpec

DENSE, SPARSE = "dense", "sparse"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen3NextConfig(DecoderConfig):
    """Qwen3-Next (Qwen Team, 2025).

    Attributes:
      intermediate_size: width within the MLP of dense layers.
      num_kv_heads: key/value heads of full layers.
      head_dim: elements per head of full layers.
      attention_bias: whether the projections of full layers have a bias.
      rope: rotary embedding of full layers, on the first part of the head.
      layer_types: ``"linear_attention"`` or ``"full_attention"`` per layer.
      conv_kernel: taps of the short convolution of linear layers.
      linear_key_heads: heads of queries and keys of linear layers.
      linear_value_heads: heads of values of linear layers, a multiple.
      linear_key_dim: elements per key of linear layers.
      linear_value_dim: elements per value of linear layers.
      mlp_types: ``"dense"`` or ``"sparse"`` per layer.
      num_experts: routed experts of sparse layers.
      experts_per_token: routed experts of one token.
      normalize_experts: whether the weights of a token's experts sum to one.
      expert_size: width within a routed expert.
      shared_expert_size: width within the expert that every token passes.
    """

    intermediate_size: int
    num_kv_heads: int
    head_dim: int
    attention_bias: bool
    rope: RopeConfig
    layer_types: tuple[str, ...]
    conv_kernel: int
    linear_key_heads: int
    linear_value_heads: int
    linear_key_dim: int
    linear_value_dim: int
    mlp_types: tuple[str, ...]
    num_experts: int
    experts_per_token: int
    normalize_experts: bool
    expert_size: int
    shared_expert_size: int

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Reads the content of a ``config.json``, in either published spelling.

        The older one has ``rope_theta`` and ``partial_rotary_factor`` at the top, and
        may have ``full_attention_interval`` in place of ``layer_types``.

        Raises:
          CheckpointError: if a setting is missing, damaged or not supported.
        """
        fields = Fields(config, "qwen3_next")
        fields.only("model_type", "qwen3_next", "qwen3_next")
        fields.only("hidden_act", "silu", "silu")
        common = common_fields(
            fields, rms_norm_eps=1e-6, tied=False, max_positions=32_768
        )
        count = common["num_layers"]
        interval = fields.positive("full_attention_interval", 4)
        heads = head_fields(fields, kv_heads=2, head_dim=256)
        return cls(
            **common,
            **heads,
            intermediate_size=fields.positive("intermediate_size", 5632),
            attention_bias=fields.flag("attention_bias", False),
            rope=_rope(fields, heads["head_dim"], common["max_position_embeddings"]),
            layer_types=fields.layer_types(
                count, every(count, interval, LINEAR, FULL), (LINEAR, FULL)
            ),
            **_linear_fields(fields),
            **_expert_fields(fields, count),
        )

    @property
    def linear_channels(self) -> int:
        """Inputs of the short convolution: queries, keys and values of all heads."""
        keys = self.linear_key_heads * self.linear_key_dim
        return 2 * keys + self.linear_value_heads * self.linear_value_dim

    def layers(self, cache_format: str = "bfloat16") -> tuple[LayerSpec, ...]:
        """What each layer keeps in the cache: a state, or the whole history.

        Args:
          cache_format: dtype of stored keys and values; states are float32 always.
        """
        linear = delta_layer(
            heads=self.linear_value_heads,
            key_dim=self.linear_key_dim,
            value_dim=self.linear_value_dim,
            kernel=self.conv_kernel,
            channels=self.linear_channels,
            cache_format=cache_format,
        )
        entry = Entry.kv(self.num_kv_heads, self.head_dim, cache_format)
        kinds = {LINEAR: linear, FULL: LayerSpec(global_=Entries(entry))}
        return tuple(kinds[kind] for kind in self.layer_types)


def _rope(fields: Fields, head_dim: int, max_positions: int) -> RopeConfig:
    """The rotary embedding, in ``rope_parameters`` or spread over the config."""
    name = "rope_parameters" if fields.has("rope_parameters") else "rope_scaling"
    settings = read_rope(
        fields.part(name),
        theta=fields.number("rope_theta", 10_000.0),
        partial=fields.number("partial_rotary_factor", 0.25),
        max_positions=max_positions,
    )
    if settings.scaling not in ("default", "linear", "yarn"):
        raise fields.error(f"{name}.type", settings.scaling, "default, linear or yarn")
    rotated = int(head_dim * settings.partial)
    if not 2 <= rotated <= head_dim or rotated % 2:
        raise fields.error(
            "partial_rotary_factor",
            settings.partial,
            f"a fraction that rotates an even part of {head_dim} elements",
        )
    return settings


def _linear_fields(fields: Fields) -> dict[str, Any]:
    """Dimensions of the linear layers, checked against each other."""
    kernel = fields.positive("linear_conv_kernel_dim", 4)
    if kernel < 2:
        raise fields.error("linear_conv_kernel_dim", kernel, "an integer of at least 2")
    keys = fields.positive("linear_num_key_heads", 16)
    values = fields.positive("linear_num_value_heads", 32)
    if values % keys:
        raise fields.error("linear_num_value_heads", values, f"a multiple of {keys}")
    return {
        "conv_kernel": kernel,
        "linear_key_heads": keys,
        "linear_value_heads": values,
        "linear_key_dim": fields.positive("linear_key_head_dim", 128),
        "linear_value_dim": fields.positive("linear_value_head_dim", 128),
    }


def _expert_fields(fields: Fields, count: int) -> dict[str, Any]:
    """Which layers have experts, how many, and how wide they are."""
    experts = fields.integer("num_experts", 512)
    per_token = fields.positive("num_experts_per_tok", 10)
    step = fields.positive("decoder_sparse_step", 1)
    dense = fields.sequence("mlp_only_layers", ())
    kinds = tuple(
        SPARSE if experts and layer not in dense and (layer + 1) % step == 0 else DENSE
        for layer in range(count)
    )
    if SPARSE in kinds and per_token > experts:
        raise fields.error("num_experts_per_tok", per_token, f"at most {experts}")
    return {
        "mlp_types": kinds,
        "num_experts": experts,
        "experts_per_token": per_token,
        "normalize_experts": fields.flag("norm_topk_prob", True),
        "expert_size": fields.positive("moe_intermediate_size", 512),
        "shared_expert_size": fields.positive("shared_expert_intermediate_size", 512),
    }
