"""Loads a model: config, weights and tokenizer, from a folder or a GGUF file."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from hybridcache_jax.configs.gemma3_gguf import gemma3_from_gguf
from hybridcache_jax.configs.json_file import read_json
from hybridcache_jax.configs.reading import DecoderConfig
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.layers import LayerSpec
from hybridcache_jax.models.checkpoint import (
    OnProgress,
    TensorSource,
    digest_files,
)
from hybridcache_jax.models.gemma3 import Gemma3
from hybridcache_jax.models.gguf_file import GGUFFile
from hybridcache_jax.models.parameters import from_params, parameter_structs
from hybridcache_jax.models.protocol import Decoder
from hybridcache_jax.models.registry import PublishedModel, find_model
from hybridcache_jax.models.safetensors_folder import SafetensorsFolder
from hybridcache_jax.models.tokenizer import (
    Tokenizer,
    tokenizer_from_folder,
    tokenizer_from_gguf,
)
from hybridcache_jax.models.weights import (
    Recipes,
    Structs,
    integer_names,
    read_parameters,
    spellings,
)


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and what identifies it.

    Attributes:
      config: its settings.
      model: the Flax module, parameters on the default device.
      tokenizer: None if the checkpoint brings none.
      layers: what each layer keeps in the cache.
      param_dtype: name of the dtype in which parameters are kept.
      weights_digest: SHA-256 over the bytes of the weight files, shards in order of
        their names.
      config_digest: SHA-256 of the settings, whatever their spelling.
      tokenizer_digest: SHA-256 of the tokenizer, or None.
      source: the path it was loaded from.
    """

    config: DecoderConfig
    model: Decoder
    tokenizer: Tokenizer | None
    layers: tuple[LayerSpec, ...]
    param_dtype: str
    weights_digest: str
    config_digest: str
    tokenizer_digest: str | None
    source: Path


def load_model(
    path: str | os.PathLike[str],
    *,
    param_dtype=jnp.float32,
    cache_format: str = "float32",
    weights_digest: str | None = None,
    on_progress: OnProgress | None = None,
) -> LoadedModel:
    """Loads a published checkpoint of any model in ``models.registry``.

    A folder may hold the weights under the names of transformers or of the model's
    publisher.  Tensors are read, converted and placed one parameter at a time, so that
    besides the parameters only the largest one is held twice.

    Args:
      path: a folder with ``config.json`` and safetensors, or a ``.gguf`` file of
        Gemma 3.
      param_dtype: dtype in which parameters are kept.
      cache_format: what ``layers`` stores entries in: a dtype, or a quantised format
        by name where the model has one.
      weights_digest: digest of the weight files if the caller has just verified it;
        they are hashed otherwise.
      on_progress: told about bytes hashed and parameters read.

    Raises:
      CheckpointError: if the checkpoint is missing, damaged, mismatched or
        unsupported.
      TokenizerError: if its tokenizer is.
      ValueError: for a cache format that the model does not have.
    """
    path = Path(path)
    if path.is_dir():
        checkpoint = _open_folder(path, param_dtype)
    elif path.is_file():
        checkpoint = _open_gguf(path, param_dtype)
    else:
        raise CheckpointError(
            f"{path} does not exist. Give a folder with config.json and safetensors, "
            "or a .gguf file."
        )
    report = on_progress or (lambda stage, done, total: None)
    config, source = checkpoint.model.config, checkpoint.source
    params = read_parameters(
        checkpoint.structs,
        checkpoint.ways,
        source,
        str(path),
        lambda done, total: report("weights", done, total),
    )
    if weights_digest is None:
        weights_digest = digest_files(source.files, on_progress)
    tokenizer = checkpoint.tokenizer
    return LoadedModel(
        config=config,
        model=from_params(
            checkpoint.model.make, config, params, param_dtype=param_dtype
        ),
        tokenizer=tokenizer,
        layers=config.layers(cache_format),
        param_dtype=jnp.dtype(param_dtype).name,
        weights_digest=weights_digest,
        config_digest=config.digest,
        tokenizer_digest=None if tokenizer is None else tokenizer.digest,
        source=path,
    )


@dataclasses.dataclass(frozen=True)
class _Checkpoint:
    """What the files of a checkpoint say, weights still on disk."""

    model: PublishedModel
    structs: Structs
    ways: tuple[Recipes, ...]
    source: TensorSource
    tokenizer: Tokenizer | None


def _open_folder(path: Path, param_dtype) -> _Checkpoint:
    content = read_json(path / "config.json")
    _refuse_quantised(content, path)
    model = find_model(content)
    config = model.config
    structs = parameter_structs(model.make, config, param_dtype)
    ways = spellings(structs, model.recipes)
    source = SafetensorsFolder(
        path,
        tie_word_embeddings=config.tie_word_embeddings,
        ignored=model.ignored,
        integers=integer_names(structs, ways),
    )
    tokenizer = tokenizer_from_folder(
        path, bos_id=config.bos_token_id, eos_ids=config.eos_token_ids
    )
    return _Checkpoint(model, structs, ways, source, tokenizer)


def _open_gguf(path: Path, param_dtype) -> _Checkpoint:
    source = GGUFFile(path)
    embedding = source.shapes.get("embed_tokens.weight")
    config = gemma3_from_gguf(
        source.metadata,
        vocab_size=None if embedding is None else embedding[0],
        tie_word_embeddings="lm_head.weight" not in source.shapes,
    )
    model = PublishedModel(config, Gemma3, recipes={}, ignored=())
    structs = parameter_structs(Gemma3, config, param_dtype)
    tokenizer = tokenizer_from_gguf(
        source.metadata, bos_id=config.bos_token_id, eos_ids=config.eos_token_ids
    )
    return _Checkpoint(model, structs, spellings(structs, {}), source, tokenizer)


def _refuse_quantised(content: Mapping[str, Any], path: Path) -> None:
    for part in (content, content.get("text_config")):
        settings = (
            part.get("quantization_config") if isinstance(part, Mapping) else None
        )
        if settings:
            method = (
                settings.get("quant_method") if isinstance(settings, dict) else None
            )
            raise CheckpointError(
                f"The config.json of {path} describes weights quantised by "
                f"{method or settings!r}, which are not read from safetensors. Choose "
                "the float checkpoint, or a GGUF file."
            )
