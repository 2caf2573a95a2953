"""A tokenizer without a vocabulary file: one id per byte of UTF-8."""

import hashlib
from collections.abc import Sequence

from hybridcache_jax.errors import TokenizerError

BOS = 256
"""Id in front of every text; ids below it are bytes."""

VOCAB_SIZE = 257


class ByteTokenizer:
    """Bytes of UTF-8 as ids; see ``tokenizer.Tokenizer``.

    Attributes:
      vocab_size: 257: the bytes and :data:`BOS`.
      bos_id: :data:`BOS`.
      eos_ids: none; a byte model does not end a text.
      digest: SHA-256 of this definition.
    """

    vocab_size = VOCAB_SIZE
    bos_id: int | None = BOS
    eos_ids: tuple[int, ...] = ()
    digest = hashlib.sha256(b"bytes of UTF-8, then BOS = 256").hexdigest()

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        """Ids of ``text``, with :data:`BOS` in front if it is asked."""
        ids = list(text.encode())
        return [BOS, *ids] if add_bos else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``; bytes that are no UTF-8 become U+FFFD, BOS is left out.

        Raises:
          TokenizerError: if an id is not in the vocabulary.
        """
        for position, token in enumerate(ids):
            if not 0 <= token < VOCAB_SIZE:
                raise TokenizerError(
                    f"Id {token} at position {position} lies outside the vocabulary "
                    f"0..{VOCAB_SIZE - 1}; were these ids made by a byte model?"
                )
        return bytes(token for token in ids if token != BOS).decode(errors="replace")
