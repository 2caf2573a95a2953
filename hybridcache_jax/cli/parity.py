"""``hybridcache parity``: does a model over the cache compute what a reference does?"""

import argparse
import json
from pathlib import Path

import jax
from rich import box
from rich.console import Console
from rich.table import Table

from hybridcache_jax.cli.progress import progress_bar
from hybridcache_jax.cli.session import load
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.testing.parity import ParityReport, check_parity
from hybridcache_jax.testing.parity_run import Reference

_EXPECTED = "expected.safetensors"


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; see ``hybridcache parity --help``.

    Returns:
      0 if every difference is within the tolerance, else 1.
    """
    folder = Path(arguments.folder)
    reference = read_reference(folder / _EXPECTED)
    if reference.tokens.shape[1] < 2:
        raise CheckpointError(
            f"{folder / _EXPECTED} has sequences of {reference.tokens.shape[1]} "
            "tokens; at least two tokens are needed to resume between them."
        )
    notes = Console(stderr=True)
    loaded = load(str(folder), notes)
    _check_vocabulary(reference, loaded.config.vocab_size, folder / _EXPECTED)
    with (
        jax.default_matmul_precision("highest"),
        progress_bar(notes, "running") as update,
    ):
        report = check_parity(
            loaded.model,
            loaded.layers,
            reference,
            tolerance=arguments.tolerance,
            block_tokens=arguments.block_tokens,
            kernels=arguments.kernels,
            on_progress=lambda way, done, total: update(done, total, way),
        )
    if arguments.json:
        print(json.dumps(report.to_dict()))
    else:
        _show(report, str(folder), type(loaded.model).__name__)
    return 0 if report.passed else 1


def read_reference(path: Path) -> Reference:
    """Tokens and logits from a safetensors file.

    Raises:
      CheckpointError: if the file is missing, damaged, or lacks one of them.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"Cannot read {path}: {error}. It must hold what the reference computed: "
            "tokens [B, T] and logits [B, T, V]."
        ) from error
    missing = [name for name in ("tokens", "logits") if name not in tensors]
    if missing:
        raise CheckpointError(
            f"{path} lacks {' and '.join(missing)}; it must hold tokens [B, T] integer "
            "and logits [B, T, V] float32."
        )
    return Reference(tensors["tokens"], tensors["logits"])


def _check_vocabulary(reference: Reference, vocab_size: int, path: Path) -> None:
    tokens = reference.tokens
    if reference.logits.shape[-1] != vocab_size:
        raise CheckpointError(
            f"{path} has logits over {reference.logits.shape[-1]} tokens, the config "
            f"describes a vocabulary of {vocab_size}; they belong to different models."
        )
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise CheckpointError(
            f"{path} has token ids from {tokens.min()} to {tokens.max()}, outside the "
            f"vocabulary 0..{vocab_size - 1}."
        )


def _show(report: ParityReport, folder: str, kind: str) -> None:
    console = Console(highlight=False)
    console.print(f"[bold]{folder}[/] ({kind}), tolerance {report.tolerance:g}")
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("way of running")
    for heading in ("runs", "largest difference", "sequence", "position"):
        table.add_column(heading, justify="right")
    for way in report.ways:
        colour = "green" if way.difference <= report.tolerance else "red"
        table.add_row(
            way.name,
            str(way.runs),
            f"[{colour}]{way.difference:.2e}[/]",
            str(way.row),
            str(way.position),
        )
    console.print(table)
    console.print(
        f"resumed at {len(report.resume_points)} points, every {report.grid} tokens, "
        f"audited {report.audit} tokens past each; end states differ by "
        f"{report.state_difference:.2e}"
    )
    console.print("[green]parity holds[/]" if report.passed else "[red]it does not[/]")
