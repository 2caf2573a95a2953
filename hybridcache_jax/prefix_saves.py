"""The store of a ``PrefixCache``: what is saved to it and looked up there."""

import math
import time
from collections.abc import Callable, Iterable

import numpy as np

from hybridcache_jax._typing import TokenIds
from hybridcache_jax.codes import Verdict
from hybridcache_jax.contents import Contents, Span
from hybridcache_jax.host_facts import HostFacts
from hybridcache_jax.identity import Identity
from hybridcache_jax.prefix_room import RoomMethods
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.state import HybridCache
from hybridcache_jax.tokens import token_array
from hybridcache_jax.upkeep import ANYWHERE

# Seconds between two looks at a store that is busy.
_PAUSE = 0.001


class SaveMethods(RoomMethods):
    """Prefixes that outlive the process."""

    @property
    def saving(self) -> int:
        """Published prefixes that are not saved yet; 0 without a store.

        With ``write_back`` also those that are held back until they are evicted.
        """
        return 0 if self._link is None else self._link.saving

    def flush(
        self,
        cache: HybridCache,
        *,
        progress: Callable[[int], None] | None = None,
        timeout: float | None = None,
    ) -> HybridCache:
        """Polls until everything that was published is saved, or has failed.

        With ``write_back`` that includes what was not evicted yet.  What the store
        failed to take before is tried once more; later polls try it again, up to eight
        times in all and ever more seldom.

        Args:
          cache: the cache; its memory is donated, go on from the one returned.
          progress: called with :attr:`saving` whenever a save ended.
          timeout: seconds after which it returns although not everything is saved, as
            ``Thread.join`` does; None to wait for as long as the store takes.

        Returns:
          The cache.  If time was up, :attr:`saving` says how many prefixes are left:
          none is lost, later polls and another :meth:`flush` go on with them.

        Raises:
          ValueError: for a timeout that is no number of seconds, 0 or more.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        end = math.inf if timeout is None else time.monotonic() + _seconds(timeout)
        self._line.require_newest(cache)
        if self._link is not None:
            self._link.release()
        left = self.saving
        while left and time.monotonic() < end:
            cache, _ = self.poll(cache)
            if self.saving == left:
                time.sleep(_PAUSE)
                continue
            left = self.saving
            if progress is not None:
                progress(left)
        return cache

    def stored_logits(
        self,
        tokens: TokenIds,
        identity: Identity,
        *,
        request: str = "",
        session: str = "",
        contents: Iterable[Span] = (),
    ) -> np.ndarray | None:
        """What the store says follows a whole prompt, so that no position is run.

        They are the logits that :meth:`publish` was given with exactly these tokens,
        by the same producer, and compared with their digest.  Choose a token of them,
        and match the prompt with it: that resumes at the end of the prompt, and runs
        the chosen token alone.

        Args:
          tokens: ``[n]`` token ids of the prompt.
          identity: as for :meth:`match`.
          request: likewise.
          session: likewise.
          contents: likewise.

        Returns:
          ``[vocab]`` in the dtype in which they were given, read-only; None if there
          are none of this prompt, which then is no whole number of grid units or was
          published without, or if the store fails or takes longer than ``patience``.

        Raises:
          ValueError: as for :meth:`match`; more tokens than the plan allows have none.
        """
        ids = token_array(tokens)
        key = self._rollout.key(identity, request=request, session=session)
        known = Contents.of(contents, len(ids))
        whole = len(ids) > 0 and len(ids) % self.plan.spec.grid == 0
        if self._link is None or not whole:
            return None
        if self._index.storable(ids, known) < len(ids):
            return None
        return self._link.logits(key, ids, known)

    def close(self) -> None:
        """Ends the threads that wait for the store, when what they do is done.

        Nothing is found, saved or loaded there afterwards, and what asks for it fails
        as it does when the store fails; :meth:`flush` first.
        """
        for threads in self._threads:
            threads.shutdown()

    def _discovered(
        self, cache: HybridCache, facts: HostFacts, plan: ResumePlan, ids: np.ndarray
    ) -> bool:
        """Whether something else is claimed of a prompt since the store was asked."""
        if self._link is None:
            return False
        grid, key, contents = self.plan.spec.grid, plan.key, plan.contents
        whole = min(self._index.storable(ids, contents), len(ids) - 1)
        whole -= whole % grid
        # What can be had already is not asked for.
        if plan.length >= whole and plan.verdict in (
            Verdict.RESUMABLE,
            Verdict.NEEDS_IO,
        ):
            return False
        return self._link.discover(
            key,
            ids[:whole],
            contents,
            self._version(cache, key.identity),
            self._upkeep.holds(facts, key, ANYWHERE),
            int(cache.clock),
        )


def _seconds(timeout: float) -> float:
    # Written so that NaN is refused.
    if isinstance(timeout, bool) or not timeout >= 0:
        raise ValueError(
            f"timeout must be seconds, 0 or more, or None to wait; got {timeout!r}."
        )
    return timeout
