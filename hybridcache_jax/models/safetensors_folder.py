"""Reads a folder with a checkpoint in the safetensors format."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hybridcache_jax.configs.json_file import read_json
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models.checkpoint import some

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOATS = ("F64", "F32", "F16", "BF16")
_INTEGERS = ("I64", "I32")

# Longer ones before those they begin with.
_PREFIXES = (
    "language_model.model.",
    "model.language_model.",
    "language_model.",
    "model.",
)
_OTHER_PARTS = (
    "audio_tower.",
    "embed_audio.",
    "embed_vision.",
    "multi_modal_projector.",
    "vision_model.",
    "vision_tower.",
)
_HEAD = "lm_head.weight"


class SafetensorsFolder:
    """A folder with ``model.safetensors``, or with shards and their index.

    Names lose the prefixes under which checkpoints keep their text model; the other
    parts of a multimodal one are left out.  Opening reads headers only.

    Args:
      folder: the checkpoint.
      tie_word_embeddings: whether the model's head is its embedding; a copy of it
        in the files is then left out.
      ignored: how names begin, prefix removed, of tensors that the model does not
        need.
      integers: names, prefix removed, of tensors that may hold integers.

    Attributes:
      files: the weight files, in order of their names.
      shapes: shape by name.

    Raises:
      CheckpointError: if a file is missing, damaged or quantised, or the index is
        wrong.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tie_word_embeddings: bool = True,
        ignored: tuple[str, ...] = (),
        integers: Container[str] = (),
    ):
        self._handles: dict[str, tuple[Any, str]] = {}
        self._ignored = (*ignored, *((_HEAD,) if tie_word_embeddings else ()))
        self._integers = integers
        self.shapes: dict[str, tuple[int, ...]] = {}
        if (folder / _SINGLE).is_file():
            self.files: tuple[Path, ...] = (folder / _SINGLE,)
            weight_map = None
        else:
            weight_map = _read_index(folder)
            names = sorted(set(weight_map.values()))
            self.files = tuple(folder / name for name in names)
        quantised: list[str] = []
        for path in self.files:
            handle = _open(path)
            stored = set(handle.keys())
            if weight_map is not None:
                _check_shard(path, stored, weight_map)
            for name in sorted(stored):
                if not self._add(path, handle, name):
                    dtype = handle.get_slice(name).get_dtype()
                    quantised.append(f"{name} has dtype {dtype}")
        _refuse_quantised(folder, quantised)

    def read(self, name: str) -> np.ndarray:
        """The tensor called ``name``, in the dtype of the file."""
        handle, stored = self._handles[name]
        return handle.get_tensor(stored)

    def _add(self, path: Path, handle, stored: str) -> bool:
        """Notes a tensor if it is needed; False if its dtype cannot be used."""
        name = _without_prefix(stored)
        if name is None or name.startswith(self._ignored):
            return True
        if name in self._handles:
            raise CheckpointError(
                f"{path} holds {stored!r}, and the checkpoint holds {name!r} under "
                "another name too. Remove one of them."
            )
        view = handle.get_slice(stored)
        self._handles[name] = (handle, stored)
        self.shapes[name] = tuple(view.get_shape())
        integers = _INTEGERS if name in self._integers else ()
        return view.get_dtype() in (*_FLOATS, *integers)


def _without_prefix(stored: str) -> str | None:
    """The name within the text model; None for tensors of other parts."""
    if stored.removeprefix("model.").startswith(_OTHER_PARTS):
        return None
    for prefix in _PREFIXES:
        if stored.startswith(prefix):
            return stored.removeprefix(prefix)
    return stored


def _refuse_quantised(folder: Path, found: list[str]) -> None:
    if found:
        raise CheckpointError(
            f"{folder} holds tensors that are not floats ({len(found)}): "
            f"{some(found)}. Quantised checkpoints are not read from safetensors: "
            "choose the float checkpoint (bfloat16, float16 or float32), or a GGUF "
            "file."
        )


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
            raise CheckpointError(
                f"{path} {problem} ({len(names)}): {some(sorted(names))}. The files "
                "are of different versions; fetch the checkpoint anew."
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
