"""PrefixCache: match, acquire, publish, release.

The façade over claims (host) and facts (in the cache).  The cache itself stays a
value: every method that changes it takes one and returns one, and only the newest
value of the line is accepted.  Methods are called between compiled steps, from one
thread.  They lie by topic: leases, room, sequences, shadow runs, the store, snapshots
in files of those names.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from hybridcache_jax._typing import TokenIds
from hybridcache_jax._whole import whole
from hybridcache_jax.approximate import bounded, cheapest, marked
from hybridcache_jax.claims import NOTHING
from hybridcache_jax.contents import Contents, Span
from hybridcache_jax.forms import Form
from hybridcache_jax.host_facts import HostFacts
from hybridcache_jax.identity import Identity
from hybridcache_jax.matching import make_cold_plan, make_plan
from hybridcache_jax.prefix_leases import LeaseMethods
from hybridcache_jax.prefix_room import RoomMethods
from hybridcache_jax.prefix_saves import SaveMethods
from hybridcache_jax.prefix_sequences import SequenceMethods
from hybridcache_jax.prefix_shadow import ShadowMethods
from hybridcache_jax.prefix_snapshots import SnapshotMethods
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.rollout import Key
from hybridcache_jax.state import HybridCache
from hybridcache_jax.tokens import token_array


class PrefixCache(
    LeaseMethods,
    SaveMethods,
    RoomMethods,
    SequenceMethods,
    ShadowMethods,
    SnapshotMethods,
):
    """Stored prefixes of one cache: claims, and the way from claim to lease.

    Attributes:
      plan: the plan of the caches it is used with.
      cost: rates by which :meth:`match` weighs waiting, replaying and recomputing.  Set
        it between calls when they were measured anew:
        ``prefixes.cost = prefixes.cost.after_run(tokens, seconds)``.
    """

    def match(
        self,
        cache: HybridCache,
        tokens: TokenIds,
        identity: Identity,
        *,
        request: str = "",
        session: str = "",
        contents: Iterable[Span] = (),
        approximate_replay: int | None = None,
    ) -> ResumePlan:
        """Says where a prompt can be resumed now.  Changes nothing of the cache.

        With a store, a prompt that cannot be resumed at its end is looked up there;
        what is found is claimed, and a plan that needs it waits for I/O.

        Args:
          cache: the cache of this moment.
          tokens: ``[n]`` token ids; an int32 array is used as it is.
          identity: who would read, and in which namespace.
          request: id of the request, for the scope ``request``; like the next one and
            the namespace at most 128 characters, which the index keeps.
          session: id of its session, for the scope ``session``.
          contents: ``(start, stop, content id)`` of the tokens that stand for content:
            equal prefixes have equal tokens and equal ids.  An id, bytes, str or int,
            names everything that decides what its tokens leave: the picture, how it was
            resized, what encoded it.  The index keeps it: at most 128 characters or
            bytes, such as a digest.
          approximate_replay: allows a replay of so few tokens where the exact one is
            longer, and prefixes that came of such replays (:mod:`approximate`).  If it
            saves tokens the plan's ``provenance`` is ``APPROXIMATE``.

        Returns:
          The plan; hand it to :meth:`acquire`.

        Raises:
          ValueError: if the tokens are no flat sequence of int32 integers, or more
            than the plan's ``max_length``; if the contents are no disjoint spans of
            them; for an approximate replay below 1; for an id or a namespace that is
            too long; or for what is no cache or no identity.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        ids = self._prompt(tokens)
        if approximate_replay is not None:
            least = whole("approximate_replay", approximate_replay, least=1)
        key = self._rollout.key(identity, request=request, session=session)
        facts, known = self._upkeep.facts(cache), Contents.of(contents, len(ids))
        plan = self._solved(facts, ids, key, known)
        if self._discovered(cache, facts, plan, ids):
            # Another one if the producer's records were given up.
            key = self._rollout.key(identity, request=request, session=session)
            plan = self._solved(facts, ids, key, known)
        if approximate_replay is not None:
            version = self._versions.of(key.identity)
            other = self._solved(facts, ids, marked(plan).key, known)
            shorter = (
                bounded(self.plan.spec, facts, way, version, least, self.cost)
                for way in (plan, other)
            )
            plan = cheapest((plan, *shorter))
        self._watch.matched(plan)
        return plan

    def cold_plan(
        self,
        tokens: TokenIds,
        identity: Identity,
        *,
        request: str = "",
        session: str = "",
        contents: Iterable[Span] = (),
        shadow: bool = False,
    ) -> ResumePlan:
        """A plan that reuses nothing, for runs that must be cold.

        What such a row runs may be published like what others run.

        Args:
          tokens: ``[n]`` token ids.
          identity: who writes, and in which namespace.
          request: as for :meth:`match`.
          session: likewise.
          contents: likewise.
          shadow: whether it is for the shadow run of a hit (:meth:`shadow_due`), which
            metrics count apart from what answers somebody.

        Raises:
          ValueError: if the tokens are no flat sequence of int32 integers, or more
            than the plan's ``max_length``; if the contents are no disjoint spans of
            them; for an id that is too long; or for what is no identity.
        """
        key = self._rollout.key(identity, request=request, session=session)
        ids = self._prompt(tokens)
        known = Contents.of(contents, len(ids))
        plan = make_cold_plan(self.plan.spec, len(ids), key, self.cost, known)
        plan = plan.counted_to(len(ids)) if shadow else plan
        return dataclasses.replace(plan, line=self._line.name, shadow=shadow)

    def _prompt(self, tokens: TokenIds) -> np.ndarray:
        ids = token_array(tokens)
        if len(ids) > self.plan.max_length:
            raise ValueError(
                f"The prompt has {len(ids)} tokens, the plan allows "
                f"{self.plan.max_length}; shorten it or plan a larger max_length."
            )
        return ids

    def warm_up(
        self, cache: HybridCache, identity: Identity, *, sequences: bool = False
    ) -> HybridCache:
        """Compiles the transitions of serving by acquiring and releasing a row once.

        With a tier also the copies of blocks on their way out and back; the cache's
        memory is donated then.  Put the cache where the parameters are first: what a
        step gives is bound to a device as soon as one input is, and all this would
        compile once more for such caches.

        Args:
          cache: a cache with an idle row.
          identity: any; nothing is stored.
          sequences: forks, reorderings, rewinds and rounds too, which otherwise
            compile when they are first used; the cache's memory is donated.

        Returns:
          A cache that holds what it held before.
        """
        nothing = tuple(
            np.full(self.plan.columns(number), NOTHING)
            for number in range(len(self.plan.blocks))
        )
        with self._watch.paused():
            cache, lease = self.acquire(cache, self.cold_plan([0], identity))
            if self._rollout.policy.shadow_share > 0:
                self._shadow.warm_up(cache)
            if sequences:
                cache = self._line.stamped(self._branching.warm_up(cache))
            if self._outer is not None:
                cache = self._line.stamped(self._outer.warm_up(cache))
            cache = self.publish(cache, lease)
            cache = self._keep(cache, nothing, nothing)
            cache = self.renew(cache, lease, None)
            cache = self.release(cache, lease, publish=False)
        return self.recover(self.evict(cache, Form.NONE))

    def _solved(
        self,
        facts: HostFacts,
        ids: np.ndarray,
        key: Key,
        contents: Contents,
    ) -> ResumePlan:
        plan = make_plan(
            self.plan.spec,
            facts,
            self._index,
            ids,
            key,
            self._versions.of(key.identity),
            self.cost,
            contents,
        )
        return dataclasses.replace(plan, line=self._line.name)
