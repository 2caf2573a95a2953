"""Which records of a producer count: those written since it was last given up.

When a producer's reuse is narrowed, because a hit was wrong or an operator says so, its
records stay where they are and are not found any more, by any process: the number of
times that has happened is part of every key.  A mark is an object of its own, so that
no writer waits for another.
"""

import dataclasses
import re

import numpy as np

from hybridcache_jax.contents import Contents
from hybridcache_jax.identity import Identity
from hybridcache_jax.rollout import Key
from hybridcache_jax.store.prefix_store import PrefixStore, StoreError
from hybridcache_jax.store.records import Prefix

FOLDER = "given-up"

# What :func:`give_up` writes, and nothing else: a manifest takes no larger number.
_MARK = re.compile("[1-9][0-9]{0,8}")
_LAST = 10**9 - 1


def generation(store: PrefixStore, identity: Identity) -> int:
    """How often the records of a producer were given up, in all namespaces.

    Objects beside the marks that have other names do not count.

    Args:
      store: the store.
      identity: the producer; its namespace does not matter.

    Raises:
      StoreError: if the store fails.
    """
    prefix = _folder(identity)
    marks = (name.removeprefix(prefix) for name in store.names(prefix))
    return max((int(mark) for mark in marks if _MARK.fullmatch(mark)), default=0)


def current_key(store: PrefixStore, key: Key) -> Key:
    """A key as the records have it that count now; only its generation is another.

    Args:
      store: the store.
      key: under which an index claims them.

    Raises:
      StoreError: if the store fails.
    """
    return dataclasses.replace(key, generation=generation(store, key.identity))


def stored_prefix(
    store: PrefixStore, key: Key, tokens: np.ndarray, contents: Contents, grid: int
) -> Prefix:
    """Tokens under the key of the records that count for them now.

    Args:
      store: the store.
      key: under which an index claims them; nothing else of it is changed.
      tokens: ``[n]`` int32, whole grid units.
      contents: what some of them stand for.
      grid: tokens of a grid unit.

    Raises:
      StoreError: if the store fails.
    """
    stored = current_key(store, key)
    return Prefix(stored, tokens, contents.before(len(tokens)), grid)


def give_up(store: PrefixStore, identity: Identity) -> int:
    """No record of a producer that was written so far is found again.

    Args:
      store: the store.
      identity: the producer; its namespace does not matter.

    Returns:
      The generation from here on; two processes that give up at once may share it.

    Raises:
      StoreError: if the store fails, or if its marks are used up; its records are
        still found then.
    """
    now = generation(store, identity) + 1
    if now > _LAST:
        raise StoreError(
            f"The records of this producer were given up {_LAST} times, after which "
            f"there is no mark; delete {_folder(identity)}{_LAST} if nobody did that."
        )
    store.put(f"{_folder(identity)}{now}", b"")
    return now


def _folder(identity: Identity) -> str:
    return f"{FOLDER}/{identity.within(None).digest}/"
