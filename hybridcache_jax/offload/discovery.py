"""From records to claims: what a store has of a prompt is claimed by the index.

A record that was found is read no further: its blocks get places of the tier, claims
name those, and a plan that needs them waits for I/O.  What comes is verified then.
"""

import contextlib
from collections.abc import Sequence
from concurrent.futures import Executor

import numpy as np

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.claims import NOTHING, Holds
from hybridcache_jax.observe.watch import Watch
from hybridcache_jax.offload.host_tier import HostTier
from hybridcache_jax.offload.stored_blocks import offered
from hybridcache_jax.offload.tasks import submitted
from hybridcache_jax.offload.whereabouts import Whereabouts
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.rollout import Key
from hybridcache_jax.store.finding import Found
from hybridcache_jax.store.prefix_store import PrefixStore
from hybridcache_jax.store.records import Prefix
from hybridcache_jax.store.ticks import mark_used


class Discovery:
    """Claims what one store has of prompts, for one ``PrefixCache``."""

    def __init__(
        self,
        plan: CapacityPlan,
        store: PrefixStore,
        executor: Executor,
        tier: HostTier,
        index: PrefixIndex,
        whereabouts: Whereabouts,
        watch: Watch,
    ):
        """Nothing is claimed yet.

        Args:
          plan: the plan of the caches.
          store: where records lie.
          executor: notes there, beside the compiled steps, which of them are used.
          tier: gives blocks of them places.
          index: claims them.
          whereabouts: says what claims call those places.
          watch: counts records that are passed by.
        """
        self._plan, self._store, self._tier = plan, store, tier
        self._executor = executor
        self._index, self._whereabouts, self._watch = index, whereabouts, watch

    def claim(
        self,
        key: Key,
        prefix: Prefix,
        found: Found,
        version: int,
        holds: Holds,
        needed: list[np.ndarray],
    ) -> bool:
        """Claims what records have of a prompt and no true claim names yet.

        Args:
          key: under which the index claims it.
          prefix: the prompt's whole grid units, under the key of its records.
          found: those records.
          version: id of the identity in the facts.
          holds: tells which claims are true, on the device or outside.
          needed: per pool, ``[Q]`` bool, places that stay; what is claimed is added.

        Returns:
          Whether there is a new claim.
        """
        self._watch.passed_by(found.problems)
        _, blocks = offered(self._plan.spec, found, self._tier.refused)
        known = self._index.lookup(key, prefix.tokens, prefix.contents)
        columns, epochs, fresh = [], [], False
        for pool, spec in enumerate(self._plan.spec.pools):
            size, total = spec.block_tokens, found.length // spec.block_tokens
            ids, stamps = np.full(total, NOTHING), np.zeros(total, np.int32)
            claimed = min(len(known.blocks[pool]), total)
            first = np.arange(claimed, dtype=np.int32) * np.int32(size)
            there = np.zeros(total, bool)
            there[:claimed] = holds(
                pool, known.blocks[pool][:claimed], known.epochs[pool][:claimed], first
            )
            numbers = [n for n in np.flatnonzero(~there) if (pool, int(n)) in blocks]
            numbers = np.array(numbers, np.int32)
            places = self._tier.claim(
                pool,
                [blocks[pool, number] for number in numbers.tolist()],
                version=version,
                provenance=int(key.provenance),
                first=numbers * np.int32(size),
                needed=needed[pool],
            )
            needed[pool][places] = True
            numbers = numbers[: len(places)]
            ids[numbers] = self._whereabouts.ids(pool, places)
            stamps[numbers] = self._tier.places[pool].epoch[places]
            fresh = fresh or len(places) > 0
            columns.append(ids)
            epochs.append(stamps)
        if fresh:
            tokens = prefix.tokens[: found.length]
            self._index.insert(key, tokens, columns, epochs, holds, prefix.contents)
            self.used(found)
        return fresh

    def used(self, found: Found) -> None:
        """Records are of use: house-keeping keeps them for a while."""
        keys = [record.key for record in found.records]
        submitted(self._executor, _note, self._store, keys)


def _note(store: PrefixStore, keys: Sequence[bytes]) -> None:
    """Keeps records from being collected as unused; they are of use without it."""
    with contextlib.suppress(Exception):
        mark_used(store, keys)
