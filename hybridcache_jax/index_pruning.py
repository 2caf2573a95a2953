"""What of a tree of claims can go: holes and what lies behind them, unused ends.

And what is held of bounded forms while the forms that must be held beside it are gone:
no resume point and no replay can use it.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from hybridcache_jax.claims import Children, Holds, Node, Sizes, join
from hybridcache_jax.forms import RULES, required
from hybridcache_jax.replay import companions
from hybridcache_jax.spec import CacheSpec

# Per pool, the last blocks of a path: ids, and which of their claims hold.
Path = list[tuple[np.ndarray, np.ndarray]]


class Pruning:
    """A pass over one key's tree against the facts of one moment."""

    def __init__(self, spec: CacheSpec, sizes: Sizes, holds: Holds):
        """Nothing is looked at yet.

        Args:
          spec: pools and grid.
          sizes: of the blocks.
          holds: tells which claims are still true.
        """
        self._spec = spec
        self._sizes = sizes
        self._grid = spec.grid
        self._holds = holds
        self._companions = {
            number: companions(spec, number)
            for number, pool in enumerate(spec.pools)
            if not RULES[pool.form].grows
        }
        self._uses: dict[tuple, dict[int, np.ndarray]] = {}
        # Blocks before a position that a point behind it may require.
        self._back = [
            -(-RULES[pool.form].reach(pool.geometry) // pool.block_tokens)
            for pool in spec.pools
        ]

    def good(self, pool: int, claimed: Sequence[np.ndarray], at: int = 0) -> np.ndarray:
        """Which claims of consecutive blocks still hold.

        Args:
          pool: index of the pool.
          claimed: as a node keeps it.
          at: position of the first block.

        Returns:
          ``[n]`` bool.
        """
        ids, epochs = self._sizes.of(claimed, pool)
        first = at + np.arange(len(ids), dtype=np.int32) * np.int32(
            self._sizes.tokens[pool]
        )
        return self._holds(pool, ids, epochs, first)

    def prune(
        self, root: Children, essential: Sequence[int], left: Sequence[list[np.ndarray]]
    ) -> None:
        """Drops what can never be resumed from a tree.

        Args:
          root: of the tree.
          essential: pools that a replay cannot rebuild.
          left: per pool, gets the ids of which a claim that is true is left, of bounded
            forms those that are of use.
        """
        places = places_in(root)
        none = np.zeros(0, np.int32), np.zeros(0, bool)
        # What stands before the children of each place; None behind a hole.
        below: list[Path | None] = [None] * len(places)
        seen = []
        for number, (place, good) in enumerate(
            zip(places, self._all_good(places), strict=True)
        ):
            path = [none] * len(good) if place.parent < 0 else below[place.parent]
            if path is None:
                continue
            length = len(place.node.tokens)
            for pool in essential:
                if not good[pool].all():
                    hole = int(np.argmin(good[pool])) * self._sizes.tokens[pool]
                    length = min(length, hole - hole % self._grid)
            used = self._behind(path, place.node, good, length)
            masks = self._of_use(used, place.at, length)
            if length == len(place.node.tokens):
                below[number] = [
                    (ids[max(len(ids) - back, 0) :], held[max(len(held) - back, 0) :])
                    for (ids, held), back in zip(used, self._back, strict=True)
                ]
            for ids_left, (ids, _), mask in zip(left, used, masks, strict=True):
                ids_left.append(ids[mask])
            seen.append((place, good, length, masks))
        # Children before their parents, which may have become ends.
        for place, good, length, masks in reversed(seen):
            node = place.node
            if not essential and length == len(node.tokens) and not node.children:
                own = [
                    mask[len(mask) - len(held) :]
                    for mask, held in zip(masks, good, strict=True)
                ]
                length = self._held_end(own)
            if length == 0:
                del place.children[place.unit]
            elif length < len(node.tokens):
                place.children[place.unit] = node.part(0, length, self._sizes)

    def _all_good(self, places: "Sequence[Place]") -> Iterator[list[np.ndarray]]:
        """For each place, per pool, which claims of its node still hold.

        All nodes are looked up at once: one by one, that is what pruning would cost.
        """
        claimed = self._sizes.joined([place.node for place in places])
        starts = np.array([place.at for place in places], np.int32)
        lengths = np.array([len(place.node.tokens) for place in places], np.int32)
        good, edges = [], []
        for pool, size in enumerate(self._sizes.tokens):
            counts = lengths // size
            ends = np.cumsum(counts)
            within = np.arange(counts.sum(), dtype=np.int32)
            within -= np.repeat(ends - counts, counts).astype(np.int32)
            first = np.repeat(starts, counts) + within * np.int32(size)
            ids, epochs = self._sizes.of(claimed, pool)
            good.append(self._holds(pool, ids, epochs, first))
            edges.append((ends - counts, ends))
        for number in range(len(places)):
            yield [
                held[start[number] : stop[number]]
                for held, (start, stop) in zip(good, edges, strict=True)
            ]

    def _behind(
        self, path: Path, node: Node, good: list[np.ndarray], length: int
    ) -> Path:
        """The last blocks of a path, and behind them those of more tokens."""
        found = []
        for pool, size in enumerate(self._sizes.tokens):
            ids, held = path[pool]
            own = self._sizes.of(node.claimed, pool)[0, : length // size]
            fresh = good[pool][: length // size]
            if len(ids):
                own, fresh = join([ids, own]), join([held, fresh])
            found.append((own, fresh))
        return found

    def _of_use(self, path: Path, at: int, length: int) -> list[np.ndarray]:
        """Which blocks of a path that ends at ``at + length`` something can use.

        Of what grows with the history all that holds; of a bounded form what points
        behind ``at`` require at which all is held that must be held beside it.
        """
        held = [held for _, held in path]
        bounded = [held[number] for number in self._companions]
        # Many prompts look alike: what one of them can use, the others can.
        alike = at, length, *(each.tobytes() for each in bounded)
        if alike not in self._uses:
            self._uses[alike] = self._bounded_uses(held, at, length)
        uses = self._uses[alike]
        return [
            mask & uses[number] if number in uses else mask
            for number, mask in enumerate(held)
        ]

    def _bounded_uses(
        self, held: Sequence[np.ndarray], at: int, length: int
    ) -> dict[int, np.ndarray]:
        """By bounded pool, which of the last blocks are required by a complete point.

        Args:
          held: per pool, ``[n]`` bool: which of the last blocks hold.
          at: position behind which points count.
          length: tokens from there on; the blocks end where they do.
        """
        points = np.arange(at + self._grid, at + length + 1, self._grid, dtype=np.int32)
        ranges, complete = {}, {}
        for number in self._companions:
            pool = self._spec.pools[number]
            size = pool.block_tokens
            lo, hi = required(pool.form, pool.geometry, points)
            skipped = (at + length) // size - len(held[number])
            start, stop = lo // size - skipped, -(-hi // size) - skipped
            stop = np.maximum(start, stop)
            holes = np.append(0, np.cumsum(~held[number]))
            ranges[number] = start, stop
            complete[number] = holes[stop] == holes[start]
        uses = {}
        for number, beside in self._companions.items():
            useful = np.all([complete[n] for n in beside], axis=0)
            start, stop = (edge[useful] for edge in ranges[number])
            count = len(held[number]) + 1
            opened = np.bincount(start, minlength=count)
            opened -= np.bincount(stop, minlength=count)
            uses[number] = np.cumsum(opened)[:-1] > 0
        return uses

    def _held_end(self, good: Sequence[np.ndarray]) -> int:
        """Whole grid units of a node up to the last claim that is still true."""
        last = 0
        for held, size in zip(good, self._sizes.tokens, strict=True):
            if held.any():
                last = max(last, (int(np.flatnonzero(held)[-1]) + 1) * size)
        return last + -last % self._grid

    def age(self, place: "Place", used: Sequence[np.ndarray]) -> tuple[int, int]:
        """When an end was last in use, and less its position: the least goes first.

        Args:
          place: of the end.
          used: per pool, ``[P]`` int32, when each block was last in use.
        """
        ages = [
            of_pool[
                self._sizes.of(place.node.claimed, pool)[0][
                    self.good(pool, place.node.claimed, place.at)
                ]
            ]
            for pool, of_pool in enumerate(used)
        ]
        return int(join(ages).max(initial=-1)), -place.at - len(place.node.tokens)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a node hangs.

    Attributes:
      children: what it is one of.
      unit: under which.
      node: itself.
      at: position of its first token.
      parent: number of the place of the node above; -1 at the root.
    """

    children: Children
    unit: bytes
    node: Node
    at: int
    parent: int


def places_in(root: Children) -> list[Place]:
    """Every node of a tree, each behind the one above it.

    Args:
      root: of the tree.
    """
    places = [Place(root, unit, node, 0, -1) for unit, node in root.items()]
    # Grows while it is walked: a tree may be deeper than Python's stack.
    for number, place in enumerate(places):
        below = place.at + len(place.node.tokens)
        places += [
            Place(place.node.children, unit, node, below, number)
            for unit, node in place.node.children.items()
        ]
    return places
