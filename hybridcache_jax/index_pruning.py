"""What of a tree of claims can go: holes and what lies behind them, unused ends."""

from collections.abc import Iterator, Sequence

import numpy as np

from hybridcache_jax.claims import Holds, Node, Sizes, join

Children = dict[bytes, Node]


class Pruning:
    """A pass over one key's tree against the facts of one moment."""

    def __init__(self, sizes: Sizes, grid: int, holds: Holds):
        """Nothing is looked at yet.

        Args:
          sizes: of the blocks.
          grid: tokens between resume points.
          holds: tells which claims are still true.
        """
        self._sizes = sizes
        self._grid = grid
        self._holds = holds

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
    ) -> None:
        """Drops what can never be resumed from a subtree.

        Args:
          children: of the node that the subtree hangs on.
          essential: pools that a replay cannot rebuild.
          left: per pool, gets the ids of which a claim that is true is left.
          at: position of the subtree.
        """
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
            if length == len(node.tokens):
                self.prune(node.children, essential, left, at + length)
                if not essential and not node.children:
                    length = self._held_end(good)
            if length == 0:
                del children[unit]
            elif length < len(node.tokens):
                node = children[unit] = node.part(0, length, self._sizes)
            for pool, size in enumerate(self._sizes.tokens):
                ids = self._sizes.of(node.claimed, pool)[0, : length // size]
                left[pool].append(ids[good[pool][: length // size]])

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
