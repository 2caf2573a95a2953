"""Tokenizers from the three sources, against reference ids and one another."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hybridcache_jax.errors import CheckpointError, TokenizerError
from hybridcache_jax.models.bundled import bundled_gemma3_270m
from hybridcache_jax.models.gguf_file import GGUFFile
from hybridcache_jax.models.tokenizer import (
    JsonTokenizer,
    SentencePieceTokenizer,
    tokenizer_from_folder,
    tokenizer_from_gguf,
)

GOLDENS = Path(__file__).parents[1] / "goldens"
TEXTS = [
    "",
    " ",
    "a quick  brown\n\n fox",
    "   leading and trailing  ",
    "na\u00efve \u2014 \U0001f600 \x00\t",
    "a quick <table> fox [tag]",
]


@pytest.fixture(scope="module")
def gemma():
    try:
        path = bundled_gemma3_270m()
    except CheckpointError as error:
        pytest.skip(f"weights of Gemma 3 270M are not installed: {error}")
    return tokenizer_from_gguf(GGUFFile(path).metadata, bos_id=2, eos_ids=(1,))


@pytest.mark.parametrize("prompt", range(4))
def test_reference_ids(gemma, prompt):
    meta = json.loads((GOLDENS / "gemma3_270m_meta.json").read_text())
    meta = meta["prompts"][prompt]
    golden = load_file(GOLDENS / "gemma3_270m_expected.safetensors")
    ids = golden[f"prompt{prompt}.tokens"]
    assert gemma.encode(meta["text"]) == ids.tolist()
    assert gemma.encode(meta["text"], add_bos=False) == ids[1:].tolist()
    assert gemma.decode(ids) == meta["text"]
    continuation = golden[f"prompt{prompt}.continuation"]
    assert gemma.decode(continuation) == meta["continuation_text"]


def test_gemma_vocabulary(gemma):
    assert (gemma.vocab_size, gemma.bos_id, gemma.eos_ids) == (262_144, 2, (1,))
    # User-defined runs of spaces and newlines are single tokens.
    assert gemma.encode("   ", add_bos=False) == [139]
    assert gemma.encode("\n\n\n", add_bos=False) == [109]
    assert gemma.encode("<table>", add_bos=False) == [168]


@pytest.mark.parametrize("text", ["<bos>", "<start_of_turn>user", "<unk>", "<eos>"])
def test_control_tokens_in_text_are_text(gemma, text):
    ids = gemma.encode(text, add_bos=False)
    assert not {0, 1, 2, 3, 105, 106} & set(ids)
    assert gemma.decode(ids) == text


@pytest.mark.parametrize("text", TEXTS)
def test_gemma_round_trip(gemma, text):
    assert gemma.decode(gemma.encode(text)) == text


@pytest.fixture(scope="module")
def spiece():
    """A small sentencepiece model with the settings of Gemma's."""
    import sentencepiece

    model = io.BytesIO()
    lines = ["a quick brown fox jumps over the lazy dog"] * 8
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=320,
        hard_vocab_limit=False,
        byte_fallback=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        user_defined_symbols=["\n\n", "\u2581\u2581", "[tag]"],
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def metadata(spiece):
    """The same vocabulary as llama.cpp's converter puts it in a GGUF file."""
    from sentencepiece import sentencepiece_model_pb2

    pieces = sentencepiece_model_pb2.ModelProto.FromString(spiece).pieces
    types = np.array([piece.type for piece in pieces], np.int32)
    types[3] = 3
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [
            piece.piece.replace("\u2581", " ") if piece.type == 4 else piece.piece
            for piece in pieces
        ],
        "tokenizer.ggml.scores": np.array([piece.score for piece in pieces]),
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_space_prefix": False,
    }


@pytest.mark.parametrize("text", TEXTS)
def test_gguf_and_model_file_agree(spiece, metadata, tmp_path, text):
    (tmp_path / "tokenizer.model").write_bytes(spiece)
    from_file = tokenizer_from_folder(tmp_path, bos_id=2, eos_ids=[1])
    from_gguf = tokenizer_from_gguf(metadata, bos_id=2, eos_ids=[1])
    ids = from_file.encode(text)
    assert ids[0] == 2
    assert from_gguf.encode(text) == ids
    assert from_file.decode(ids) == from_gguf.decode(ids) == text


def test_space_prefix_and_bos_follow_the_metadata(metadata):
    changed = metadata | {
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.add_bos_token": False,
    }
    plain = tokenizer_from_gguf(metadata, bos_id=2, eos_ids=[1])
    prefixed = tokenizer_from_gguf(changed, bos_id=2, eos_ids=[1])
    assert prefixed.bos_id is None
    assert prefixed.encode("fox") == plain.encode(" fox", add_bos=False)
    assert prefixed.digest != plain.digest


def test_tokenizer_json(tmp_path):
    import tokenizers

    vocab = {"<bos>": 0, "<eos>": 1, "a": 2, "b": 3, "ab": 4}
    model = tokenizers.models.BPE(vocab=vocab, merges=[("a", "b")])
    built = tokenizers.Tokenizer(model)
    built.add_special_tokens(["<bos>", "<eos>"])
    built.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 0)]
    )
    built.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizer_from_folder(tmp_path, bos_id=0, eos_ids=[1])
    assert isinstance(tokenizer, JsonTokenizer)
    assert tokenizer.encode("aba") == [0, 4, 2]
    assert tokenizer.encode("aba", add_bos=False) == [4, 2]
    assert tokenizer.encode("a<eos>", add_bos=False) == [2, 1]
    assert tokenizer.decode([0, 4]) == "ab"
    assert tokenizer.vocab_size == 5
    with pytest.raises(TokenizerError, match="id 5"):
        tokenizer.decode([5])


def test_no_tokenizer(tmp_path):
    assert tokenizer_from_folder(tmp_path, bos_id=2, eos_ids=[1]) is None
    assert tokenizer_from_gguf({}, bos_id=2, eos_ids=[1]) is None


def test_damaged_files(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"\xff" * 50)
    with pytest.raises(TokenizerError, match="damaged"):
        tokenizer_from_folder(tmp_path, bos_id=2, eos_ids=[1])
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        tokenizer_from_folder(tmp_path, bos_id=2, eos_ids=[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.model": "gpt2"}, "'gpt2'"),
        ({"tokenizer.ggml.scores": np.zeros(3)}, "3 scores"),
        ({"tokenizer.ggml.unknown_token_id": 10**6}, "unknown id"),
        ({"tokenizer.ggml.tokens": ["a"] * 320}, "damaged|inconsistent"),
    ],
)
def test_inconsistent_gguf_vocabulary(metadata, changes, message):
    with pytest.raises(TokenizerError, match=message):
        tokenizer_from_gguf(metadata | changes, bos_id=2, eos_ids=[1])


@pytest.mark.parametrize("bad", [-1, 10**6])
def test_unknown_ids(spiece, bad):
    tokenizer = SentencePieceTokenizer(spiece, bos_id=2, eos_ids=[1], source="a test")
    with pytest.raises(TokenizerError, match="not in the vocabulary"):
        tokenizer.decode([5, bad])


def test_missing_package(spiece, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(TokenizerError, match=r"hybridcache_jax\[models\]"):
        SentencePieceTokenizer(spiece, bos_id=2, eos_ids=[1], source="a test")
