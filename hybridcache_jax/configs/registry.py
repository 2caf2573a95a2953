"""Which config class reads a published config: one table, by ``model_type``.

A config's module is imported when one of its models is asked for.
"""

import importlib
import os
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridcache_jax.configs.json_file import read_json
from hybridcache_jax.configs.reading import DecoderConfig
from hybridcache_jax.errors import CheckpointError

CONFIG_CLASSES: Mapping[str, tuple[str, str]] = types.MappingProxyType(
    {
        "cohere2": ("cohere2", "Cohere2Config"),
        "deepseek_v32": ("deepseek_v32", "DeepseekV32Config"),
        "deepseek_v4": ("deepseek_v4", "DeepseekV4Config"),
        "gemma2": ("gemma2", "Gemma2Config"),
        "gemma3": ("gemma3", "Gemma3Config"),
        "gemma3_text": ("gemma3", "Gemma3Config"),
        "gemma4": ("gemma4", "Gemma4Config"),
        "gemma4_text": ("gemma4", "Gemma4Config"),
        "glm_moe_dsa": ("deepseek_v32", "DeepseekV32Config"),
        "gpt_oss": ("gpt_oss", "GptOssConfig"),
        "kimi_linear": ("kimi_linear", "KimiLinearConfig"),
        "llama4": ("llama4", "Llama4Config"),
        "llama4_text": ("llama4", "Llama4Config"),
        "mimo_v2_flash": ("mimo_v2_flash", "MimoV2FlashConfig"),
        "minimax": ("minimax", "MinimaxConfig"),
        "minimax_m1": ("minimax", "MinimaxConfig"),
        "minimax_text_01": ("minimax", "MinimaxConfig"),
        "mistral": ("mistral", "MistralConfig"),
        "olmo3": ("olmo3", "Olmo3Config"),
        "qwen3_next": ("qwen3_next", "Qwen3NextConfig"),
    }
)
"""Module below ``hybridcache_jax.configs`` and class by ``model_type``."""


def load_config(config: str | os.PathLike[str] | Mapping[str, Any]) -> DecoderConfig:
    """The config of a published model.

    Args:
      config: a ``config.json``, its folder, or its parsed content.

    Raises:
      CheckpointError: if the file cannot be read, the model is not known, or a
        setting is missing, damaged or not supported.
    """
    if isinstance(config, Mapping):
        return read_config(config)
    path = Path(config)
    return read_config(read_json(path / "config.json" if path.is_dir() else path))


def read_config(content: Mapping[str, Any]) -> DecoderConfig:
    """The config that the content of a ``config.json`` describes.

    Args:
      content: the parsed JSON object; the settings of a text model may stand in a
        nested ``text_config``.

    Raises:
      CheckpointError: if the model is not known, or a setting is missing, damaged or
        not supported.
    """
    model_type = known_model_type(content, CONFIG_CLASSES)
    module, name = CONFIG_CLASSES[model_type]
    module = importlib.import_module(f"hybridcache_jax.configs.{module}")
    return getattr(module, name).from_hf(content)


def known_model_type(content: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """The ``model_type`` of a config, one of ``known``.

    Raises:
      CheckpointError: if it is missing or not known.
    """
    model_type = content.get("model_type")
    if isinstance(model_type, str) and model_type in known:
        return model_type
    raise CheckpointError(
        f"The config describes a model of type {model_type!r}; supported are "
        f"{', '.join(sorted(known))}. Choose a checkpoint of one of these."
    )
