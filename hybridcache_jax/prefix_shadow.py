"""The shadow runs of a ``PrefixCache``: which hits are run again, and what follows."""

import numpy as np

from hybridcache_jax.codes import Provenance, Verdict
from hybridcache_jax.lease import Lease
from hybridcache_jax.observe.declarations import Why
from hybridcache_jax.prefix_parts import PrefixParts
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.shadow import ShadowReport
from hybridcache_jax.state import HybridCache


class ShadowMethods(PrefixParts):
    """Hits beside their cold runs."""

    def shadow_due(self, plan: ResumePlan) -> bool:
        """Whether this hit should be computed again, by the policy's ``shadow_share``.

        Ask once for each plan that was acquired: every exact hit is counted, and its
        number and the policy's seed alone decide.  Then run the prompt up to
        ``plan.length`` on a second row, acquired under :meth:`cold_plan` with
        ``shadow=True``, with steps like those that made the stored prefix; if the plan
        replays, let its own row run up to there too; and hand both to
        :meth:`shadow_compare`.

        Args:
          plan: any; what reuses nothing, waits for I/O, or is approximate is not due.
        """
        hit = plan.length > 0 and plan.verdict != Verdict.NEEDS_IO
        if not hit or plan.provenance != Provenance.EXACT:
            return False
        due = self._rollout.next_chosen()
        if due:
            self._watch.shadow_sampled()
        return due

    def shadow_compare(
        self, cache: HybridCache, lease: Lease, cold: Lease
    ) -> tuple[HybridCache, ShadowReport]:
        """Compares the state of a hit with its cold run's, and acts if they differ.

        Equal: nothing changes.  Different: the producer's scope falls to ``request``,
        or from there to ``off``, so that nothing stored so far is found any more; the
        blocks that the hit's row refers to are quarantined, and every row that shares
        one of them is stale with its next step.

        Go on from ``report.lease``, and release the other row without publishing.
        That is the cold one where they differ; it publishes nothing either.

        Args:
          cache: the cache after both ran.
          lease: the hit's row; it stands at ``lease.plan.length``.
          cold: a row that ran the same tokens from the first one on.

        Returns:
          The cache and what differs.

        Raises:
          ValueError: if the leases are no hit and no cold run of one prompt and
            producer, or the rows do not both stand at ``lease.plan.length``.
          LeaseError: if one of the leases no longer holds.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        report = self._shadow.compared(cache, lease, cold)
        self._watch.shadow_compared(equal=report.equal)
        if report.equal:
            return cache, report
        # Another hit of the same time may have changed the scope already.
        if self._rollout.holds(lease.plan.key):
            identity = lease.plan.identity
            self.set_scope(identity, self._rollout.narrower(identity))
        after = self._shadow.set_aside(cache, np.int32(lease.row))
        blocks = [np.asarray(columns)[lease.row] for columns in cache.rows.blocks]
        self._watch.lost(cache, after, blocks, Why.MISMATCH)
        self._watch.overturned(lease, cold, report.lease)
        return self._line.stamped(after), report
