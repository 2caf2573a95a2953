"""What the commands share: loading a model with progress, text in, text out."""

from pathlib import Path

from rich.console import Console

from hybridcache_jax.cli.progress import progress_bar
from hybridcache_jax.errors import TokenizerError
from hybridcache_jax.models.bundled import (
    GEMMA3_270M_SHA256,
    bundled_gemma3_270m,
    gemma3_270m_installed,
)
from hybridcache_jax.models.load import LoadedModel, load_model
from hybridcache_jax.models.tiny_v4 import NAME as TINY_V4
from hybridcache_jax.models.tiny_v4 import load_tiny_v4
from hybridcache_jax.models.tokenizer import Tokenizer
from hybridcache_jax.serving.engine import Engine


def load(path: str | None, console: Console) -> LoadedModel:
    """Loads the model at ``path``.

    ``"tiny-v4"`` is the model that the library ships.  Without a path it is the Gemma 3
    270M of the ``gemma`` extra, or the shipped one where that is not installed.
    """
    if path is None and not gemma3_270m_installed():
        console.print(
            "The 'gemma' extra is not installed; using the tiny-v4 model that comes "
            "with the library.",
            style="dim",
        )
        path = TINY_V4
    with progress_bar(console, "loading weights") as update:

        def report(stage: str, done: int, total: int) -> None:
            update(done, total, f"loading: {stage}")

        if path == TINY_V4:
            return load_tiny_v4(on_progress=report)
        if path is None:
            source = bundled_gemma3_270m(on_progress=report)
            return load_model(
                source, weights_digest=GEMMA3_270M_SHA256, on_progress=report
            )
        return load_model(path, on_progress=report)


def tokenizer_of(loaded: LoadedModel) -> Tokenizer:
    """The model's tokenizer.

    Raises:
      TokenizerError: if the checkpoint brings none.
    """
    if loaded.tokenizer is None:
        raise TokenizerError(
            f"{loaded.source} brings no tokenizer; put its tokenizer.json or "
            "tokenizer.model beside the weights."
        )
    return loaded.tokenizer


def read_text(path: str) -> str:
    """The text of a file.

    Raises:
      ValueError: if it is not UTF-8 or holds nothing but white space.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}.") from error
    if not text.strip():
        raise ValueError(f"{path} holds no text; give a file with a prompt.")
    return text


def warm_up(engine: Engine, console: Console) -> None:
    """Compiles the engine's shapes with a bar."""
    with progress_bar(console, "compiling") as update:
        engine.warm_up(lambda done, total: update(done, total))
