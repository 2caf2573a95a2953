"""Reads checkpoints in the safetensors format, and checks tensors against a model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hybridcache_jax.errors import CheckpointError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOATS = ("F64", "F32", "F16", "BF16")
_LISTED = 8

# Longest first: "model." is a prefix of another one.
_TEXT_PREFIXES = ("language_model.model.", "model.language_model.", "model.")
_HEADS = ("lm_head.weight", "language_model.lm_head.weight")
_OTHER_PARTS = (
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
)


class TensorSource(Protocol):
    """Weights of a model under its own parameter names, read one at a time."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the weights, in a fixed order."""
        ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape by parameter name."""
        ...

    def read(self, name: str) -> np.ndarray:
        """The tensor called ``name``, in a floating-point dtype."""
        ...


class SafetensorsFolder:
    """A folder with ``model.safetensors``, or with shards and their index.

    Names lose the prefixes of the published Gemma 3 checkpoints; the vision parts
    of a multimodal one are left out.  Opening reads headers only.

    Args:
      folder: the checkpoint.
      tie_word_embeddings: whether the model's head is its embedding; a copy of it
        in the files is then left out.

    Attributes:
      files: the weight files, in order of their names.
      shapes: shape by parameter name.

    Raises:
      CheckpointError: if a file is missing or damaged, or the index is wrong.
    """

    def __init__(self, folder: Path, *, tie_word_embeddings: bool = True):
        self._handles: dict[str, tuple[Any, str]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        if (folder / _SINGLE).is_file():
            self.files: tuple[Path, ...] = (folder / _SINGLE,)
            weight_map = None
        else:
            weight_map = _read_index(folder)
            names = sorted(set(weight_map.values()))
            self.files = tuple(folder / name for name in names)
        for path in self.files:
            handle = _open(path)
            stored = set(handle.keys())
            if weight_map is not None:
                _check_shard(path, stored, weight_map)
            for name in sorted(stored):
                self._add(path, handle, name, tie_word_embeddings)

    def read(self, name: str) -> np.ndarray:
        """The tensor called ``name``, in the dtype of the file."""
        handle, stored = self._handles[name]
        return handle.get_tensor(stored)

    def _add(self, path: Path, handle, stored: str, tied: bool) -> None:
        name = _parameter_name(stored, tied)
        if name is None:
            return
        if name in self._handles:
            raise CheckpointError(
                f"{path} holds {stored!r}, and the checkpoint holds {name!r} under "
                "another name too. Remove one of them."
            )
        view = handle.get_slice(stored)
        if view.get_dtype() not in _FLOATS:
            raise CheckpointError(
                f"Tensor {stored!r} in {path} has dtype {view.get_dtype()}; expected "
                f"one of {', '.join(_FLOATS)}. Quantised checkpoints are not read "
                "from safetensors: choose the float checkpoint, or a GGUF file."
            )
        self._handles[name] = (handle, stored)
        self.shapes[name] = tuple(view.get_shape())


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
    missing = [f"{n} {_shape(expected[n])}" for n in expected if n not in found]
    extra = [f"{n} {_shape(found[n])}" for n in found if n not in expected]
    wrong = [
        f"{n} is {_shape(found[n])}, expected {_shape(shape)}"
        for n, shape in expected.items()
        if n in found and tuple(found[n]) != tuple(shape)
    ]
    if not (missing or extra or wrong):
        return
    lines = [f"The tensors of {source} do not fit the model the config describes."]
    for title, problems in (
        ("Missing", missing),
        ("Unexpected", extra),
        ("Wrong shape", wrong),
    ):
        if problems:
            more = len(problems) - _LISTED
            listed = "; ".join(problems[:_LISTED])
            lines.append(
                f"{title}: {listed}" + (f"; and {more} more." if more > 0 else ".")
            )
    lines.append(
        "Check that config and weights belong to the same model and that every "
        "weight file is there; otherwise fetch the checkpoint anew."
    )
    raise CheckpointError("\n".join(lines))


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
      CheckpointError: if the file is missing or does not hold an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"Cannot read {path}: {error.strerror}. Give a folder that holds it."
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"{path} is not valid JSON ({error}). Fetch it anew."
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{path} holds a {type(content).__name__}, expected a JSON object. Fetch "
            "it anew."
        )
    return content


def _read_index(folder: Path) -> dict[str, str]:
    """Shard file by tensor name."""
    index = folder / _INDEX
    if not index.is_file():
        raise CheckpointError(
            f"{folder} holds neither {_SINGLE} nor {_INDEX}. Give the folder of a "
            "safetensors checkpoint, or a GGUF file."
        )
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map. Fetch it anew.")
    for name in weight_map.values():
        # The index is data from outside: it must not lead out of its folder.
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(
                f"{index} names the file {name!r}; expected a plain file name in the "
                "same folder. Fetch the index anew."
            )
    return weight_map


def _check_shard(path: Path, stored: set[str], weight_map: Mapping[str, str]) -> None:
    """Checks that a shard holds exactly what the index says."""
    listed = {name for name, shard in weight_map.items() if shard == path.name}
    for names, problem in (
        (listed - stored, "lacks tensors that the index says it holds"),
        (stored - listed, "holds tensors that the index does not list"),
    ):
        if names:
            some = ", ".join(sorted(names)[:_LISTED])
            raise CheckpointError(
                f"{path} {problem} ({len(names)}): {some}. The files are of different "
                "versions; fetch the checkpoint anew."
            )


def _open(path: Path):
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="numpy")
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} is missing, though the index lists it. Fetch it, or the whole "
            "checkpoint, anew."
        ) from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is damaged or not a safetensors file ({error}). It may be "
            "truncated, or a pointer left by an unfinished download; fetch it anew."
        ) from error


def _parameter_name(stored: str, tied: bool) -> str | None:
    """Our name for a tensor of a published Gemma 3; None if it is not needed."""
    if stored.startswith(_OTHER_PARTS):
        return None
    if stored in _HEADS:
        return None if tied else "lm_head.weight"
    for prefix in _TEXT_PREFIXES:
        if stored.startswith(prefix):
            return stored.removeprefix(prefix)
    return stored


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
