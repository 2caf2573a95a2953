"""One ``PrefixCache`` and one store: what is looked up there, and what is saved."""

from collections.abc import Callable, Iterable
from concurrent.futures import Executor

import numpy as np

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.claims import Claims, Holds
from hybridcache_jax.codes import Reason
from hybridcache_jax.contents import Contents
from hybridcache_jax.identity import Identity
from hybridcache_jax.observe.watch import Watch
from hybridcache_jax.offload.discovery import Discovery
from hybridcache_jax.offload.fetches import Fetches
from hybridcache_jax.offload.generations import Generations
from hybridcache_jax.offload.held_back import HeldBack, Published
from hybridcache_jax.offload.lookups import Lookups
from hybridcache_jax.offload.outer import Outer
from hybridcache_jax.offload.saves import Saves
from hybridcache_jax.offload.saving import Saving
from hybridcache_jax.offload.uses import Uses
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.rollout import Key, Scope
from hybridcache_jax.state import HybridCache
from hybridcache_jax.store import trust
from hybridcache_jax.store.logits import logits_of_bytes
from hybridcache_jax.store.pack import read_blocks
from hybridcache_jax.store.prefix_store import PrefixStore
from hybridcache_jax.store.sizes import block_size


class StoreLink:
    """Discovery, saves and fetches of one ``PrefixCache`` in one store.

    Attributes:
      saves: prefixes on their way to the store.
    """

    def __init__(
        self,
        plan: CapacityPlan,
        store: PrefixStore,
        executor: Executor,
        asking: Executor,
        patience: float,
        index: PrefixIndex,
        outer: Outer,
        watch: Watch,
        write_back: bool,
        forget: Callable[[Identity], None],
    ):
        """Nothing is asked of the store yet.

        Args:
          plan: the plan of the caches.
          store: the store.
          executor: runs what waits for it, between and beside compiled steps.
          asking: runs what a caller waits for; what reads and writes may not delay it.
          patience: seconds that a lookup may take.
          index: its claims name what the store has.
          outer: its tier has places for that, and reads it.
          watch: counts what happens.
          write_back: whether what is published is held back until it is evicted.
          forget: drops all that is claimed of a producer whose records others gave up.
        """
        self._plan, self._store, self._write_back = plan, store, write_back
        self._outer, self._watch = outer, watch
        where = outer.whereabouts
        outer.tier.reader = Fetches(plan, store, executor)
        self._generations = Generations(store, executor, forget, watch)
        current = self._generations.current
        self._uses = Uses(store, executor, plan.spec.grid)
        use = self._uses.add
        saving = Saving(plan, store, executor, index, where, current, use)
        self.saves = Saves(plan, saving, where, watch)
        self._discovery = Discovery(
            plan, store, executor, outer.tier, index, where, watch
        )
        self._lookups = Lookups(store, asking, plan.spec.grid, patience, watch)
        self._held = HeldBack(plan, index)
        # Evictions of which those that are held back know.
        self._evictions = 0

    def discover(
        self,
        key: Key,
        tokens: np.ndarray,
        contents: Contents,
        version: int,
        holds: Holds,
        now: int,
    ) -> bool:
        """Claims what the store has of a prompt: see :meth:`Discovery.claim`.

        Args:
          key: under which the index claims it.
          tokens: ``[n]`` int32, whole grid units.
          contents: what some of them stand for.
          version: id of the identity in the facts.
          holds: tells which claims are true, on the device or outside.
          now: the cache's clock.

        Returns:
          Whether something else is claimed now, maybe less: if the producer's records
          were given up.
        """
        if not self._has_records(key):
            return False
        answer = self._lookups.ask(key, tokens, contents)
        if answer is None:
            return False
        if not self._generations.current(answer[0].key):
            return True
        pools = range(len(self._plan.blocks))
        needed = [self._outer.needed_places(pool, now) for pool in pools]
        return self._discovery.claim(key, *answer, version, holds, needed)

    def published(
        self,
        key: Key,
        claims: Claims,
        contents: Contents,
        holds: Holds,
        logits: np.ndarray | None = None,
    ) -> None:
        """What was published shall be saved, at once or when it is evicted.

        Args:
          key: under which the index claims it.
          claims: what is claimed.
          contents: what some of its tokens stand for.
          holds: tells which claims are true, on the device or outside.
          logits: of the token that follows, or None.
        """
        if not self._has_records(key) or not claims.length:
            return
        if self._write_back:
            self._held.add(Published(key, claims.tokens, contents, logits))
        else:
            self.saves.add(key, claims, contents, holds, logits)

    def logits(
        self, key: Key, tokens: np.ndarray, contents: Contents
    ) -> np.ndarray | None:
        """The logits that the store has of what follows a whole prompt.

        Args:
          key: under which the index would claim it.
          tokens: ``[n]`` int32, whole grid units, one at least.
          contents: what some of them stand for.

        Returns:
          ``[vocab]`` as they were stored, compared with their digest; None if there are
          none of exactly this prompt.
        """
        if not self._has_records(key):
            return None
        answer = self._lookups.ask(key, tokens, contents)
        if answer is None or not self._generations.current(answer[0].key):
            return None
        whole = answer[1].leading
        if not whole or whole[-1].stop != len(tokens):
            return None
        part, refused = whole[-1].logits, self._outer.whereabouts.refused
        if part is None or part.blocks[0].pack in refused:
            return None
        size = block_size(part)
        read = self._lookups.run(read_blocks, self._store, part.blocks, size)
        if read is None:
            return None
        if read[0] is None:
            # Not asked for again; stored again, they are written again.
            self._outer.whereabouts.refuse(part.blocks[0].pack)
            return None
        self._discovery.used(answer[1])
        return logits_of_bytes(part, read[0])

    def step(self, cache: HybridCache, holds_for: Callable[[Key], Holds]) -> None:
        """See :meth:`Saves.step`; what is due by then is one of them."""
        self._generations.step()
        for key in self._uses.looked():
            self._generations.current(key)
        if self._evictions < self._outer.evictions:
            self._evictions = self._outer.evictions
            self._held.evicted()
        while not self.saves.full and (due := self._held.take()) is not None:
            published, claims = due
            key, contents = published.key, published.contents
            whole = claims.length == len(published.tokens)
            logits = published.logits if whole else None
            if claims.length:
                self.saves.add(key, claims, contents, holds_for(key), logits)
        self.saves.step(cache, holds_for)

    def used(self, key: Key, tokens: np.ndarray, contents: Contents) -> None:
        """A prefix was of use: if there is a record of it, it is not collected.

        Args:
          key: under which the index claims it.
          tokens: ``[n]`` int32, whole grid units.
          contents: what some of them stand for.
        """
        if self._has_records(key):
            self._uses.add(key, tokens, contents)

    @property
    def saving(self) -> int:
        """Published prefixes that are not saved yet."""
        return len(self.saves) + len(self._held)

    def release(self) -> None:
        """Nothing waits for an eviction or for better times that was published."""
        self._held.release()
        self.saves.release()

    def drop(self, dropped: Callable[[Key], bool]) -> None:
        """Nothing is saved of claims that were dropped.

        Args:
          dropped: whether the claims under a key were.
        """
        self._held.give_up(dropped)
        self.saves.give_up(dropped)

    def adopted(self, keys: Iterable[Key]) -> None:
        """Claims came from elsewhere: what others give up from now on is noticed.

        Args:
          keys: under which the index claims it; of a producer for which the store does
            not answer in time that begins with the next look.
        """
        of = {key.identity.within(None): key for key in keys if self._has_records(key)}
        for key in of.values():
            now = self._lookups.run(trust.current_key, self._store, key)
            if now is not None:
                self._generations.current(now)

    def give_up(self, identity: Identity) -> None:
        """What a producer stored so far is not found again, by any process.

        Args:
          identity: the producer; its namespace does not matter.
        """
        self._generations.give_up(identity)

    def _has_records(self, key: Key) -> bool:
        """Whether what is claimed under a key has records."""
        # A request does not outlive the process, and nobody else may read it.
        shared = key.scope > Scope.REQUEST and key.reason == Reason.OK
        return shared and self._generations.usable(key.identity)
