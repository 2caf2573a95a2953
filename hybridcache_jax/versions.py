"""Numbers that stand for producers in the facts: who wrote a block, who runs a row.

A number stands for one identity and is never given to another one, so a fact that
nobody looks at any more can do no harm.  An identity is forgotten once nothing is
claimed by it and no row is its own; should it come back, it gets another number.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from hybridcache_jax.errors import HybridCacheError
from hybridcache_jax.identity import Identity

# Number of identities that have never written; blocks count from 1.
UNKNOWN = 0

_LAST = int(np.iinfo(np.int32).max)

# Identities that may be remembered beyond twice those that are alive.
_SPARE = 256


class Versions:
    """The numbers of one ``PrefixCache``."""

    def __init__(self):
        """No identity has a number yet."""
        self._of: dict[Identity, int] = {}
        self._given = UNKNOWN
        self._limit = _SPARE

    def __len__(self) -> int:
        """Identities that have a number."""
        return len(self._of)

    @property
    def full(self) -> bool:
        """Whether it is time for :meth:`keep`."""
        return len(self._of) >= self._limit

    def of(self, identity: Identity) -> int:
        """The number of an identity; ``UNKNOWN`` if it has none."""
        return self._of.get(identity, UNKNOWN)

    def give(self, identity: Identity) -> int:
        """The number of an identity, a new one if it has none.

        Raises:
          HybridCacheError: if int32 has no further one.
        """
        if identity not in self._of:
            if self._given == _LAST:
                raise HybridCacheError(
                    f"{_LAST} producers and namespaces were seen, more than int32 has "
                    "numbers for; go on in a new PrefixCache."
                )
            self._given += 1
            self._of[identity] = self._given
        return self._of[identity]

    def keep(self, claimed: Iterable[Identity], running: np.ndarray) -> None:
        """Forgets all others.

        Args:
          claimed: identities under which something is claimed.
          running: ``[n]`` int32, numbers of the rows that are alive.
        """
        names, numbers = set(claimed), set(running.tolist())
        self._of = {
            identity: number
            for identity, number in self._of.items()
            if identity in names or number in numbers
        }
        self._limit = 2 * len(self._of) + _SPARE

    def known(self) -> dict[Identity, int]:
        """All of them, for a snapshot."""
        return dict(self._of)

    def adopt(self, known: Mapping[Identity, int]) -> None:
        """Goes on from those of a snapshot."""
        self._of.update(known)
        self._given = max(self._given, *known.values(), UNKNOWN)
