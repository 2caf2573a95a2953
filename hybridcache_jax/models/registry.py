"""Which classes run a published model: one table, by ``model_type``.

A model's modules, and with them Flax, are imported when the model is asked for.
"""

import dataclasses
import importlib
import types
from collections.abc import Callable, Mapping
from typing import Any

from hybridcache_jax.configs.reading import DecoderConfig
from hybridcache_jax.configs.registry import known_model_type, read_config
from hybridcache_jax.models.recipes import Recipe

MODEL_CLASSES: Mapping[str, tuple[str, str]] = types.MappingProxyType(
    {
        "deepseek_v32": ("deepseek_v32", "DeepseekV32"),
        "deepseek_v4": ("deepseek_v4", "DeepseekV4"),
        "gemma3": ("gemma3", "Gemma3"),
        "gemma3_text": ("gemma3", "Gemma3"),
        "gemma4": ("gemma4", "Gemma4"),
        "gemma4_text": ("gemma4", "Gemma4"),
        "glm_moe_dsa": ("deepseek_v32", "DeepseekV32"),
        "gpt_oss": ("gpt_oss", "GptOss"),
        "kimi_linear": ("kimi_linear", "KimiLinear"),
        "llama4": ("llama4", "Llama4"),
        "llama4_text": ("llama4", "Llama4"),
        "mimo_v2_flash": ("mimo_v2_flash", "MimoV2Flash"),
        "olmo3": ("olmo3", "Olmo3"),
        "qwen3_next": ("qwen3_next", "Qwen3Next"),
    }
)
"""Module below ``hybridcache_jax.models`` and class by ``model_type``."""


@dataclasses.dataclass(frozen=True)
class PublishedModel:
    """A published model: its settings, and what it takes to load and run it.

    Attributes:
      config: its settings.
      make: the class of its Flax module.
      recipes: how parameters are made that its publisher stores otherwise.
      ignored: how names begin of tensors that its checkpoints bring beside the
        parameters, prefix removed.
    """

    config: DecoderConfig
    make: Callable[..., Any]
    recipes: Mapping[str, Recipe]
    ignored: tuple[str, ...]


def find_model(content: Mapping[str, Any]) -> PublishedModel:
    """The model that the content of a ``config.json`` describes.

    Raises:
      CheckpointError: if the model is not one that can be run, or a setting is
        missing, damaged or not supported.
    """
    module_name, class_name = MODEL_CLASSES[known_model_type(content, MODEL_CLASSES)]
    config = read_config(content)
    module = importlib.import_module(f"hybridcache_jax.models.{module_name}")
    published_names = getattr(module, "published_names", None)
    ignored = _IGNORED.get(module_name)
    return PublishedModel(
        config=config,
        make=getattr(module, class_name),
        recipes={} if published_names is None else published_names(config),
        ignored=() if ignored is None else ignored(config),
    )


def _prediction_heads(config: DecoderConfig) -> tuple[str, ...]:
    """Layers that predict tokens after the next one, kept apart from the others."""
    del config
    return ("mtp.",)


def _prediction_layer(config: DecoderConfig) -> tuple[str, ...]:
    """The same, stored as one layer more than the model has."""
    return (f"layers.{config.num_layers}.",)


def _unused_projections(config) -> tuple[str, ...]:
    """Keys and values that layers bring which read those of another layer."""
    return tuple(
        f"layers.{layer}.self_attn.{part}"
        for layer, owner in enumerate(config.kv_owners)
        if owner is not None
        for part in ("k_proj.", "v_proj.", "k_norm.", "v_norm.")
    )


_IGNORED = types.MappingProxyType(
    {
        "deepseek_v32": _prediction_layer,
        "deepseek_v4": _prediction_heads,
        "gemma4": _unused_projections,
        "mimo_v2_flash": _prediction_heads,
        "qwen3_next": _prediction_heads,
    }
)
