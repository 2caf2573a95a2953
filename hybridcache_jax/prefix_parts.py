"""What a ``PrefixCache`` is made of, and what it says of itself."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import jax
import numpy as np

from hybridcache_jax import deadlines, lifecycle
from hybridcache_jax import lease as leaselib
from hybridcache_jax import rows as rowlib
from hybridcache_jax._typing import TokenIds
from hybridcache_jax.approximate import marked
from hybridcache_jax.branching import Branching
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.cost import CostModel
from hybridcache_jax.errors import LeaseError
from hybridcache_jax.host_facts import snapshot
from hybridcache_jax.identity import Identity
from hybridcache_jax.lineage import Lineage, OnFacts
from hybridcache_jax.observe.hooks import Hooks
from hybridcache_jax.observe.metrics import Metrics
from hybridcache_jax.observe.watch import Watch
from hybridcache_jax.offload.host_tier import HostTier
from hybridcache_jax.offload.load_times import Clock, LoadTimes
from hybridcache_jax.offload.outer import Outer
from hybridcache_jax.offload.store_link import StoreLink
from hybridcache_jax.points import At, pass_by
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.rollout import Key, ReusePolicy, Rollout, Scope
from hybridcache_jax.shadow import Shadow
from hybridcache_jax.state import HybridCache
from hybridcache_jax.store.prefix_store import PrefixStore
from hybridcache_jax.upkeep import Upkeep
from hybridcache_jax.versions import Versions

# Reads that wait for the store at once, beside a write; lookups have one of their own.
_THREADS = 4

_NAMES = {
    "policy": 'a ReusePolicy, such as ReusePolicy("session")',
    "metrics": "Metrics over a registry, such as Metrics(MemoryRegistry())",
    "tier": 'a HostTier, such as HostTier(plan, budget="1GiB")',
}


class PrefixParts:
    """Claims about one line of caches, and everything that keeps them true."""

    def __init__(
        self,
        plan: CapacityPlan,
        *,
        policy: ReusePolicy = ReusePolicy(),
        cost: CostModel = CostModel(),
        metrics: Metrics = Metrics(),
        hooks: Hooks = Hooks(),
        placeholders: TokenIds = (),
        tier: HostTier | None = None,
        store: PrefixStore | None = None,
        write_back: bool = False,
        executor: Executor | None = None,
        patience: float = 1.0,
        clock: Clock | None = None,
        at: At = pass_by,
    ):
        """An empty store of prefixes.

        Args:
          plan: the plan of the caches it will be used with.
          policy: who may reuse what; by default a request only what it stored itself.
          cost: rates by which waiting, replaying and recomputing are compared.
          metrics: where to count what happens; by default nowhere.
          hooks: functions of yours that are told of loads and evictions.
          placeholders: token ids that stand for content.  A prompt that has one without
            saying which (``contents`` of :meth:`match`) is not reused from there on.
          tier: takes what is evicted, so that it can be loaded again; None to lose it.
            It serves this ``PrefixCache`` alone.
          store: keeps what is published beyond this process, and is asked for what the
            index does not know; it needs a tier, whose places name what lies there.
            Many caches, processes and machines may share one.
          write_back: saves a prefix when the first of its blocks moves from the device
            to the tier, not when it is published: what is never evicted costs no write,
            and is lost if the process dies before :meth:`flush`.  So is what the tier
            gives up before it is saved: give it room for what is evicted until a few
            more :meth:`poll` have been called.
          executor: runs what waits for the store; None for threads of its own, which
            end with :meth:`close` or the process, one of them for lookups alone.  Yours
            runs lookups, too: while all its threads read or write, :meth:`match` waits
            for one, and finds nothing after ``patience``.  While it takes no task, what
            needs one fails as it does when the store fails.
          patience: seconds that :meth:`match` waits for the store to say what it has;
            until it has said so it is not asked again, and what it says late is where
            the next :meth:`match` begins that shares the prompt's beginning.
          clock: seconds, such as ``time.perf_counter``; with it every load is measured,
            from :meth:`load` to the :meth:`poll` that brings it, and ``cost`` learns
            from it.  None to measure nothing: equal histories then give equal plans.
          at: called with every point that is passed, to inject faults.

        Raises:
          ValueError: for a policy, metrics or a tier of another type, for a tier of
            another plan or another ``PrefixCache``, for a plan without staging blocks
            beside a tier, for a store without a tier, and for ``write_back`` without a
            store.
        """
        for name, given, expected in (
            ("policy", policy, ReusePolicy),
            ("metrics", metrics, Metrics),
            ("tier", tier, HostTier | None),
        ):
            if not isinstance(given, expected):
                raise ValueError(
                    f"PrefixCache takes {name} as {_NAMES[name]}, got {given!r}."
                )
        self.plan = plan
        self.cost = cost
        self._rollout = Rollout(policy)
        self._index = PrefixIndex(plan.spec, placeholders)
        self._versions = Versions()
        self._line = Lineage(plan)
        self._watch = Watch(plan, metrics, hooks)
        self._at = at
        self._outer = (
            None if tier is None else Outer(plan, tier, self._index, self._watch, at)
        )
        self._link = None
        self._threads: tuple[Executor, ...] = ()
        if store is not None:
            if self._outer is None:
                raise ValueError(
                    "What a store has needs places in a tier; give one beside it, such "
                    'as HostTier(plan, budget="1GiB", known_tokens=plan.max_length).'
                )
            asking = executor
            if executor is None or asking is None:
                executor = ThreadPoolExecutor(_THREADS, "hybridcache-store")
                asking = ThreadPoolExecutor(1, "hybridcache-lookup")
                self._threads = executor, asking
            self._link = StoreLink(
                plan,
                store,
                executor,
                asking,
                patience,
                self._index,
                self._outer,
                self._watch,
                write_back,
                self._forget,
            )
        elif write_back:
            raise ValueError(
                "write_back says when prefixes are saved; give a store to save them to."
            )
        self._load_times = LoadTimes(clock)
        self._upkeep = Upkeep(
            plan, self._index, self._versions, self._outer, self._watch, at
        )
        self._admit = OnFacts(leaselib.admit)
        self._release = OnFacts(leaselib.release)
        self._renew = OnFacts(deadlines.renew)
        self._keep = OnFacts(leaselib.keep)
        self._read = jax.jit(rowlib.read)
        self._branching = Branching(plan)
        self._shadow = Shadow(plan, policy.shadow_tolerance)

    @property
    def stored_tokens(self) -> int:
        """Tokens that the index claims, shared parts counted once."""
        return self._index.stored_tokens

    def claims(self) -> Iterator[tuple[Key, int, np.ndarray, np.ndarray]]:
        """All claims, true or not, for audits.

        Yields:
          Key, number of the pool, ids ``[n]`` int32 and epochs ``[n]`` int32.
        """
        return self._index.claims()

    def scope(self, identity: Identity) -> Scope:
        """The reuse scope of a producer at this moment, whatever its namespace."""
        return self._rollout.scope(identity)

    def set_scope(self, identity: Identity, scope: Scope | str) -> None:
        """Widens or narrows the reuse of a producer, at once and in all namespaces.

        What it stored before is not found any more, its blocks go as dead weight when
        room is made.  Rows that are running go on and publish nothing.  Where it is
        narrowed, its records in the store are given up, for every process.  Others drop
        all that they claim of the producer when they next look in the store for
        something of it, save it, or use it and poll; what was acquired until then is
        run to its end with what it has, and saved by nobody.  If the
        store fails, :meth:`poll` tries again, and this process uses none of the
        producer's records until it has gone well.  The scope itself is this process's
        alone: others have, and a restart begins with, what their :class:`ReusePolicy`
        says.

        Args:
          identity: the producer; its namespace does not matter.
          scope: a :class:`Scope` or its name; nothing happens if it is the present one.

        Raises:
          ValueError: for a scope that does not exist.
        """
        producer, before = identity.within(None), self._rollout.scope(identity)
        if self._rollout.set_scope(producer, scope):
            self._drop(lambda key: key.identity.within(None) == producer)
            if self._link is not None and self._rollout.scope(producer) < before:
                self._link.give_up(producer)

    def end_request(self, plan: ResumePlan) -> None:
        """Takes back what only a request that is over could find.

        Its blocks go as dead weight when room is made; without it they would wait for
        their age.  Its loads are over, which the next :meth:`poll` reports.  In a wider
        scope nothing happens.

        Args:
          plan: any plan of the request.
        """
        if plan.key.scope == Scope.REQUEST:
            gone = (plan.key, marked(plan).key)
            self._drop(lambda key: key in gone)

    def _forget(self, producer: Identity) -> None:
        """Drops what is claimed of a producer; its scope stays what it is."""
        self._rollout.renew(producer)
        self._drop(lambda key: key.identity.within(None) == producer)

    def _require_scope(self, plan: ResumePlan) -> None:
        """Refuses a plan whose claims are not kept in the scope of this moment."""
        if not self._rollout.holds(plan.key):
            raise LeaseError(
                "What this plan's producer had stored was given up since it was "
                "matched, or its reuse scope changed; match again."
            )

    def _drop(self, which: Callable[[Key], bool]) -> None:
        """Drops the claims under some keys, and what was asked back for them."""
        self._index.drop(which)
        if self._outer is not None:
            self._outer.give_up(which)
        if self._link is not None:
            self._link.drop(which)

    def _version(self, cache: HybridCache, identity: Identity) -> int:
        """The number of an identity in the facts, from now on if it has none."""
        if self._versions.full:
            claimed = (key.identity for key in self._index.stored_keys())
            live = np.asarray(cache.rows.live)
            self._versions.keep(claimed, np.asarray(cache.rows.version)[live])
        return self._versions.give(identity)

    def account(self, cache: HybridCache) -> dict[str, dict[str, int]]:
        """Per pool, how many blocks are what; the parts add up to ``total``.

        The gauges of the metrics are set to the same.
        """
        accounts = {
            pool.name: {k: int(v) for k, v in lifecycle.account(table).items()}
            for pool, table in zip(
                self.plan.spec.pools, snapshot(cache.tables), strict=True
            )
        }
        self._watch.sampled(cache, accounts, self._index)
        return accounts
