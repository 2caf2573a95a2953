"""Configuration of the Gemma 3 text model."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models.published_config import (
    ACTIVATION,
    LOCAL_THETA,
    THETA,
    gguf_fields,
    hf_fields,
)
from hybridcache_jax.models.published_config import FULL as FULL
from hybridcache_jax.models.published_config import SLIDING as SLIDING
from hybridcache_jax.models.published_config import Rope as Rope

_INT32_MAX = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Gemma3Config:
    """Everything the Gemma 3 text model needs to know besides its weights.

    Attributes:
      vocab_size: rows of the embedding.
      hidden_size: width of the residual stream.
      intermediate_size: width of the gated MLP.
      num_layers: number of decoder layers.
      num_heads: query heads.
      num_kv_heads: key/value heads; divides ``num_heads``.
      head_dim: elements per head, even.
      sliding_window: keys a window layer's query sees, its own included.
      layer_types: ``"sliding_attention"`` or ``"full_attention"`` per layer.
      rope_sliding: rotary embedding of the window layers.
      rope_full: rotary embedding of the full layers.
      query_pre_attn_scalar: queries are scaled by its inverse square root.
      rms_norm_eps: epsilon of every RMS norm.
      attn_logit_softcapping: soft cap of attention scores, or None.
      final_logit_softcapping: soft cap of the logits, or None.
      hidden_activation: ``"gelu_pytorch_tanh"``, the only one supported.
      tie_word_embeddings: whether the head is the embedding.
      attention_bias: whether the attention projections have a bias.
      max_position_embeddings: longest context the model was trained for.
      bos_token_id: id in front of every text, or None.
      eos_token_ids: ids that end a text.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int
    layer_types: tuple[str, ...]
    rope_sliding: Rope = Rope(LOCAL_THETA)
    rope_full: Rope = Rope(THETA)
    query_pre_attn_scalar: float = 256.0
    rms_norm_eps: float = 1e-6
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    hidden_activation: str = ACTIVATION
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    max_position_embeddings: int = 131_072
    bos_token_id: int | None = 2
    eos_token_ids: tuple[int, ...] = (1,)

    def __post_init__(self):
        _check_numbers(self)
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "sliding_window",
            "query_pre_attn_scalar",
            "max_position_embeddings",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}.")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads "
                f"({self.num_kv_heads})."
            )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim must be even for rotary embedding, got {self.head_dim}."
            )
        if len(self.layer_types) != self.num_layers:
            raise ValueError(
                f"layer_types names {len(self.layer_types)} layers, but num_layers "
                f"is {self.num_layers}."
            )
        unknown = sorted(set(self.layer_types) - {SLIDING, FULL})
        if unknown:
            raise ValueError(
                f"layer_types may hold {SLIDING!r} and {FULL!r}, got {unknown}."
            )
        if self.hidden_activation != ACTIVATION:
            raise ValueError(
                f"hidden_activation must be {ACTIVATION!r}, got "
                f"{self.hidden_activation!r}."
            )

    @property
    def query_scale(self) -> float:
        """Factor on the dot products of queries and keys."""
        return self.query_pre_attn_scalar**-0.5

    @property
    def digest(self) -> str:
        """SHA-256 of the settings; equal for two spellings of the same model."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "Gemma3Config":
        """Reads the content of a ``config.json``.

        Accepts a text config, a multimodal one (``model_type`` ``"gemma3"`` with a
        nested ``text_config``), nested ``rope_parameters`` as well as
        ``rope_theta`` / ``rope_local_base_freq`` / ``rope_scaling``, and either
        ``layer_types`` or a sliding-window pattern.  Published configs leave out
        what equals transformers' class defaults; the same defaults fill in here.

        Args:
          config: the parsed JSON object.

        Raises:
          CheckpointError: if it is another model, or a setting is not supported.
        """
        return _build(cls, "config.json", lambda: hf_fields(config))

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, Any],
        *,
        vocab_size: int | None = None,
        tie_word_embeddings: bool = True,
    ) -> "Gemma3Config":
        """Reads the metadata of a GGUF file.

        GGUF files of Gemma 3 hold neither the schedule of window and full layers,
        nor the rotary base of the window layers, nor the query scale.  They come
        from the model's definition: every sixth layer is full, base 10,000, and the
        scale that llama.cpp derives from the head size.

        Args:
          metadata: key to value, as in the file.
          vocab_size: rows of the embedding; by default the number of tokens listed.
          tie_word_embeddings: False if the file has an output head of its own.

        Raises:
          CheckpointError: if it is another model, a key is missing, or a setting is
            not supported.
        """
        return _build(
            cls,
            "GGUF metadata",
            lambda: gguf_fields(metadata, vocab_size, tie_word_embeddings),
        )


def _build(cls, source: str, fields: Callable[[], dict[str, Any]]) -> Gemma3Config:
    """The config, with complaints about values put in terms of their source."""
    try:
        return cls(**fields())
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"The {source} does not describe a Gemma 3 text model that is supported: "
            f"{error} Check that it belongs to a Gemma 3 model, or fetch it anew."
        ) from error


def _check_numbers(config: Gemma3Config) -> None:
    """Refuses counts that are no int32 integers, and numbers that are not finite."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.type is int or (field.name == "bos_token_id" and value is not None):
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or abs(value) > _INT32_MAX:
                raise ValueError(f"{field.name} must be an integer, got {value!r}.")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{field.name} must be finite, got {value}.")
    if config.rms_norm_eps <= 0:
        raise ValueError(f"rms_norm_eps must be > 0, got {config.rms_norm_eps}.")
