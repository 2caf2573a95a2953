"""The spellings in which a Gemma 3 config is published: config.json and GGUF."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from hybridcache_jax.errors import CheckpointError

SLIDING = "sliding_attention"
FULL = "full_attention"

ACTIVATION = "gelu_pytorch_tanh"
LOCAL_THETA = 10_000.0
THETA = 1_000_000.0
_PATTERN = 6
_GGUF_27B_LAYERS = 62
_MAX_LAYERS = 1024


@dataclasses.dataclass(frozen=True)
class Rope:
    """Rotary embedding of one kind of layer.

    Attributes:
      theta: base of the frequencies.
      factor: linear scaling: positions are divided by it.
    """

    theta: float
    factor: float = 1.0

    def __post_init__(self):
        if self.theta <= 0 or self.factor <= 0:
            raise ValueError(f"Rope needs theta > 0 and factor > 0, got {self}.")


def hf_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a ``Gemma3Config`` from a parsed ``config.json``.

    Raises:
      CheckpointError: if it is another model, or a setting is not supported.
    """
    text = _text_config(config)
    num_layers = text.get("num_hidden_layers", 26)
    layer_types = text.get("layer_types")
    if layer_types is None:
        pattern = text.get(
            "sliding_window_pattern", text.get("_sliding_window_pattern", _PATTERN)
        )
        layer_types = _schedule(num_layers, pattern)
    rope_sliding, rope_full = _hf_ropes(text)
    # A multimodal config keeps the ids outside its text part.
    eos = config.get("eos_token_id", text.get("eos_token_id", 1))
    return {
        "vocab_size": text.get("vocab_size", 262_208),
        "hidden_size": text.get("hidden_size", 2304),
        "intermediate_size": text.get("intermediate_size", 9216),
        "num_layers": num_layers,
        "num_heads": text.get("num_attention_heads", 8),
        "num_kv_heads": text.get("num_key_value_heads", 4),
        "head_dim": text.get("head_dim", 256),
        "sliding_window": text.get("sliding_window", 4096),
        "layer_types": tuple(layer_types),
        "rope_sliding": rope_sliding,
        "rope_full": rope_full,
        "query_pre_attn_scalar": float(text.get("query_pre_attn_scalar", 256)),
        "rms_norm_eps": float(text.get("rms_norm_eps", 1e-6)),
        "attn_logit_softcapping": _as_cap(text.get("attn_logit_softcapping")),
        "final_logit_softcapping": _as_cap(text.get("final_logit_softcapping")),
        "hidden_activation": text.get("hidden_activation", ACTIVATION),
        "tie_word_embeddings": config.get(
            "tie_word_embeddings", text.get("tie_word_embeddings", True)
        ),
        "attention_bias": text.get("attention_bias", False),
        "max_position_embeddings": text.get("max_position_embeddings", 131_072),
        "bos_token_id": config.get("bos_token_id", text.get("bos_token_id", 2)),
        "eos_token_ids": _as_ids(eos),
    }


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text part of a published config, after refusing what is not supported."""
    model_type = config.get("model_type")
    text = config
    if model_type == "gemma3" and isinstance(config.get("text_config"), Mapping):
        text = config["text_config"]
        model_type = text.get("model_type", "gemma3_text")
    if model_type != "gemma3_text":
        raise CheckpointError(
            f"The config.json describes a model of type {model_type!r}; only Gemma 3 "
            "is supported ('gemma3_text', or 'gemma3' with a text_config). Choose a "
            "Gemma 3 checkpoint."
        )
    if text.get("use_bidirectional_attention"):
        raise CheckpointError(
            "The config.json asks for bidirectional attention (an embedding model), "
            "which a causal cache cannot serve. Choose a generative checkpoint."
        )
    if config.get("quantization_config") or text.get("quantization_config"):
        raise CheckpointError(
            "The config.json describes quantised weights, which are not read from "
            "safetensors. Choose the float checkpoint, or a GGUF file."
        )
    return text


def _hf_ropes(text: Mapping[str, Any]) -> tuple[Rope, Rope]:
    """Rotary embeddings of window and full layers, from either spelling."""
    parameters = text.get("rope_parameters") or {}
    if FULL in parameters or SLIDING in parameters:
        local = parameters.get(SLIDING) or {}
        full = parameters.get(FULL) or {}
    else:
        local = {}
        full = parameters or text.get("rope_scaling") or {}
    local_theta = text.get("rope_local_base_freq", LOCAL_THETA)
    theta = text.get("rope_theta", THETA)
    return (
        Rope(float(local.get("rope_theta", local_theta)), _hf_factor(local)),
        Rope(float(full.get("rope_theta", theta)), _hf_factor(full)),
    )


def _hf_factor(parameters: Mapping[str, Any]) -> float:
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    return _scaling_factor(kind, parameters.get("factor"))


def _scaling_factor(kind: str, factor: float | None) -> float:
    """Linear factor of a rope scaling as configs and GGUF files describe it."""
    if kind in ("default", "none"):
        return 1.0
    if kind != "linear":
        raise CheckpointError(
            f"Rope scaling {kind!r} is not supported; Gemma 3 uses none or 'linear'. "
            "Check that the config belongs to a Gemma 3 model."
        )
    if factor is None or factor <= 0:
        raise CheckpointError(
            f"Linear rope scaling needs a factor > 0, got {factor}. Complete the "
            "config, or fetch it anew."
        )
    return float(factor)


def _schedule(num_layers: int, pattern: int | Sequence[bool]) -> tuple[str, ...]:
    """Layer types: every ``pattern``-th layer is full, or a flag says it is not."""
    if num_layers > _MAX_LAYERS:
        # A damaged count must not become a list of billions.
        raise ValueError(f"{num_layers} layers are more than {_MAX_LAYERS}.")
    if isinstance(pattern, int):
        if pattern < 1:
            raise ValueError(f"The sliding-window pattern must be >= 1, got {pattern}.")
        sliding = [(layer + 1) % pattern != 0 for layer in range(num_layers)]
    else:
        sliding = [bool(flag) for flag in pattern]
    return tuple(SLIDING if flag else FULL for flag in sliding)


def _as_cap(value: float | None) -> float | None:
    return None if value is None else float(value)


def _as_ids(ids: int | Sequence[int] | None) -> tuple[int, ...]:
    if ids is None:
        return ()
    if isinstance(ids, int):
        return (ids,)
    return tuple(dict.fromkeys(int(i) for i in ids))


def gguf_fields(
    metadata: Mapping[str, Any], vocab_size: int | None, tied: bool
) -> dict[str, Any]:
    """Fields of a ``Gemma3Config`` from GGUF metadata.

    Args:
      metadata: key to value, as in the file.
      vocab_size: rows of the embedding; None for the number of tokens listed.
      tied: whether the head is the embedding.

    Raises:
      CheckpointError: if it is another model, or a key is missing.
    """
    architecture = metadata.get("general.architecture")
    if architecture != "gemma3":
        raise CheckpointError(
            f"The GGUF file holds a model of architecture {architecture!r}; "
            "only 'gemma3' is supported. Choose a Gemma 3 file."
        )
    num_layers = int(_gguf_value(metadata, "block_count"))
    num_heads = int(_gguf_value(metadata, "attention.head_count"))
    hidden_size = int(_gguf_value(metadata, "embedding_length"))
    head_dim = int(_gguf_value(metadata, "attention.key_length"))
    value_dim = int(metadata.get("gemma3.attention.value_length", head_dim))
    if value_dim != head_dim:
        raise CheckpointError(
            f"The GGUF file gives key length {head_dim} and value length "
            f"{value_dim}; Gemma 3 has equal ones. The file is damaged or of "
            "another model."
        )
    if vocab_size is None:
        tokens = metadata.get("tokenizer.ggml.tokens", ())
        vocab_size = int(metadata.get("gemma3.vocab_size", len(tokens)))
    # The 27B model alone scales queries by hidden size per head; the file does
    # not say so, and llama.cpp too tells it by its number of layers.
    is_27b = num_layers == _GGUF_27B_LAYERS
    scalar = hidden_size / num_heads if is_27b else head_dim
    eos = [
        metadata[key]
        for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        if key in metadata
    ]
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": int(_gguf_value(metadata, "feed_forward_length")),
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": int(_gguf_value(metadata, "attention.head_count_kv")),
        "head_dim": head_dim,
        "sliding_window": int(_gguf_value(metadata, "attention.sliding_window")),
        "layer_types": _schedule(
            num_layers,
            metadata.get("gemma3.attention.sliding_window_pattern", _PATTERN),
        ),
        "rope_sliding": Rope(
            float(metadata.get("gemma3.rope.freq_base_swa", LOCAL_THETA))
        ),
        "rope_full": Rope(
            float(metadata.get("gemma3.rope.freq_base", THETA)),
            _scaling_factor(
                metadata.get("gemma3.rope.scaling.type", "none"),
                metadata.get("gemma3.rope.scaling.factor"),
            ),
        ),
        "query_pre_attn_scalar": float(scalar),
        "rms_norm_eps": float(
            _gguf_value(metadata, "attention.layer_norm_rms_epsilon")
        ),
        "attn_logit_softcapping": _as_cap(
            metadata.get("gemma3.attn_logit_softcapping")
        ),
        "final_logit_softcapping": _as_cap(
            metadata.get("gemma3.final_logit_softcapping")
        ),
        "tie_word_embeddings": tied,
        "max_position_embeddings": int(_gguf_value(metadata, "context_length")),
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id", 2),
        "eos_token_ids": _as_ids(eos or 1),
    }


def _gguf_value(metadata: Mapping[str, Any], key: str) -> Any:
    value = metadata.get(f"gemma3.{key}")
    if value is None:
        raise CheckpointError(
            f"The GGUF metadata lacks gemma3.{key}. The file is incomplete or was "
            "written by an old converter; convert it anew."
        )
    return value
