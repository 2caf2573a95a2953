"""Kimi Linear: three Kimi Delta Attention layers, then one of latent attention."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from hybridcache_jax.configs.deepseek_moe import RoutingConfig, read_routing
from hybridcache_jax.configs.latent import LatentConfig, read_latent
from hybridcache_jax.configs.reading import DecoderConfig, Fields, common_fields
from hybridcache_jax.configs.recurrent import FULL, LINEAR, delta_layer
from hybridcache_jax.layers import Entries, LayerSpec

DENSE, SPARSE = "dense", "sparse"


@dataclasses.dataclass(frozen=True, kw_only=True)
class KimiLinearConfig(DecoderConfig):
    """Kimi Linear (Kimi Team, "Kimi Linear", 2025).

    Attributes:
      intermediate_size: width within the MLP of dense layers.
      layer_types: ``"linear_attention"`` or ``"full_attention"`` per layer.
      latent: dimensions of the attention of full layers; nothing in it is rotated.
      linear_heads: heads of linear layers.
      linear_dim: elements per query, key and value of linear layers.
      conv_kernel: taps of the short convolutions of linear layers.
      mlp_types: ``"dense"`` or ``"sparse"`` per layer.
      routing: experts of sparse layers.
    """

    intermediate_size: int
    layer_types: tuple[str, ...]
    latent: LatentConfig
    linear_heads: int
    linear_dim: int
    conv_kernel: int
    mlp_types: tuple[str, ...]
    routing: RoutingConfig

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Reads the content of a ``config.json``, in either published spelling.

        The publisher's has the linear layers' settings in ``linear_attn_config``, with
        layers counted from 1, and ``first_k_dense_replace`` for the dense layers.

        Raises:
          CheckpointError: if a setting is missing, damaged or not supported.
        """
        fields = Fields(config, "kimi_linear")
        _refuse_unsupported(fields)
        longest = fields.positive("model_max_length", 1_048_576)
        common = common_fields(
            fields, rms_norm_eps=1e-5, tied=False, max_positions=longest
        )
        count = common["num_layers"]
        dense = fields.integer("first_k_dense_replace", 1)
        mlp_types = [DENSE if layer < dense else SPARSE for layer in range(count)]
        return cls(
            **common,
            intermediate_size=fields.positive("intermediate_size", 9216),
            layer_types=fields.layer_types(
                count, _schedule(fields, count), (LINEAR, FULL)
            ),
            latent=read_latent(fields),
            **_linear_fields(fields),
            mlp_types=fields.layer_types(
                count, mlp_types, (DENSE, SPARSE), "mlp_layer_types"
            ),
            routing=read_routing(
                fields,
                experts="num_experts",
                per_token="num_experts_per_token",
                groups="num_expert_group",
                normalize="moe_renormalize",
                shared="num_shared_experts",
                num_groups=1,
                chosen_groups=1,
                scaling=2.446,
            ),
        )

    @property
    def linear_channels(self) -> int:
        """Inputs of the short convolution: queries, keys and values of all heads."""
        return 3 * self.linear_heads * self.linear_dim

    def layers(self, cache_format: str = "bfloat16") -> tuple[LayerSpec, ...]:
        """What each layer keeps in the cache: a state, or a latent per token.

        Args:
          cache_format: a dtype for the latents, or ``"fp8"``; states are float32
            always.
        """
        linear = delta_layer(
            heads=self.linear_heads,
            key_dim=self.linear_dim,
            value_dim=self.linear_dim,
            kernel=self.conv_kernel,
            channels=self.linear_channels,
            cache_format=cache_format,
        )
        entry = self.latent.entry(cache_format, convention="not rotated")
        kinds = {LINEAR: linear, FULL: LayerSpec(global_=Entries(entry))}
        return tuple(kinds[kind] for kind in self.layer_types)


def _refuse_unsupported(fields: Fields) -> None:
    """Refuses by name what no Kimi Linear has and the model does not do."""
    fields.only("model_type", "kimi_linear", "kimi_linear")
    fields.only("hidden_act", "silu", "silu")
    fields.only("attention_bias", False, False)
    fields.only("mla_use_nope", True, True)
    fields.only("moe_router_activation_func", "sigmoid", "sigmoid")
    fields.only("moe_layer_freq", 1, 1)


def _schedule(fields: Fields, count: int) -> tuple[str, ...]:
    """Kinds of layers from the publisher's two lists, which count from 1."""
    lists = fields.part("linear_attn_config")
    if not lists.has("full_attn_layers"):
        return tuple(FULL if i and i % 4 == 0 else LINEAR for i in range(count))
    full = lists.sequence("full_attn_layers")
    linear = lists.sequence("kda_layers")
    once = all((i in full) != (i in linear) for i in range(1, count + 1))
    if not once or len(full) + len(linear) != count:
        raise fields.error(
            "linear_attn_config.full_attn_layers, kda_layers",
            (full, linear),
            f"each of the layers 1 to {count} in one of them",
        )
    return tuple(FULL if i + 1 in full else LINEAR for i in range(count))


def _linear_fields(fields: Fields) -> dict[str, Any]:
    """Dimensions of the linear layers, in a part of their own or at the top."""
    part = fields.part("linear_attn_config")
    kernel = part.positive(
        "short_conv_kernel_size", fields.positive("linear_conv_kernel_dim", 4)
    )
    if kernel < 2:
        raise fields.error("short_conv_kernel_size", kernel, "an integer of at least 2")
    return {
        "linear_heads": part.positive(
            "num_heads", fields.positive("linear_num_heads", 32)
        ),
        "linear_dim": part.positive(
            "head_dim", fields.positive("linear_head_dim", 128)
        ),
        "conv_kernel": kernel,
    }
