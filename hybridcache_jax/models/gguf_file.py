"""Reads GGUF files of Gemma 3: metadata and tensors, expanded to float32.

Format: the GGUF specification of the ggml project, versions 2 and 3.  The header is
parsed here because it is short and because a vocabulary of a quarter of a million
strings takes the reader of the ``gguf`` package twenty seconds; what the blocks of
a quantised tensor mean is left to that package.
"""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from hybridcache_jax.errors import CheckpointError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}

_MODEL_NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "output": "lm_head",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}


class GGUFFile:
    """A GGUF file; tensors under the model's own parameter names.

    Opening reads the header; tensors stay on disk until they are asked for.

    Args:
      path: the file.

    Attributes:
      files: the path, as a tuple of one.
      metadata: value by key: int, float, bool, str, list of str, or an array.
      shapes: shape by parameter name.

    Raises:
      CheckpointError: if the file is missing, damaged, truncated, of an unsupported
        version or split, or if the ``gguf`` package is missing.
    """

    def __init__(self, path: Path):
        self.files = (path,)
        self._gguf = _import_gguf()
        try:
            self._bytes = np.memmap(path, np.uint8, mode="r")
        except (OSError, ValueError) as error:  # ValueError: the file is empty
            raise CheckpointError(
                f"Cannot read {path} ({error}). Give the path of a GGUF file."
            ) from error
        header = _Header(self._bytes, path)
        tensor_count = header.start()
        self.metadata: dict[str, Any] = header.metadata()
        if self.metadata.get("split.count", 0) not in (0, 1):
            raise CheckpointError(
                f"{path} is one part of {self.metadata['split.count']}. Merge the "
                "parts first, for example with llama-gguf-split --merge."
            )
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._tensors: dict[str, tuple[int, int, Any]] = {}
        infos = [header.tensor_info() for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise header.damaged(f"general.alignment is {alignment!r}")
        data_start = -(-header.offset // alignment) * alignment
        for stored, dims, type_id, offset in infos:
            self._add(stored, dims, type_id, data_start + offset)

    def read(self, name: str) -> np.ndarray:
        """The tensor called ``name``, expanded to float32.

        Norm weights are returned zero-centred, as the checkpoints of Gemma 3 have
        them; GGUF files hold one plus that.

        Raises:
          CheckpointError: if its quantisation is not supported.
        """
        start, nbytes, kind = self._tensors[name]
        shape = self.shapes[name]
        data = self._bytes[start : start + nbytes].reshape(*shape[:-1], -1)
        try:
            values = self._gguf.quants.dequantize(data, kind)
        except (NotImplementedError, KeyError) as error:
            raise CheckpointError(
                f"Tensor {name!r} of {self.files[0]} is stored as {kind.name}, which "
                "the installed gguf package cannot expand. Upgrade it, or choose "
                "another quantisation."
            ) from error
        return values - np.float32(1) if name.endswith("norm.weight") else values

    def _add(self, stored: str, dims: tuple[int, ...], type_id: int, start: int):
        path = self.files[0]
        try:
            kind = self._gguf.GGMLQuantizationType(type_id)
            block, block_bytes = self._gguf.GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError) as error:
            raise CheckpointError(
                f"Tensor {stored!r} of {path} has the unknown type {type_id}. The file "
                "is damaged, or newer than the installed gguf package; upgrade it."
            ) from error
        shape = tuple(reversed(dims))
        nbytes = math.prod(dims) // block * block_bytes
        if not dims or dims[0] % block or start + nbytes > self._bytes.size:
            raise CheckpointError(
                f"Tensor {stored!r} of {path} ({kind.name}, shape {list(shape)}) needs "
                f"bytes {start} to {start + nbytes} of a file of {self._bytes.size}. "
                "The file is truncated or damaged; fetch it anew."
            )
        name = _parameter_name(stored)
        self.shapes[name] = shape
        self._tensors[name] = (start, nbytes, kind)


class _Header:
    """Reads a header from front to back, refusing to run past the end."""

    def __init__(self, content: np.ndarray, path: Path):
        self.offset = 0
        self._bytes = content.data
        self._path = path

    def start(self) -> int:
        """Reads up to the metadata; returns the number of tensors."""
        if bytes(self._bytes[:4]) != _MAGIC:
            raise CheckpointError(
                f"{self._path} is not a GGUF file: it starts with "
                f"{bytes(self._bytes[:4])!r}, expected {_MAGIC!r}. Give a GGUF "
                "file, or fetch it anew."
            )
        self.offset = 4
        version = self._unpack("<I")
        if version not in _VERSIONS:
            raise CheckpointError(
                f"{self._path} has GGUF version {version}; supported are "
                f"{_VERSIONS[0]} and {_VERSIONS[1]}, little-endian. Convert it anew."
            )
        tensors = self._unpack("<Q")
        self._keys = self._unpack("<Q")
        return tensors

    def metadata(self) -> dict[str, Any]:
        """Reads all keys and values."""
        return {
            self._string(): self._value(self._unpack("<I")) for _ in range(self._keys)
        }

    def tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        """Reads name, dimensions (fastest first), type and offset of one tensor."""
        name = self._string()
        dims = tuple(self._unpack("<Q") for _ in range(self._unpack("<I")))
        return name, dims, self._unpack("<I"), self._unpack("<Q")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            kind, count = self._unpack("<I"), self._unpack("<Q")
            if kind == _STRING:
                return [self._string() for _ in range(count)]
            return self._scalars(kind, count)
        return self._scalars(kind, 1)[0].item()

    def _scalars(self, kind: int, count: int) -> np.ndarray:
        if kind not in _SCALARS:
            raise self.damaged(f"a value has the unknown type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _string(self) -> str:
        raw = self._take(self._unpack("<Q"))
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged("a string is not UTF-8") from error

    def _unpack(self, layout: str) -> int:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _take(self, nbytes: int) -> memoryview:
        end = self.offset + nbytes
        if end > len(self._bytes):
            raise self.damaged("the file ends inside it")
        piece = self._bytes[self.offset : end]
        self.offset = end
        return piece

    def damaged(self, what: str) -> CheckpointError:
        """The error to raise about what was just read."""
        return CheckpointError(
            f"The header of {self._path} is damaged near byte {self.offset}: {what}. "
            "Fetch the file anew."
        )


def _parameter_name(stored: str) -> str:
    """Our name for a tensor of llama.cpp; names it does not know stay as they are."""
    module, _, kind = stored.rpartition(".")
    parts = module.split(".")
    if len(parts) == 1 and module in _MODEL_NAMES:
        return f"{_MODEL_NAMES[module]}.{kind}"
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _BLOCK_NAMES:
        return f"layers.{parts[1]}.{_BLOCK_NAMES[parts[2]]}.{kind}"
    return stored


def _import_gguf():
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise CheckpointError(
            "Reading a GGUF file needs the package gguf, which is not installed: "
            "pip install 'hybridcache_jax[models]'"
        ) from error
    return gguf
