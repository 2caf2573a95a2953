"""What a checkpoint gives a loader, and the complaint where it does not fit."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from hybridcache_jax.errors import CheckpointError

OnProgress = Callable[[str, int, int], None]
"""Called with a stage (``"digest"``, ``"weights"``), the amount done and the total."""

READ_BYTES = 8 * 1024 * 1024
"""Bytes of a file that are held at a time."""

_LISTED = 8


class TensorSource(Protocol):
    """Weights of a model, read one tensor at a time."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the weights, in a fixed order."""
        ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape by name; names have no prefix such as ``model.``."""
        ...

    def read(self, name: str) -> np.ndarray:
        """The tensor called ``name``."""
        ...


def check_tensors(
    expected: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    source: str,
) -> None:
    """Checks that tensors are exactly those a model needs.

    Args:
      expected: shape by name, what the model needs.
      found: shape by name, what there is.
      source: where they come from, for the message.

    Raises:
      CheckpointError: listing missing, unexpected and mis-shaped tensors.
    """
    refuse_misfits(
        source,
        missing=[f"{n} {shown(expected[n])}" for n in expected if n not in found],
        unexpected=[f"{n} {shown(found[n])}" for n in found if n not in expected],
        wrong=[
            f"{n} is {shown(found[n])}, expected {shown(shape)}"
            for n, shape in expected.items()
            if n in found and tuple(found[n]) != tuple(shape)
        ],
    )


def refuse_misfits(
    source: str,
    *,
    missing: Sequence[str],
    unexpected: Sequence[str],
    wrong: Sequence[str],
) -> None:
    """Raises one error that lists everything that does not fit, if anything.

    Args:
      source: where the tensors come from.
      missing: tensors that there should be.
      unexpected: tensors that there should not be.
      wrong: tensors of a wrong shape.

    Raises:
      CheckpointError: if any of the three is not empty.
    """
    lines = [f"The tensors of {source} do not fit the model the config describes."]
    for title, problems in (
        ("Missing", missing),
        ("Unexpected", unexpected),
        ("Wrong shape", wrong),
    ):
        if problems:
            lines.append(f"{title}: {some(problems, '; ')}.")
    if len(lines) == 1:
        return
    lines.append(
        "Check that config and weights belong to the same model and that every "
        "weight file is there; otherwise fetch the checkpoint anew."
    )
    raise CheckpointError("\n".join(lines))


def digest_files(paths: Iterable[Path], on_progress: OnProgress | None) -> str:
    """SHA-256 over the bytes of the files, one after the other."""
    paths = tuple(paths)
    total = sum(path.stat().st_size for path in paths)
    digest, done = hashlib.sha256(), 0
    for path in paths:
        with path.open("rb") as stream:
            while block := stream.read(READ_BYTES):
                digest.update(block)
                done += len(block)
                if on_progress is not None:
                    on_progress("digest", done, total)
    return digest.hexdigest()


def some(items: Sequence[str], separator: str = ", ") -> str:
    """The first items, and how many more there are."""
    more = len(items) - _LISTED
    listed = separator.join(items[:_LISTED])
    return f"{listed}{separator}and {more} more" if more > 0 else listed


def shown(shape: Sequence[int]) -> str:
    """A shape as messages show it."""
    return "[" + ", ".join(map(str, shape)) + "]"
