"""Snapshots of a ``PrefixCache``: what it claims as data, and going on from that."""

import dataclasses

import numpy as np

from hybridcache_jax.errors import LeaseError, StaleCacheError
from hybridcache_jax.lineage import with_tables
from hybridcache_jax.prefix_parts import PrefixParts
from hybridcache_jax.saved_claims import SavedClaims
from hybridcache_jax.state import HybridCache


class SnapshotMethods(PrefixParts):
    """A cache and its claims as one value, which another process goes on from."""

    def saved_claims(self, cache: HybridCache) -> SavedClaims:
        """Everything that is claimed of a cache, for ``save_snapshot``.

        What lies in an outer tier alone is left out; what is in a store is found there.

        Args:
          cache: the cache of this moment.

        Raises:
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        return self._index.saved(
            self._rollout.holds,
            self.plan.blocks,
            self.plan.index_tokens,
            self._versions.known(),
            int(cache.stamp),
        )

    def adopt(self, cache: HybridCache, claims: SavedClaims) -> HybridCache:
        """Goes on from a cache that was restored, with all that was claimed of it.

        What could be resumed on the device can be resumed again.  Rows that were
        running are released, unpublished: those who held them are gone, and so are
        their blocks that no stored prefix holds.  Evictions that were begun are
        settled as :meth:`recover` does.

        Claims count only in the scope that this ``PrefixCache`` gives their producer
        now; others are dropped and their blocks freed.  With a store it is asked how
        often their producers' records were given up, for ``patience`` seconds at most:
        what is given up later goes here too.

        Args:
          cache: as ``restore_snapshot`` gave it.
          claims: likewise.

        Returns:
          The cache to go on from.

        Raises:
          LeaseError: if this ``PrefixCache`` has worked on a cache before.
          StaleCacheError: for a cache of another plan, or another one than the claims
            are of.
        """
        if self._line.newest is not None:
            raise LeaseError(
                "This PrefixCache follows a cache already, what it claims is true of "
                "that one alone; make a new PrefixCache to adopt another."
            )
        if claims.stamp != self._line.stamp_of(cache):
            raise StaleCacheError(
                "These claims are of another cache, and say nothing of what this one "
                "holds; adopt both as one call of restore_snapshot gave them."
            )
        self._line.require_newest(cache)
        self._versions.adopt(claims.versions)
        with self._watch.paused(), self._index.provisional():
            self._claim(claims)
            live, tickets = np.array(cache.rows.live), np.array(cache.rows.ticket)
            for row in np.flatnonzero(live):
                cache, _ = self._release(cache, np.int32(row), tickets[row])
            cache = self._upkeep.within_index(self._upkeep.recover(cache))
        unheld = (
            dataclasses.replace(table, kept=np.zeros(count, bool))
            for table, count in zip(cache.tables, self.plan.blocks, strict=True)
        )
        self._watch.stored(with_tables(cache, unheld), cache)
        if self._link is not None:
            self._link.adopted(self._index.stored_keys())
        return self._line.stamped(cache)

    def _claim(self, claims: SavedClaims) -> None:
        """Takes over what may be shared by the scopes and placeholders of today."""
        grid = self.plan.spec.grid
        for key, tokens, blocks, epochs, contents in self._index.prefixes_of(claims):
            # Generations count the changes of scope in one process.
            today = self._rollout.key(key.identity)
            here = dataclasses.replace(key, generation=today.generation)
            length = self._index.storable(tokens, contents)
            length -= length % grid
            if length == 0 or not self._rollout.holds(here):
                continue
            ids, seen = (
                [
                    of_pool[: length // pool.block_tokens]
                    for of_pool, pool in zip(each, self.plan.spec.pools, strict=True)
                ]
                for each in (blocks, epochs)
            )
            self._index.insert(
                here, tokens[:length], ids, seen, _unchanged, contents.before(length)
            )


def _unchanged(
    pool: int, ids: np.ndarray, epochs: np.ndarray, first: np.ndarray
) -> np.ndarray:
    """No claim is preferred to another: they all are of one moment."""
    del pool, epochs, first
    return np.ones(len(ids), bool)
