"""The sequences of a ``PrefixCache``: rows that are forked, rewound and reordered."""

from collections.abc import Sequence

from hybridcache_jax.lease import Lease
from hybridcache_jax.prefix_parts import PrefixParts
from hybridcache_jax.state import HybridCache


class SequenceMethods(PrefixParts):
    """Rows as values."""

    def fork(self, cache: HybridCache, lease: Lease) -> tuple[HybridCache, Lease]:
        """A second row that stands where the first does, and its receipt.

        Whole blocks are shared; only what is being written is copied.  What either
        row runs from here on is its own.

        Args:
          cache: the cache; its memory is donated, go on from the one returned.
          lease: the row to fork; it stays valid.  Its deadline is the child's too.

        Raises:
          LeaseError: if the lease no longer holds.
          NoRoomError: if every row is taken, or a pool has no block for the copy.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        cache, child = self._branching.fork(cache, lease)
        self._watch.granted(cache, child)
        return self._line.stamped(cache), child

    def rewind(
        self, cache: HybridCache, lease: Lease, length: int
    ) -> tuple[HybridCache, Lease]:
        """The row as it stood at an earlier length, and its new receipt.

        Args:
          cache: the cache; its memory is donated, go on from the one returned.
          lease: the row; void afterwards.
          length: tokens that stay.

        Raises:
          ValueError: for a length below 0 or beyond the row's own.
          LeaseError: if the lease no longer holds, or a form no longer holds what
            resuming at ``length`` requires; nothing changes.
          NoRoomError: if a pool has no block for the copy of what is written again.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        cache, new = self._branching.rewind(cache, lease, length)
        self._watch.reissued(lease, new)
        return self._line.stamped(cache), new

    def reorder(
        self, cache: HybridCache, leases: Sequence[Lease], parents: Sequence[int]
    ) -> tuple[HybridCache, tuple[Lease, ...]]:
        """Rows of a beam search: place ``i`` goes on where ``parents[i]`` stood.

        A row with no place is released, unpublished, and serves the others.  A row
        goes on in its first place and keeps its receipt; nothing of it is copied.  In
        every further place it is forked.  There may be more places than leases, or
        fewer.

        Args:
          cache: the cache; its memory is donated, go on from the one returned.
          leases: the rows, none twice.
          parents: for each new place, the place of its parent among the leases.

        Returns:
          The cache, and the receipts by new place.

        Raises:
          ValueError: for a parent that is no place, or a row that stands twice.
          LeaseError: if a lease no longer holds; nothing changes.
          NoRoomError: if rows, or free blocks of a pool, do not suffice for all;
            nothing changes.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        after, new = self._branching.reorder(cache, leases, parents)
        self._watch.reordered(cache, after, leases, new)
        return self._line.stamped(after), new

    def select(
        self, cache: HybridCache, leases: Sequence[Lease], keep: Sequence[int]
    ) -> tuple[HybridCache, tuple[Lease, ...]]:
        """Keeps some rows and releases the others, unpublished, in one transition.

        Args:
          cache: the cache.
          leases: the rows, none twice.
          keep: places among the leases, none twice.

        Returns:
          The cache, and the receipts that were kept, in the order of ``keep``.

        Raises:
          ValueError: for a place that is none or stands twice.
          LeaseError: if a lease no longer holds; nothing changes.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        if len(set(keep)) < len(keep):
            raise ValueError(f"Places {list(keep)}: keep each once, or reorder.")
        return self.reorder(cache, leases, keep)

    def settle(
        self, cache: HybridCache, leases: Sequence[Lease], lengths: Sequence[int]
    ) -> tuple[HybridCache, tuple[Lease, ...]]:
        """Ends a speculative round: each row keeps what was accepted of its drafts.

        A round asks first, runs ``k`` drafts of each row in one step, and settles::

            assert all(prefixes.can_rewind_after(cache, l, k) for l in leases)
            cache, logits = step(params, cache, batch_inputs(...))
            lengths = [n + accepted for n, accepted in zip(before, ...)]
            cache, leases = prefixes.settle(cache, leases, lengths)

        Args:
          cache: the cache after the step; its memory is donated, go on from the one
            returned.
          leases: the rows, none twice.
          lengths: tokens that stay of each row; those it has for a row that is left
            alone.

        Returns:
          The cache, and the receipts; a row that was left alone keeps its own.

        Raises:
          ValueError: for a length below 0 or beyond the row's own, or a row that
            stands twice.
          LeaseError: if a lease no longer holds, or a form no longer holds what
            resuming at the row's length requires; no row changes.
          NoRoomError: if a pool lacks blocks for the copies of what is written again;
            no row changes.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        cache, new = self._branching.settle(cache, leases, lengths)
        for old, lease in zip(leases, new, strict=True):
            self._watch.reissued(old, lease)
        return self._line.stamped(cache), new

    def can_rewind(self, cache: HybridCache, lease: Lease, length: int) -> bool:
        """Whether every form of a row still holds what resuming there requires.

        Args:
          cache: the cache of this moment.
          lease: the row.
          length: tokens that would stay; any integer.
        """
        self._line.require_newest(cache)
        return self._branching.can_rewind(cache, lease, length)

    def can_rewind_after(self, cache: HybridCache, lease: Lease, tokens: int) -> bool:
        """Whether the row could come back to where it stands after more tokens.

        True only if that holds however the tokens are cut into steps, and if one more
        step is refused.  What one step ran can be rewound until the next one begins,
        whatever is said here, but for recurrent states.

        Args:
          cache: the cache of this moment.
          lease: the row.
          tokens: how many would be run first.
        """
        self._line.require_newest(cache)
        return self._branching.can_rewind_after(cache, lease, tokens)
