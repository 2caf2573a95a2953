"""Config of DeepSeek-V3.2 and GLM-5: latent attention with an indexer.

Both are one architecture: they differ in the pairing that the indexer's rotation uses,
in whether every layer has an indexer, and in numbers.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from hybridcache_jax.configs.deepseek_moe import RoutingConfig, read_routing
from hybridcache_jax.configs.latent import LatentConfig, read_latent, scaled_planes
from hybridcache_jax.configs.reading import DecoderConfig, Fields, common_fields
from hybridcache_jax.configs.rope import RopeConfig, read_rope
from hybridcache_jax.entry import Entry, Plane
from hybridcache_jax.layers import Entries, IndexKeys, LayerSpec, TopK

FULL, SHARED = "full", "shared"
DENSE, SPARSE = "dense", "sparse"

_GLM = "glm_moe_dsa"
_INTERLEAVED = "rotated interleaved pairs, de-interleaved"
_HALF_SPLIT = "rotated half-split pairs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepseekV32Config(DecoderConfig):
    """DeepSeek-V3.2 or GLM-5.

    Attributes:
      intermediate_size: width within the MLP of dense layers.
      latent: dimensions of the attention.
      rope: rotation of attention and indexer.
      routing: experts of sparse layers.
      mlp_types: ``"dense"`` or ``"sparse"`` per layer.
      index_heads: heads of the indexer.
      index_head_dim: elements per head of it.
      index_topk: tokens that a query attends to.
      index_interleaved: whether the indexer rotates interleaved pairs; else
        half-split ones.
      indexer_types: per layer ``"full"``, with an indexer of its own, or ``"shared"``,
        reading the selection of the nearest full layer before it.
    """

    intermediate_size: int
    latent: LatentConfig
    rope: RopeConfig
    routing: RoutingConfig
    mlp_types: tuple[str, ...]
    index_heads: int
    index_head_dim: int
    index_topk: int
    index_interleaved: bool
    indexer_types: tuple[str, ...]

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Reads the content of a ``config.json``, in either published spelling.

        Raises:
          CheckpointError: if a setting is missing, damaged or not supported.
        """
        model_type = str(config.get("model_type", "deepseek_v32"))
        fields = Fields(config, model_type)
        if model_type not in ("deepseek_v32", _GLM):
            raise fields.error("model_type", model_type, f"'deepseek_v32' or '{_GLM}'")
        glm = model_type == _GLM
        _refuse_unsupported(fields)
        common = common_fields(
            fields,
            rms_norm_eps=1e-5 if glm else 1e-6,
            tied=False,
            max_positions=202752 if glm else 163840,
        )
        latent = read_latent(fields)
        if latent.query_rank is None:
            raise fields.error("q_lora_rank", None, "the rank that the indexer reads")
        if latent.rope_dim % 2:
            raise fields.error("qk_rope_head_dim", latent.rope_dim, "an even number")
        count = common["num_layers"]
        return cls(
            **common,
            intermediate_size=fields.positive("intermediate_size"),
            latent=latent,
            rope=_read_rope(fields, common["max_position_embeddings"]),
            routing=read_routing(
                fields,
                num_groups=1 if glm else 8,
                chosen_groups=1 if glm else 4,
                scaling=2.5,
            ),
            mlp_types=_mlp_types(fields, count),
            index_heads=fields.positive("index_n_heads", 32 if glm else 64),
            index_head_dim=_index_head_dim(fields, latent.rope_dim),
            index_topk=fields.positive("index_topk", 2048),
            index_interleaved=fields.flag("indexer_rope_interleave", glm),
            indexer_types=_indexer_types(fields, count),
        )

    def layers(self, cache_format: str = "bfloat16") -> tuple[LayerSpec, ...]:
        """What each layer keeps: latents, and index keys where it has an indexer.

        Args:
          cache_format: a dtype for all planes; or ``"fp8"``, the published layout:
            latents and index keys in float8_e4m3fn with one float32 scale per 128
            elements, rotated key parts in bfloat16.
        """
        entry = self.latent.entry(cache_format, convention=_INTERLEAVED)
        index = IndexKeys(self._index_entry(cache_format))
        specs, owner = [], None
        for layer, kind in enumerate(self.indexer_types):
            if kind == FULL:
                owner = layer
                specs.append(
                    LayerSpec(
                        global_=Entries(entry),
                        select=TopK(self.index_topk),
                        index=index,
                    )
                )
            else:
                specs.append(LayerSpec(global_=Entries(entry), select_owner=owner))
        return tuple(specs)

    def _index_entry(self, cache_format: str) -> Entry:
        if cache_format == "fp8":
            planes = scaled_planes("k", self.index_head_dim)
        else:
            planes = (Plane("k", 1, self.index_head_dim, cache_format),)
        pairs = _INTERLEAVED if self.index_interleaved else _HALF_SPLIT
        return Entry(planes, convention=pairs)


def _refuse_unsupported(fields: Fields) -> None:
    heads = fields.positive("num_attention_heads")
    fields.only("num_key_value_heads", heads, heads)
    fields.only("hidden_act", "silu", "silu")
    fields.only("attention_bias", False, False)
    fields.only("mlp_bias", False, False)
    fields.only("rope_interleave", True, True)
    fields.only("scoring_func", "sigmoid", "sigmoid")
    fields.only("topk_method", "noaux_tc", "noaux_tc")
    fields.only("moe_layer_freq", 1, 1)


def _read_rope(fields: Fields, max_positions: int) -> RopeConfig:
    name = "rope_scaling" if fields.has("rope_scaling") else "rope_parameters"
    parameters = fields.part(name)
    settings = read_rope(
        parameters,
        theta=fields.number("rope_theta", 10000.0),
        max_positions=max_positions,
    )
    if settings.scaling not in ("default", "linear", "yarn"):
        raise fields.error(f"{name}.type", settings.scaling, "default, linear or yarn")
    if settings.partial != 1:
        raise fields.error("partial_rotary_factor", settings.partial, "1")
    return settings


def _mlp_types(fields: Fields, count: int) -> tuple[str, ...]:
    dense = fields.integer("first_k_dense_replace", 3)
    default = tuple(DENSE if layer < dense else SPARSE for layer in range(count))
    return fields.layer_types(count, default, (DENSE, SPARSE), "mlp_layer_types")


def _indexer_types(fields: Fields, count: int) -> tuple[str, ...]:
    """From a list, a pattern of ``F`` and ``S``, or a period and its start."""
    period = max(fields.integer("index_topk_freq", 1), 1)
    start = fields.integer("index_skip_topk_offset", 2) - 1
    default = tuple(
        FULL if max(layer - start, 0) % period == 0 else SHARED
        for layer in range(count)
    )
    if fields.has("index_topk_pattern"):
        pattern = fields.text("index_topk_pattern")
        default = tuple({"F": FULL, "S": SHARED}.get(kind, kind) for kind in pattern)
    kinds = fields.layer_types(count, default, (FULL, SHARED), "indexer_types")
    if kinds[0] != FULL:
        raise fields.error("indexer_types", kinds, "a first layer of type 'full'")
    return kinds


def _index_head_dim(fields: Fields, rope_dim: int) -> int:
    dim = fields.positive("index_head_dim", 128)
    if dim < rope_dim:
        raise fields.error("index_head_dim", dim, f"at least {rope_dim} to rotate")
    return dim
