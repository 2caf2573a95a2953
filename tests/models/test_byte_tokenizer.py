"""Bytes as ids, there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcache_jax.errors import TokenizerError
from hybridcache_jax.models.byte_tokenizer import BOS, VOCAB_SIZE, ByteTokenizer


@given(text=st.text())
def test_text_comes_back(text):
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert ids[0] == BOS
    assert ids[1:] == tokenizer.encode(text, add_bos=False) == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_a_cut_character_is_shown_as_such():
    assert ByteTokenizer().decode("é".encode()[:1]) == "\ufffd"


@pytest.mark.parametrize("wrong", [-1, VOCAB_SIZE])
def test_foreign_ids_are_refused_with_their_place(wrong):
    with pytest.raises(TokenizerError, match="position 1"):
        ByteTokenizer().decode([65, wrong])
