"""DeepSeek-V4: settings, and what its layers keep in the cache.

DeepSeek-AI, "DeepSeek-V4" (2026).  Every layer attends to a sliding window; most also
to entries that pool 4 tokens (compressed sparse attention, CSA) or 128 (heavily
compressed attention, HCA).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from hybridcache_jax.configs.deepseek_v4_formats import EntryFormats
from hybridcache_jax.configs.reading import DecoderConfig, Fields, common_fields
from hybridcache_jax.configs.rope import RopeConfig, read_rope
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.layers import Entries, IndexKeys, LayerSpec, TopK, Window

WINDOW = "sliding_attention"
CSA = "compressed_sparse_attention"
HCA = "heavily_compressed_attention"
HASHED = "hash_moe"
ROUTED = "moe"
SCORINGS = ("sqrtsoftplus", "sigmoid")

_KIND_OF_RATIO = {0: WINDOW, 4: CSA, 128: HCA}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepseekV4Config(DecoderConfig):
    """Everything a DeepSeek-V4 decoder needs to know besides its weights.

    Attributes:
      layer_types: :data:`WINDOW`, :data:`CSA` or :data:`HCA` per layer.
      csa_ratio: tokens per entry and index key of a CSA layer.
      hca_ratio: tokens per entry of an HCA layer.
      sliding_window: keys of the window a query sees, its own included.
      head_dim: elements of a query head, a window row and an entry.
      rope_head_dim: the last elements of each, those that are rotated.
      rope_main: rotary embedding of layers that have only a window.
      rope_compress: rotary embedding of all else.
      q_lora_rank: width of the latent that queries are made of.
      o_groups: groups of heads in the output projection.
      o_lora_rank: width of each group's output.
      index_heads: query heads of the indexer.
      index_head_dim: elements of an index key.
      index_topk: entries that a CSA query selects.
      mlp_layer_types: :data:`HASHED` or :data:`ROUTED` per layer.
      moe_intermediate_size: inner width of an expert, the shared one too.
      num_experts: routed experts.
      experts_per_token: experts that a token is sent to.
      scoring: one of :data:`SCORINGS`, from router logits to scores.
      routed_scaling_factor: factor on the normalised weights of the experts.
      swiglu_limit: bound of gate (above) and up (both sides) in every expert.
      hc_mult: residual streams of the hyper-connections.
      hc_sinkhorn_iters: normalisations of the matrix that mixes the streams.
      hc_eps: added where that matrix and the read-out weights are made.
    """

    layer_types: tuple[str, ...]
    csa_ratio: int
    hca_ratio: int
    sliding_window: int
    head_dim: int
    rope_head_dim: int
    rope_main: RopeConfig
    rope_compress: RopeConfig
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    index_heads: int
    index_head_dim: int
    index_topk: int
    mlp_layer_types: tuple[str, ...]
    moe_intermediate_size: int
    num_experts: int
    experts_per_token: int
    scoring: str
    routed_scaling_factor: float
    swiglu_limit: float
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Reads a ``config.json`` of transformers or of the publisher.

        Raises:
          CheckpointError: if a setting is damaged or not supported, or if there is no
            schedule of layers: the class default of transformers is that of neither
            released model, so none is assumed.
        """
        fields = Fields(config, "deepseek_v4")
        for name, supported in (
            ("model_type", "deepseek_v4"),
            ("num_key_value_heads", 1),
            ("n_shared_experts", 1),
            ("attention_bias", False),
            ("mlp_bias", False),
            ("hidden_act", "silu"),
            ("norm_topk_prob", True),
        ):
            fields.only(name, supported, supported)
        common = common_fields(
            fields, rms_norm_eps=1e-6, tied=False, max_positions=1048576
        )
        head_dim = fields.positive("head_dim", 512)
        rope_head_dim = _rope_head_dim(fields, head_dim)
        main, compress = _ropes(fields, head_dim, rope_head_dim)
        rates = fields.part("compress_rates")
        result = cls(
            **common,
            layer_types=_schedule(fields, common["num_layers"]),
            csa_ratio=rates.positive(CSA, 4),
            hca_ratio=rates.positive(HCA, 128),
            sliding_window=fields.positive("sliding_window", 128),
            head_dim=head_dim,
            rope_head_dim=rope_head_dim,
            rope_main=main,
            rope_compress=compress,
            q_lora_rank=fields.positive("q_lora_rank", 1024),
            o_groups=fields.positive("o_groups", 8),
            o_lora_rank=fields.positive("o_lora_rank", 1024),
            index_heads=fields.positive("index_n_heads", 64),
            index_head_dim=fields.positive("index_head_dim", 128),
            index_topk=fields.positive("index_topk", 512),
            mlp_layer_types=_mlp_schedule(fields, common["num_layers"]),
            moe_intermediate_size=fields.positive("moe_intermediate_size", 2048),
            num_experts=fields.positive("n_routed_experts", 256),
            experts_per_token=fields.positive("num_experts_per_tok", 6),
            scoring=fields.text("scoring_func", "sqrtsoftplus"),
            routed_scaling_factor=fields.number("routed_scaling_factor", 1.5),
            swiglu_limit=fields.number("swiglu_limit", 10.0),
            hc_mult=fields.positive("hc_mult", 4),
            hc_sinkhorn_iters=fields.positive("hc_sinkhorn_iters", 20),
            hc_eps=fields.number("hc_eps", 1e-6),
        )
        result._check(fields)
        return result

    def layers(self, cache_format: str = "bfloat16") -> tuple[LayerSpec, ...]:
        """What each layer keeps in the cache.

        Args:
          cache_format: a dtype for rows, entries and index keys; or a published
            quantised layout: ``"fp8"``, or ``"fp8_fp4"`` with 4-bit index keys.  Raw
            rows are float32 in each of them.
        """
        formats = EntryFormats(cache_format)
        entry = formats.entry(self.head_dim - self.rope_head_dim, self.rope_head_dim)
        window = Window(self.sliding_window, entry)
        csa = LayerSpec(
            local=window,
            global_=Entries(
                entry, self.csa_ratio, overlap=1, raw=formats.raw(2 * self.head_dim)
            ),
            select=TopK(self.index_topk, unit=self.csa_ratio),
            index=IndexKeys(
                formats.index_key(self.index_head_dim),
                self.csa_ratio,
                overlap=1,
                raw=formats.raw(2 * self.index_head_dim),
            ),
        )
        hca = LayerSpec(
            local=window,
            global_=Entries(entry, self.hca_ratio, raw=formats.raw(self.head_dim)),
        )
        kinds = {WINDOW: LayerSpec(local=window), CSA: csa, HCA: hca}
        return tuple(kinds[kind] for kind in self.layer_types)

    def _check(self, fields: Fields) -> None:
        """Refuses settings that do not fit each other."""
        if self.num_heads % self.o_groups:
            raise fields.error("o_groups", self.o_groups, "a divisor of the heads")
        if self.experts_per_token > self.num_experts:
            raise fields.error(
                "num_experts_per_tok", self.experts_per_token, "at most all experts"
            )
        if self.scoring not in SCORINGS:
            raise fields.error("scoring_func", self.scoring, f"one of {SCORINGS}")
        if self.swiglu_limit <= 0:
            raise fields.error("swiglu_limit", self.swiglu_limit, "a number above 0")
        if min(self.csa_ratio, self.hca_ratio) < 2:
            raise fields.error(
                "compress_rates", (self.csa_ratio, self.hca_ratio), "ratios above 1"
            )
        if self.rope_head_dim > self.index_head_dim:
            raise fields.error(
                "index_head_dim",
                self.index_head_dim,
                f"at least the {self.rope_head_dim} rotated elements",
            )


