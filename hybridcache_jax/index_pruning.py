"""What of a tree of claims can go: holes and what lies behind them, unused ends.

And what is held of bounded forms while the forms that must be held beside it are gone:
no resume point and no replay can use it.
"""

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
        self,
        children: Children,
        essential: Sequence[int],
        left: Sequence[list[np.ndarray]],
        at: int = 0,
        path: Path | None = None,
    ) -> None:
        """Drops what can never be resumed from a subtree.

        Args:
          children: of the node that the subtree hangs on.
          essential: pools that a replay cannot rebuild.
          left: per pool, gets the ids of which a claim that is true is left, of bounded
            forms those that are of use.
          at: position of the subtree.
          path: what stands before it.
        """
        none = np.zeros(0, np.int32), np.zeros(0, bool)
        path = [none] * len(self._sizes.tokens) if path is None else path
        for unit, node in list(children.items()):
            length = len(node.tokens)
            good = [
                self.good(pool, node.claimed, at)
                for pool in range(len(self._sizes.tokens))
            ]
            for pool in essential:
                if not good[pool].all():
                    hole = int(np.argmin(good[pool])) * self._sizes.tokens[pool]
                    length = min(length, hole - hole % self._grid)
            used = self._behind(path, node, good, length)
            masks = self._of_use(used, at, length)
            if length == len(node.tokens):
                below = [
                    (ids[max(len(ids) - back, 0) :], held[max(len(held) - back, 0) :])
                    for (ids, held), back in zip(used, self._back, strict=True)
                ]
                self.prune(node.children, essential, left, at + length, below)
                if not essential and not node.children:
                    length = self._held_end(
                        [
                            mask[len(mask) - len(own) :]
                            for mask, own in zip(masks, good, strict=True)
                        ]
                    )
            if length == 0:
                del children[unit]
            elif length < len(node.tokens):
                children[unit] = node.part(0, length, self._sizes)
            for ids_left, (ids, _), mask in zip(left, used, masks, strict=True):
                ids_left.append(ids[mask])

    def _behind(
        self, path: Path, node: Node, good: list[np.ndarray], length: int
    ) -> Path:
        """The last blocks of a path, and behind them those of more tokens."""
        found = []
        for pool, size in enumerate(self._sizes.tokens):
            ids, held = path[pool]
            own = self._sizes.of(node.claimed, pool)[0, : length // size]
            found.append(
                (join([ids, own]), np.append(held, good[pool][: length // size]))
            )
        return found

    def _of_use(self, path: Path, at: int, length: int) -> list[np.ndarray]:
        """Which blocks of a path that ends at ``at + length`` something can use.

        Of what grows with the history all that holds; of a bounded form what points
        behind ``at`` require at which all is held that must be held beside it.
        """
        pools = self._spec.pools
        points = np.arange(at + self._grid, at + length + 1, self._grid, dtype=np.int32)
        ranges, complete = {}, {}
        for number, pool in enumerate(pools):
            if RULES[pool.form].grows:
                continue
            held, size = path[number][1], pool.block_tokens
            lo, hi = required(pool.form, pool.geometry, points)
            skipped = (at + length) // size - len(held)
            start, stop = lo // size - skipped, -(-hi // size) - skipped
            stop = np.maximum(start, stop)
            holes = np.append(0, np.cumsum(~held))
            ranges[number] = start, stop
            complete[number] = holes[stop] == holes[start]
        masks = []
        for number, (_, held) in enumerate(path):
            if number not in ranges:
                masks.append(held)
                continue
            useful = np.all(
                [complete[n] for n in companions(self._spec, number)], axis=0
            )
            start, stop = (edge[useful] for edge in ranges[number])
            count = len(held) + 1
            opened = np.bincount(start, minlength=count) - np.bincount(
                stop, minlength=count
            )
            masks.append(held & (np.cumsum(opened)[:-1] > 0))
        return masks

    def _held_end(self, good: Sequence[np.ndarray]) -> int:
        """Whole grid units of a node up to the last claim that is still true."""
        last = 0
        for held, size in zip(good, self._sizes.tokens, strict=True):
            if held.any():
                last = max(last, (int(np.flatnonzero(held)[-1]) + 1) * size)
        return last + -last % self._grid

    def ends(
        self, root: Children, used: Sequence[np.ndarray]
    ) -> Iterator[tuple[int, int, Children, bytes]]:
        """Yields each leaf: its age, less its position, and where it hangs.

        Args:
          root: of the tree.
          used: per pool, ``[P]`` int32, when each block was last in use.
        """
        stack = [(0, root)]
        while stack:
            at, children = stack.pop()
            for unit, node in children.items():
                below = at + len(node.tokens)
                if node.children:
                    stack.append((below, node.children))
                    continue
                ages = [
                    of_pool[
                        self._sizes.of(node.claimed, pool)[0][
                            self.good(pool, node.claimed, at)
                        ]
                    ]
                    for pool, of_pool in enumerate(used)
                ]
                yield int(join(ages).max(initial=-1)), -below, children, unit
