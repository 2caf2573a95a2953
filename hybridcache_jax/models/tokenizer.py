"""Tokenizers: text to ids and back, from whatever a checkpoint brings along.

Three sources, one protocol: the vocabulary inside a GGUF file, a
``tokenizer.json`` and a ``tokenizer.model``.  The merging itself is done by the
sentencepiece and tokenizers libraries.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hybridcache_jax.errors import TokenizerError

_SPACE = "\u2581"
_UNKNOWN_TYPE = 2
_DEFAULT_UNKNOWN_ID = 3


class Tokenizer(Protocol):
    """Text to ids and back.

    Attributes:
      vocab_size: number of ids.
      bos_id: id in front of every text, or None.
      eos_ids: ids that end a text.
      digest: SHA-256 of what defines the tokenizer.
    """

    vocab_size: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    digest: str

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        """Ids of ``text``, with ``bos_id`` in front if there is one and it is asked.

        Whether the spelling of a control token inside ``text`` becomes that token
        is up to the source: never for a GGUF file, where such text is only text;
        always for a ``tokenizer.json``, where chat templates count on it.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``; control tokens are left out.

        Raises:
          TokenizerError: if an id is not in the vocabulary.
        """
        ...


class SentencePieceTokenizer:
    """A tokenizer of the sentencepiece library.

    Args:
      model: serialised ``ModelProto``.
      bos_id: id in front of every text, or None.
      eos_ids: ids that end a text.
      source: where it comes from, for messages.

    Raises:
      TokenizerError: if the model is damaged or the package is missing.
    """

    def __init__(
        self, model: bytes, *, bos_id: int | None, eos_ids: Sequence[int], source: str
    ):
        sentencepiece = _import("sentencepiece")
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise TokenizerError(
                f"The sentencepiece model of {source} is damaged ({error}). Fetch it "
                "anew."
            ) from error
        self.vocab_size: int = self._processor.vocab_size()
        self.bos_id = bos_id
        self.eos_ids = tuple(eos_ids)
        self.digest = hashlib.sha256(model).hexdigest()

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        """See :class:`Tokenizer`."""
        return _with_bos(self.bos_id if add_bos else None, self._processor.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """See :class:`Tokenizer`."""
        return self._processor.decode(_checked(ids, self.vocab_size))


class JsonTokenizer:
    """A ``tokenizer.json`` of the tokenizers library.

    Args:
      path: the file.
      bos_id: id in front of every text, or None.
      eos_ids: ids that end a text.

    Raises:
      TokenizerError: if the file is missing or damaged or the package is missing.
    """

    def __init__(self, path: Path, *, bos_id: int | None, eos_ids: Sequence[int]):
        tokenizers = _import("tokenizers")
        content = _read(path)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # the library raises nothing more specific
            raise TokenizerError(
                f"{path} is damaged or not a tokenizer.json ({error}). Fetch it anew."
            ) from error
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        self.bos_id = bos_id
        self.eos_ids = tuple(eos_ids)
        self.digest = hashlib.sha256(content).hexdigest()

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        """See :class:`Tokenizer`."""
        # The file's own post-processor may or may not add <bos>; here it never does.
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return _with_bos(self.bos_id if add_bos else None, ids)

    def decode(self, ids: Sequence[int]) -> str:
        """See :class:`Tokenizer`."""
        return self._tokenizer.decode(_checked(ids, self.vocab_size))


def tokenizer_from_gguf(
    metadata: Mapping[str, Any], *, bos_id: int | None, eos_ids: Sequence[int]
) -> Tokenizer | None:
    """The tokenizer inside a GGUF file.

    Args:
      metadata: value by key, as in the file.
      bos_id: id in front of every text, or None.
      eos_ids: ids that end a text.

    Returns:
      None if the file has no vocabulary.

    Raises:
      TokenizerError: if the vocabulary is inconsistent or of another kind.
    """
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None:
        return None
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "llama":
        raise TokenizerError(
            f"The GGUF file has a tokenizer of kind {kind!r}; Gemma 3 has 'llama' "
            "(sentencepiece). Use a Gemma 3 file."
        )
    if not metadata.get("tokenizer.ggml.add_bos_token", True):
        bos_id = None
    return SentencePieceTokenizer(
        _model_proto(metadata, tokens),
        bos_id=bos_id,
        eos_ids=eos_ids,
        source="the GGUF file",
    )


def tokenizer_from_folder(
    folder: Path, *, bos_id: int | None, eos_ids: Sequence[int]
) -> Tokenizer | None:
    """The tokenizer of a checkpoint: ``tokenizer.json``, else ``tokenizer.model``.

    Args:
      folder: the checkpoint.
      bos_id: id in front of every text, or None.
      eos_ids: ids that end a text.

    Returns:
      None if the folder has neither.

    Raises:
      TokenizerError: if the file is damaged.
    """
    json_file = folder / "tokenizer.json"
    model_file = folder / "tokenizer.model"
    if json_file.is_file():
        return JsonTokenizer(json_file, bos_id=bos_id, eos_ids=eos_ids)
    if model_file.is_file():
        return SentencePieceTokenizer(
            _read(model_file), bos_id=bos_id, eos_ids=eos_ids, source=str(model_file)
        )
    return None


def _model_proto(metadata: Mapping[str, Any], tokens: Sequence[str]) -> bytes:
    """A sentencepiece model with the vocabulary of a GGUF file."""
    _import("google.protobuf", package="protobuf")
    proto = _import("sentencepiece.sentencepiece_model_pb2", package="sentencepiece")
    scores = metadata.get("tokenizer.ggml.scores", ())
    types = metadata.get("tokenizer.ggml.token_type", ())
    unknown_id = int(
        metadata.get("tokenizer.ggml.unknown_token_id", _DEFAULT_UNKNOWN_ID)
    )
    if not len(tokens) == len(scores) == len(types) or unknown_id >= len(tokens):
        raise TokenizerError(
            f"The GGUF vocabulary is inconsistent: {len(tokens)} tokens, "
            f"{len(scores)} scores, {len(types)} types, unknown id {unknown_id}. "
            "Convert or fetch the file anew."
        )
    model = proto.ModelProto()
    for token, score, kind in zip(tokens, scores, types, strict=True):
        # Sentencepiece escapes spaces in the text before it matches pieces; llama.cpp
        # stores the user-defined runs of spaces unescaped.
        model.pieces.add(
            piece=token.replace(" ", _SPACE), score=float(score), type=int(kind)
        )
    # llama.cpp may store <unk> as a control token; sentencepiece insists on one
    # piece of type unknown.
    model.pieces[unknown_id].type = _UNKNOWN_TYPE
    trainer = model.trainer_spec
    trainer.model_type = proto.TrainerSpec.BPE
    trainer.byte_fallback = True
    trainer.vocab_size = len(tokens)
    trainer.unk_id = unknown_id
    normalizer = model.normalizer_spec
    normalizer.name = "identity"
    normalizer.add_dummy_prefix = bool(
        metadata.get("tokenizer.ggml.add_space_prefix", True)
    )
    normalizer.remove_extra_whitespaces = bool(
        metadata.get("tokenizer.ggml.remove_extra_whitespaces", False)
    )
    normalizer.escape_whitespaces = True
    return model.SerializeToString(deterministic=True)


def _with_bos(bos_id: int | None, ids: list[int]) -> list[int]:
    return list(ids) if bos_id is None else [bos_id, *ids]


def _checked(ids: Sequence[int], vocab_size: int) -> list[int]:
    checked = [int(i) for i in ids]
    for i in checked:
        if not 0 <= i < vocab_size:
            raise TokenizerError(
                f"Token id {i} is not in the vocabulary of {vocab_size}. Use ids from "
                "the model this tokenizer belongs to."
            )
    return checked


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"Cannot read {path}: {error.strerror}.") from error


def _import(module: str, package: str | None = None):
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise TokenizerError(
            f"This tokenizer needs the package {package or module}, which is not "
            "installed: pip install 'hybridcache_jax[models]'"
        ) from error