def _schedule(fields: Fields, count: int) -> tuple[str, ...]:
    """The kind of each layer, from whichever spelling there is."""
    if fields.has("layer_types"):
        return fields.layer_types(count, None, (WINDOW, CSA, HCA))
    if not fields.has("compress_ratios"):
        raise CheckpointError(
            f"The config of this {fields.model_type} model has neither compress_ratios "
            "nor layer_types. What transformers would assume is the schedule of no "
            "released model; complete the config, or fetch it anew."
        )
    ratios = fields.sequence("compress_ratios")
    drafts = fields.integer("num_nextn_predict_layers", 1)
    if len(ratios) not in (count, count + drafts):
        raise fields.error(
            "compress_ratios",
            ratios,
            f"one ratio for each of {count} layers, and for {drafts} draft layers",
        )
    if any(ratio not in _KIND_OF_RATIO for ratio in ratios):
        raise fields.error("compress_ratios", ratios, "only 0, 4 and 128")
    return tuple(_KIND_OF_RATIO[ratio] for ratio in ratios[:count])


def _mlp_schedule(fields: Fields, count: int) -> tuple[str, ...]:
    """The kind of each layer's experts, from whichever spelling there is."""
    hashed = min(fields.integer("num_hash_layers", 3), count)
    default = (HASHED,) * hashed + (ROUTED,) * (count - hashed)
    return fields.layer_types(count, default, (HASHED, ROUTED), "mlp_layer_types")


def _rope_head_dim(fields: Fields, head_dim: int) -> int:
    """How many elements of a head are rotated."""
    if fields.has("partial_rotary_factor"):
        rotated = int(head_dim * fields.number("partial_rotary_factor"))
    else:
        rotated = fields.integer("qk_rope_head_dim", head_dim // 8)
    if not 0 < rotated < head_dim or rotated % 2:
        raise fields.error(
            "qk_rope_head_dim", rotated, f"an even number between 0 and {head_dim}"
        )
    return rotated


def _ropes(
    fields: Fields, head_dim: int, rotated: int
) -> tuple[RopeConfig, RopeConfig]:
    """Rotary embedding of window-only layers, and of the others.

    A flat object scales only the layers with compression, and never gives their base.
    """
    name = "rope_parameters" if fields.has("rope_parameters") else "rope_scaling"
    given = fields.part(name)
    if given.has("main") and given.has("compress"):
        parts = given.part("main"), given.part("compress")
    else:
        ours = ("main", "compress", "rope_theta", "partial_rotary_factor")
        scaling = {key: x for key, x in given.content.items() if key not in ours}
        parts = (
            Fields({}, fields.model_type),
            Fields(scaling, fields.model_type),
        )
    bases = (
        fields.number("rope_theta", 10000.0),
        fields.number("compress_rope_theta", 160000.0),
    )
    ropes = []
    for part, theta in zip(parts, bases, strict=True):
        rope = read_rope(part, theta=theta, partial=rotated / head_dim)
        if int(head_dim * rope.partial) != rotated:
            raise part.error(
                "partial_rotary_factor", rope.partial, f"{rotated} of {head_dim}"
            )
        if rope.scaling not in ("default", "yarn"):
            raise part.error("rope_type", rope.scaling, "default or yarn")
        # The model scales no cosine or sine, unlike YaRN as it was published.
        factor = rope.attention_factor
        if rope.scaling == "yarn" and factor is None:
            factor = 1.0
        ropes.append(dataclasses.replace(rope, partial=1.0, attention_factor=factor))
    return ropes[0], ropes[1]
