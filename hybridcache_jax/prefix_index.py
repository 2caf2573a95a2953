"""Claims: which blocks are said to hold which prefix.

A radix tree per key over token ids and the content ids of those that have one.  Edges
are compared token by token, so no hash collision can make a hit, and are cut on the
grid, so that every cut is a resume point.  The index may be stale: nothing reads on
its word, every claim is checked against the facts before use.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hybridcache_jax._typing import TokenIds
from hybridcache_jax.contents import ContentId, ContentKeys, Contents
from hybridcache_jax.rollout import Key
from hybridcache_jax.spec import CacheSpec


@dataclasses.dataclass(frozen=True)
class Claims:
    """What the index says about one prompt.

    Attributes:
      length: tokens claimed, a multiple of the grid.
      shared: tokens that the prompt and the deepest stored prefix have in common,
        not rounded to the grid.
      stored_token: what the store has at position ``shared``, where the prompt goes
        another way or ends; -1 if it has nothing there.
      edges: parts of the claimed prefix, in order; :attr:`tokens` joins them.
      blocks: per pool, ``[length // block_tokens]`` int32 ids; ``NOTHING`` for none.
      epochs: per pool, epochs the blocks were claimed with.
      stored_content: content id of the stored token; None where it has none.
    """

    length: int
    shared: int
    stored_token: int
    edges: tuple[np.ndarray, ...]
    blocks: tuple[np.ndarray, ...]
    epochs: tuple[np.ndarray, ...]
    stored_content: ContentId | None = None

    @property
    def tokens(self) -> np.ndarray:
        """``[length]`` int32, the claimed prefix."""
        return _join(self.edges)


# An id that no pool has: nothing is claimed here.
NOTHING = np.int32(np.iinfo(np.int32).max)

# (pool, ids, epochs, first positions), arrays of equal length, to a bool array.
Holds = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


# Tokens from which on a leaf is not made longer but gets a child.
_LONG_EDGE = 8192


@dataclasses.dataclass
class _Node:
    """One edge of the tree and what is claimed for its tokens."""

    tokens: np.ndarray
    blocks: tuple[np.ndarray, ...]
    epochs: tuple[np.ndarray, ...]
    # What is compared where some tokens have content; None where the ids are.
    content_keys: np.ndarray | None = None
    children: dict[bytes, "_Node"] = dataclasses.field(default_factory=dict)

    @property
    def ids(self) -> np.ndarray:
        """What a prompt is compared with."""
        return self.tokens if self.content_keys is None else self.content_keys


class PrefixIndex:
    """Token-exact index of stored prefixes, one tree per key."""

    def __init__(self, spec: CacheSpec, placeholders: TokenIds = ()):
        """An empty index for caches of ``spec``.

        Args:
          spec: pools and grid.
          placeholders: token ids that are equal to nothing where they have no content.
        """
        self._grid = spec.grid
        self._sizes = tuple(pool.block_tokens for pool in spec.pools)
        self._roots: dict[Key, dict[bytes, _Node]] = {}
        self._content_keys = ContentKeys(placeholders)

    @property
    def stored_tokens(self) -> int:
        """Tokens on all edges, shared parts counted once."""
        return sum(len(node.tokens) for node in self._nodes())

    @property
    def nbytes(self) -> int:
        """Bytes of token ids, claims and keys; Python's own overhead not counted."""
        return sum(
            node.tokens.nbytes
            + (0 if node.content_keys is None else node.content_keys.nbytes)
            + sum(ids.nbytes for ids in (*node.blocks, *node.epochs))
            + self._grid * node.tokens.itemsize
            for node in self._nodes()
        )

    def stored_keys(self) -> tuple[Key, ...]:
        """Keys under which something is claimed."""
        return tuple(self._roots)

    def claims(self) -> Iterator[tuple[Key, int, np.ndarray, np.ndarray]]:
        """Everything that is claimed, as it is kept: key, pool, ids and epochs."""
        for key, root in self._roots.items():
            stack = list(root.values())
            while stack:
                node = stack.pop()
                stack.extend(node.children.values())
                for pool, ids in enumerate(node.blocks):
                    yield key, pool, ids, node.epochs[pool]

    def drop(self, doomed: Callable[[Key], bool]) -> None:
        """Takes back every claim of some keys; their blocks become dead weight."""
        self._roots = {k: root for k, root in self._roots.items() if not doomed(k)}

    def storable(self, tokens: np.ndarray, contents: Contents) -> int:
        """How many tokens come before the first placeholder without content."""
        return self._content_keys.storable(tokens, contents)

    def lookup(
        self, key: Key, tokens: np.ndarray, contents: Contents = Contents()
    ) -> Claims:
        """Everything claimed for the longest stored prefix of a prompt.

        Args:
          key: whose claims.
          tokens: ``[n]`` int32.
          contents: what some of them stand for.
        """
        ids = self._content_keys.asked(tokens, contents)
        children = self._roots.get(key, {})
        at, path = 0, []
        while True:
            node = children.get(self._unit(ids, at))
            if node is None:
                break
            same = _common(node.ids, ids[at:])
            whole = same - same % self._grid
            path.append((node, whole))
            at += whole
            if whole < len(node.tokens):
                return self._claims(path, at, at + same - whole, (node, same))
            children = node.children
        # No child shares a whole grid unit; the closest one says where they part.
        beyond, parted = 0, None
        for node in children.values():
            same = _common(node.ids[: self._grid], ids[at:])
            if parted is None or same > beyond:
                beyond, parted = same, (node, same)
        return self._claims(path, at, at + beyond, parted)

    def insert(
        self,
        key: Key,
        tokens: np.ndarray,
        blocks: Sequence[np.ndarray],
        epochs: Sequence[np.ndarray],
        holds: Holds,
        contents: Contents = Contents(),
    ) -> None:
        """Claims blocks for a prefix, keeping older claims that still hold.

        Args:
          key: whose claims.
          tokens: ``[n]`` int32, ``n`` a multiple of the grid.
          blocks: per pool, ``[n // block_tokens]`` int32; ``NOTHING`` for none.
          epochs: per pool, likewise.
          holds: tells which older claims are still true.
          contents: what some of the tokens stand for; no placeholder is without.
        """
        own = np.array(tokens, np.int32)
        ids = self._content_keys.stored(own, contents)
        fresh = _Node(
            own,
            tuple(np.asarray(ids, np.int32) for ids in blocks),
            tuple(np.asarray(seen, np.int32) for seen in epochs),
            None if ids is own else ids,
        )
        children = self._roots.setdefault(key, {})
        at, total, path = 0, len(fresh.tokens), []
        while at < total:
            unit = self._unit(fresh.ids, at)
            node = children.get(unit)
            if node is None:
                self._grow(path, children, unit, self._slice(fresh, at, total))
                break
            same = _common(node.ids, fresh.ids[at:])
            whole = same - same % self._grid
            if whole < len(node.tokens):
                node = self._split(children, unit, node, whole)
            path.append(node)
            at += whole
            children = node.children
        self._refresh(path, fresh, holds)
        if self._content_keys.full:
            named = [node.content_keys for node in self._nodes()]
            self._content_keys.keep(_join([k for k in named if k is not None]))

    def prune(
        self, holds_for: Callable[[Key], Holds], essential: Sequence[int]
    ) -> tuple[np.ndarray, ...]:
        """Drops what can never be resumed: everything behind the first hole.

        Where a replay can rebuild every form there are no holes; then what is dropped
        are ends of which nothing is held any more.

        Args:
          holds_for: gives, for a key, what :meth:`insert` calls ``holds``.
          essential: pools that a replay cannot rebuild.

        Returns:
          Per pool, ``[n]`` int32 ids of which a claim that is true is left.
        """
        left: list[list[np.ndarray]] = [[] for _ in self._sizes]
        for key in list(self._roots):
            holds = holds_for(key)
            self._prune_below(self._roots[key], 0, holds, essential, left)
            if not self._roots[key]:
                del self._roots[key]
        return tuple(map(_join, left))

    def shed(
        self,
        most: int,
        holds_for: Callable[[Key], Holds],
        used: Sequence[np.ndarray],
    ) -> None:
        """Drops whole ends, the longest unused first, down to ``most`` tokens.

        Args:
          most: tokens that may stay.
          holds_for: as for :meth:`prune`.
          used: per pool, ``[P]`` int32, when each block was last in use.
        """
        while self.stored_tokens > most:
            *_, children, unit = min(self._ends(holds_for, used), key=lambda e: e[:2])
            del children[unit]
        self._roots = {key: root for key, root in self._roots.items() if root}

    def _ends(self, holds_for, used):
        """Yields each leaf: its age, less its position, and where it hangs."""
        for key, root in self._roots.items():
            holds = holds_for(key)
            stack = [(0, root)]
            while stack:
                at, children = stack.pop()
                for unit, node in children.items():
                    below = at + len(node.tokens)
                    if node.children:
                        stack.append((below, node.children))
                        continue
                    ages = [
                        used[pool][ids[self._good(pool, ids, seen, at, holds)]]
                        for pool, (ids, seen) in enumerate(
                            zip(node.blocks, node.epochs, strict=True)
                        )
                    ]
                    yield int(_join(ages).max(initial=-1)), -below, children, unit

    def move(
        self,
        pool: int,
        old: tuple[np.ndarray, np.ndarray],
        new: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """Lets claims follow blocks that moved to or from an outer tier.

        Args:
          pool: index of the pool.
          old: ``[n]`` int32 ids and epochs that were claimed.
          new: ``[n]`` int32 ids and epochs where the same content lies now.
        """
        if not len(old[0]):
            return
        order = np.argsort(old[0])
        ids, epochs = old[0][order], old[1][order]
        for node in self._nodes():
            claimed, seen = node.blocks[pool], node.epochs[pool]
            place = np.searchsorted(ids, claimed)
            inside = np.minimum(place, len(ids) - 1)
            moved = (ids[inside] == claimed) & (epochs[inside] == seen)
            if moved.any():
                to = order[inside]
                claimed = np.where(moved, new[0][to], claimed)
                seen = np.where(moved, new[1][to], seen)
                node.blocks = _replaced(node.blocks, pool, claimed)
                node.epochs = _replaced(node.epochs, pool, seen)

    def _prune_below(self, children, at, holds, essential, left) -> None:
        """Prunes a subtree and adds to ``left``, per pool, the blocks that stay."""
        for unit, node in list(children.items()):
            length = len(node.tokens)
            good = [
                self._good(pool, ids, seen, at, holds)
                for pool, (ids, seen) in enumerate(
                    zip(node.blocks, node.epochs, strict=True)
                )
            ]
            for pool in essential:
                if not good[pool].all():
                    hole = int(np.argmin(good[pool])) * self._sizes[pool]
                    length = min(length, hole - hole % self._grid)
            if length == len(node.tokens):
                self._prune_below(node.children, at + length, holds, essential, left)
                if not essential and not node.children:
                    length = self._held_end(good)
            if length == 0:
                del children[unit]
            elif length < len(node.tokens):
                node = children[unit] = self._slice(node, 0, length)
            for pool, size in enumerate(self._sizes):
                ids = node.blocks[pool][: length // size]
                left[pool].append(ids[good[pool][: length // size]])

    def _held_end(self, good: Sequence[np.ndarray]) -> int:
        """Whole grid units of a node up to the last claim that is still true."""
        last = 0
        for held, size in zip(good, self._sizes, strict=True):
            if held.any():
                last = max(last, (int(np.flatnonzero(held)[-1]) + 1) * size)
        return last + -last % self._grid

    def _good(self, pool: int, ids, epochs, at: int, holds: Holds) -> np.ndarray:
        """Which claims of consecutive blocks from position ``at`` on still hold."""
        first = at + np.arange(len(ids), dtype=np.int32) * np.int32(self._sizes[pool])
        return holds(pool, ids, epochs, first)

    def _split(self, children, unit, node: _Node, length: int) -> _Node:
        """Cuts a node in two on the grid; returns the upper part."""
        upper = self._slice(node, 0, length)
        lower = self._slice(node, length, len(node.tokens))
        lower.children = node.children
        upper.children[self._unit(lower.ids, 0)] = lower
        children[unit] = upper
        return upper

    def _grow(self, path, children, unit: bytes, rest: _Node) -> None:
        """Adds what is new behind a path: a short leaf is made longer.

        A long prompt arrives chunk by chunk; one node per chunk would make every
        later lookup walk thousands of them.
        """
        leaf = path[-1] if path else None
        if leaf is None or leaf.children or len(leaf.tokens) >= _LONG_EDGE:
            children[unit] = rest
            return
        if leaf.content_keys is not None or rest.content_keys is not None:
            leaf.content_keys = _join([leaf.ids, rest.ids])
        leaf.tokens = _join([leaf.tokens, rest.tokens])
        leaf.blocks = tuple(map(_join, zip(leaf.blocks, rest.blocks, strict=True)))
        leaf.epochs = tuple(map(_join, zip(leaf.epochs, rest.epochs, strict=True)))

    def _refresh(self, path: list[_Node], fresh: _Node, holds: Holds) -> None:
        """Replaces the claims along a path that no longer hold."""
        for pool in range(len(self._sizes)):
            ids = _join([node.blocks[pool] for node in path])
            seen = _join([node.epochs[pool] for node in path])
            good = self._good(pool, ids, seen, 0, holds)
            if good.all():
                continue
            new, stamps = fresh.blocks[pool][: len(ids)], fresh.epochs[pool][: len(ids)]
            good = good | (new == NOTHING)
            ids, seen = np.where(good, ids, new), np.where(good, seen, stamps)
            at = 0
            for node in path:
                end = at + len(node.blocks[pool])
                node.blocks = _replaced(node.blocks, pool, ids[at:end])
                node.epochs = _replaced(node.epochs, pool, seen[at:end])
                at = end

    def _slice(self, node: _Node, start: int, stop: int) -> _Node:
        # Copies: a part would keep the memory of the whole alive.
        def cut(arrays):
            return tuple(
                array[start // size : stop // size].copy()
                for array, size in zip(arrays, self._sizes, strict=True)
            )

        keys = node.content_keys
        return _Node(
            node.tokens[start:stop].copy(),
            cut(node.blocks),
            cut(node.epochs),
            None if keys is None else keys[start:stop].copy(),
        )

    def _claims(
        self,
        path: list[tuple[_Node, int]],
        length: int,
        shared: int,
        parted: tuple[_Node, int] | None,
    ) -> Claims:
        """Joins what is claimed along a path of nodes, each up to a length.

        ``parted`` is where the store goes another way: a node and a place in it.
        """
        blocks, epochs = [], []
        for pool, size in enumerate(self._sizes):
            # Only the last node can be claimed in part.
            count = length // size
            blocks.append(_join([node.blocks[pool] for node, _ in path])[:count])
            epochs.append(_join([node.epochs[pool] for node, _ in path])[:count])
        edges = tuple(node.tokens[:n] for node, n in path)
        token, content = -1, None
        if parted is not None:
            node, place = parted
            token = int(node.tokens[place])
            content = self._content_keys.content(int(node.ids[place]))
        return Claims(
            length, shared, token, edges, tuple(blocks), tuple(epochs), content
        )

    def _unit(self, ids: np.ndarray, at: int) -> bytes:
        """The next grid unit's ids themselves: exact, not a hash of them."""
        return ids[at : at + self._grid].tobytes()

    def _nodes(self) -> Iterator[_Node]:
        stack = [node for root in self._roots.values() for node in root.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


def no_claims(spec: CacheSpec) -> Claims:
    """What an index that knows nothing says."""
    none = np.zeros(0, np.int32)
    pools = len(spec.pools)
    return Claims(0, 0, -1, (), (none,) * pools, (none,) * pools)


def _replaced(arrays: tuple, place: int, array: np.ndarray) -> tuple:
    return (*arrays[:place], array, *arrays[place + 1 :])


def _join(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """Number of leading tokens that two arrays share."""
    length = min(len(a), len(b))
    different = a[:length] != b[:length]
    return int(np.argmax(different)) if different.any() else length
