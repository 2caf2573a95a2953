"""Names of stored prefixes: a chain of BLAKE3 over grid units, keyed per namespace.

The key of a prefix that ends at grid point ``g`` covers who wrote it and every pair of
token id and content id before ``g``, in order.  It is equal in all processes, on all
platforms and for all seeds.  Who does not know a namespace's name cannot tell which of
its keys stand for which tokens.

A key finds a record; it never proves one.  The tokens are stored and compared.
"""

import json
from collections.abc import Callable

import numpy as np
from blake3 import blake3

from hybridcache_jax.codes import Reason
from hybridcache_jax.contents import ContentId, Contents
from hybridcache_jax.identity import Identity
from hybridcache_jax.rollout import Key

KEY_BYTES = 16
"""Bytes of a key; 128 bits, so that unequal prefixes do not meet by chance."""

# (key of the namespace, what is hashed) to a digest of at least KEY_BYTES.
Hash = Callable[[bytes, bytes], bytes]

_NAMESPACE = "hybridcache_jax 2026 namespace of stored prefixes"


def keyed_blake3(key: bytes, data: bytes) -> bytes:
    """32 bytes of BLAKE3 in its keyed mode."""
    return blake3(data, key=key).digest()


def root_key(key: Key, grid: int, hash: Hash = keyed_blake3) -> bytes:
    """The key of the empty prefix: who writes, for whom, and how the grid lies.

    Args:
      key: producer, namespace, reuse scope, generation and provenance: what may not be
        reused for one another has keys that do not meet.
      grid: tokens of a grid unit.
      hash: for tests of what happens when keys meet.

    Returns:
      ``KEY_BYTES`` bytes.

    Raises:
      ValueError: if nothing may be shared under the key.
    """
    if key.reason != Reason.OK:
        raise ValueError(
            f"Nothing is stored under this key: {key.reason.explanation}. Give digests "
            "of weights, config and layout, a scope, and the id that it asks for."
        )
    said = [key.identity.digest, int(key.scope), key.owner]
    said += [key.generation, int(key.provenance), grid]
    return hash(_namespace_key(key.identity), json.dumps(said).encode())[:KEY_BYTES]


def chain(
    identity: Identity,
    root: bytes,
    tokens: np.ndarray,
    contents: Contents,
    grid: int,
    hash: Hash = keyed_blake3,
) -> list[bytes]:
    """Keys of all prefixes that end on the grid.

    Args:
      identity: whose namespace it is.
      root: the key of the prefix that the first token follows.
      tokens: ``[n]`` int32.
      contents: what placeholders stand for, at positions of ``tokens``.
      grid: tokens of a grid unit.
      hash: as for :func:`root_key`.

    Returns:
      ``1 + n // grid`` keys, ``root`` first.
    """
    secret, keys = _namespace_key(identity), [root]
    ids = np.ascontiguousarray(tokens, "<i4")
    for start in range(0, len(ids) - grid + 1, grid):
        found = contents_between(contents, start, start + grid)
        said = json.dumps(found).encode() if found else b""
        unit = ids[start : start + grid].tobytes()
        keys.append(hash(secret, keys[-1] + unit + said)[:KEY_BYTES])
    return keys


def _namespace_key(identity: Identity) -> bytes:
    name = identity.namespace.encode()
    return blake3(name, derive_key_context=_NAMESPACE).digest()


def contents_between(
    contents: Contents, start: int, stop: int
) -> tuple[tuple[int, int, str, str], ...]:
    """Content ids within a range: offset, end, type and id of each span in it."""
    return tuple(
        (max(first, start) - start, min(last, stop) - start, *_named(content))
        for first, last, content in contents.spans
        if first < stop and last > start
    )


def _named(content: ContentId) -> tuple[str, str]:
    """The type of a content id and the id as text; unequal ids stay unequal."""
    if isinstance(content, bytes):
        return "bytes", content.hex()
    return type(content).__name__, str(content)
