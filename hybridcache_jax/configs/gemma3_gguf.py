"""Gemma 3 from the metadata of a GGUF file."""

from collections.abc import Mapping
from typing import Any

from hybridcache_jax.configs.gemma3 import LOCAL_THETA, THETA, Gemma3Config
from hybridcache_jax.configs.reading import Fields
from hybridcache_jax.configs.windowed import FULL, SLIDING

_LAYERS_27B = 62
_PATTERN = "gemma3.attention.sliding_window_pattern"
_STOPS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")


def gemma3_from_gguf(
    metadata: Mapping[str, Any],
    *,
    vocab_size: int | None = None,
    tie_word_embeddings: bool = True,
) -> Gemma3Config:
    """The config that GGUF metadata describe.

    GGUF files of Gemma 3 hold neither the schedule of window and full layers, nor the
    rotary base of the window layers, nor the query scale.  They come from the model's
    definition: every sixth layer is full, base 10,000, and the scale that llama.cpp
    derives from the head size.

    Args:
      metadata: key to value, as in the file.
      vocab_size: rows of the embedding; by default the number of tokens listed.
      tie_word_embeddings: False if the file has an output head of its own.

    Raises:
      CheckpointError: if it is another model, a key is missing, or a setting is
        damaged or not supported.
    """
    fields = Fields(metadata, "gemma3 (GGUF)")
    fields.only("general.architecture", "gemma3", None)
    count = fields.positive("gemma3.block_count")
    heads = fields.positive("gemma3.attention.head_count")
    hidden = fields.positive("gemma3.embedding_length")
    head_dim = fields.positive("gemma3.attention.key_length")
    value_dim = fields.positive("gemma3.attention.value_length", head_dim)
    if value_dim != head_dim:
        raise fields.error(
            "gemma3.attention.value_length", value_dim, f"the key length {head_dim}"
        )
    if vocab_size is None:
        listed = len(fields.sequence("tokenizer.ggml.tokens", ()))
        vocab_size = fields.positive("gemma3.vocab_size", listed)
    # The 27B model alone scales queries by hidden size per head; the file does not
    # say so, and llama.cpp too tells it by its number of layers.
    scalar = hidden / heads if count == _LAYERS_27B else head_dim
    eps = fields.number("gemma3.attention.layer_norm_rms_epsilon")
    stops = [metadata[key] for key in _STOPS if fields.has(key)]
    return Gemma3Config.from_hf(
        {
            "model_type": "gemma3_text",
            "vocab_size": vocab_size,
            "hidden_size": hidden,
            "intermediate_size": fields.positive("gemma3.feed_forward_length"),
            "num_hidden_layers": count,
            "num_attention_heads": heads,
            "num_key_value_heads": fields.positive("gemma3.attention.head_count_kv"),
            "head_dim": head_dim,
            "sliding_window": fields.positive("gemma3.attention.sliding_window"),
            "sliding_window_pattern": _pattern(fields),
            "rope_parameters": _ropes(fields),
            "query_pre_attn_scalar": scalar,
            "rms_norm_eps": eps,
            "attn_logit_softcapping": fields.cap("gemma3.attn_logit_softcapping"),
            "final_logit_softcapping": fields.cap("gemma3.final_logit_softcapping"),
            "tie_word_embeddings": tie_word_embeddings,
            "max_position_embeddings": fields.positive("gemma3.context_length"),
            "bos_token_id": fields.integer("tokenizer.ggml.bos_token_id", 2),
            "eos_token_id": stops or 1,
        }
    )


def _pattern(fields: Fields) -> int | list[bool] | None:
    """Period of the full layers, or a flag per layer; None if the file has neither."""
    pattern = fields.content.get(_PATTERN)
    # An array of the file is a NumPy one.
    return pattern if pattern is None or isinstance(pattern, int) else list(pattern)


def _ropes(fields: Fields) -> dict[str, dict[str, Any]]:
    full: dict[str, Any] = {"rope_theta": fields.number("gemma3.rope.freq_base", THETA)}
    scaling = fields.text("gemma3.rope.scaling.type", "none")
    if scaling != "none":
        full |= {
            "rope_type": scaling,
            "factor": fields.content.get("gemma3.rope.scaling.factor"),
        }
    local = fields.number("gemma3.rope.freq_base_swa", LOCAL_THETA)
    return {SLIDING: {"rope_theta": local}, FULL: full}
