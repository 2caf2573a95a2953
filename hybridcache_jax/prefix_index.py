"""Claims: which blocks are said to hold which prefix.

A radix tree per key over token ids and the content ids of those that have one.  Edges
are compared token by token, so no hash collision can make a hit, and are cut on the
grid, so that every cut is a resume point.  The index may be stale: nothing reads on
its word, every claim is checked against the facts before use.
"""

import contextlib
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from hybridcache_jax._typing import TokenIds
from hybridcache_jax.capacity import KEY_BYTES, node_bytes
from hybridcache_jax.claims import (
    NOTHING,
    Children,
    Claims,
    Holds,
    Node,
    Sizes,
    join,
)
from hybridcache_jax.contents import ContentKeys, Contents
from hybridcache_jax.forms import RULES
from hybridcache_jax.identity import Identity
from hybridcache_jax.index_pruning import Place, Pruning, places_in
from hybridcache_jax.rollout import Key
from hybridcache_jax.saved_claims import Prefix, SavedClaims, saved
from hybridcache_jax.spec import CacheSpec

# Tokens from which on a leaf is not made longer but gets a child.
_LONG_EDGE = 8192


class PrefixIndex:
    """Token-exact index of stored prefixes, one tree per key."""

    def __init__(self, spec: CacheSpec, placeholders: TokenIds = ()):
        """An empty index for caches of ``spec``.

        Args:
          spec: pools and grid.
          placeholders: token ids that are equal to nothing where they have no content.
        """
        self._spec, self._grid = spec, spec.grid
        self._sizes = Sizes(spec)
        self._roots: dict[Key, Children] = {}
        self._content_keys = ContentKeys(placeholders)
        # While claims are provisional: pool, ids and epochs of each insertion.
        self._inserted: list[tuple[int, np.ndarray, np.ndarray]] | None = None

    @property
    def stored_tokens(self) -> int:
        """Tokens on all edges, shared parts counted once."""
        return sum(len(node.tokens) for node in self._nodes())

    @property
    def nbytes(self) -> int:
        """Bytes of token ids and claims, and most that nodes and keys take besides."""
        own = node_bytes(self._spec)
        nodes = sum(node.nbytes + own for node in self._nodes())
        return nodes + KEY_BYTES * len(self._roots)

    def stored_keys(self) -> tuple[Key, ...]:
        """Keys under which something is claimed."""
        return tuple(self._roots)

    def saved(
        self,
        which: Callable[[Key], bool],
        blocks: tuple[int, ...],
        most: int,
        versions: Mapping[Identity, int],
        stamp: int,
    ) -> SavedClaims:
        """The claims under some keys as data, of what is on the device.

        Args:
          which: tells the keys.
          blocks: of each pool.
          most: tokens that may be claimed in all.
          versions: ids of identities in the facts.
          stamp: of the cache.
        """
        roots = {key: root for key, root in self._roots.items() if which(key)}
        content = self._content_keys.content
        growing = tuple(
            number
            for number, pool in enumerate(self._spec.pools)
            if RULES[pool.form].grows
        )
        return saved(
            roots, self._sizes, blocks, growing, most, versions, content, stamp
        )

    def prefixes_of(self, claims: SavedClaims) -> Iterator[Prefix]:
        """What :meth:`insert` takes, for every prefix in claims of this layout."""
        return claims.prefixes(self._sizes)

    def claims(self) -> Iterator[tuple[Key, int, np.ndarray, np.ndarray]]:
        """Everything that is claimed, as it is kept: key, pool, ids and epochs."""
        for key, root in self._roots.items():
            stack = list(root.values())
            while stack:
                node = stack.pop()
                stack.extend(node.children.values())
                for pool in range(len(self._sizes.tokens)):
                    ids, epochs = self._sizes.of(node.claimed, pool)
                    yield key, pool, ids, epochs

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
        ids = np.ascontiguousarray(self._content_keys.asked(tokens, contents))
        children = self._roots.get(key, Children())
        at, path = 0, []
        while True:
            node = children.get(self._unit(ids, at))
            if node is None:
                break
            same = node.common(ids[at:])
            whole = same - same % self._grid
            path.append((node, whole))
            at += whole
            if whole < len(node.tokens):
                return self._claims(path, at, at + same - whole, (node, same))
            children = node.children
        # No child shares a whole grid unit; the nearest one says where they part.
        beyond, parted = 0, None
        for node in children.nearest(self._unit(ids, at)):
            same = node.common(ids[at : at + self._grid])
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
        own = np.asarray(tokens, np.int32)
        ids = self._content_keys.stored(own, contents)
        fresh = Node(
            own,
            tuple(
                np.array(
                    [[each[n] for n in pools] for each in (blocks, epochs)], np.int32
                )
                for _, pools in self._sizes.groups
            ),
            None if ids is own else ids,
        )
        children = self._roots.setdefault(key, Children())
        at, total, path = 0, len(fresh.tokens), []
        while at < total:
            unit = self._unit(fresh.ids, at)
            node = children.get(unit)
            if node is None:
                self._grow(path, children, unit, fresh.part(at, total, self._sizes))
                break
            same = node.common(fresh.ids[at:])
            whole = same - same % self._grid
            if whole < len(node.tokens):
                node = self._split(children, unit, node, whole)
            path.append(node)
            at += whole
            children = node.children
        self._refresh(path, fresh, holds)
        if self._content_keys.full:
            named = [node.content_keys for node in self._nodes()]
            self._content_keys.keep(join([k for k in named if k is not None]))

    @contextlib.contextmanager
    def provisional(self) -> Iterator[None]:
        """What is inserted meanwhile is taken back if an error ends it.

        Who is interrupted goes on from an older value, where the same blocks, of the
        same epochs, may come to hold other tokens.
        """
        self._inserted = []
        try:
            yield
        except BaseException:
            for pool, ids, epochs in self._inserted:
                nothing = np.full(len(ids), NOTHING), np.zeros(len(ids), np.int32)
                self._lead(pool, (ids, epochs), nothing)
            raise
        finally:
            self._inserted = None

    def prune(
        self, holds_for: Callable[[Key], Holds], essential: Sequence[int]
    ) -> tuple[np.ndarray, ...]:
        """Drops what can never be resumed: everything behind the first hole.

        What is held of bounded forms counts only where something can use it.

        Where a replay can rebuild every form there are no holes; then what is dropped
        are ends of which nothing is held any more.

        Args:
          holds_for: gives, for a key, what :meth:`insert` calls ``holds``.
          essential: pools that a replay cannot rebuild.

        Returns:
          Per pool, ``[n]`` int32 ids of which a claim that is true and of use is left.
        """
        left: list[list[np.ndarray]] = [[] for _ in self._sizes.tokens]
        for key in list(self._roots):
            pruning = self._pruning(holds_for(key))
            pruning.prune(self._roots[key], essential, left)
            if not self._roots[key]:
                del self._roots[key]
        return tuple(map(join, left))

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
        stored = self.stored_tokens
        heap: list[tuple[tuple[int, int], int, Pruning, list[Place], Place]] = []
        for key, root in self._roots.items():
            pruning, places = self._pruning(holds_for(key)), places_in(root)
            heap += [
                (pruning.age(place, used), len(heap) + number, pruning, places, place)
                for number, place in enumerate(places)
                if not place.node.children
            ]
        heapq.heapify(heap)
        while stored > most:
            *_, number, pruning, places, place = heapq.heappop(heap)
            del place.children[place.unit]
            stored -= len(place.node.tokens)
            if place.parent >= 0 and not place.children:
                above = places[place.parent]
                age = pruning.age(above, used)
                heapq.heappush(heap, (age, number, pruning, places, above))
        self._roots = {key: root for key, root in self._roots.items() if root}

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
        if len(old[0]):
            self._lead(pool, old, new)

    def _lead(self, pool: int, old, new) -> None:
        """Replaces claims wherever they stand; there is at least one."""
        order = np.argsort(old[0])
        ids, epochs = old[0][order], old[1][order]
        for node in self._nodes():
            claimed, seen = self._sizes.of(node.claimed, pool)
            place = np.searchsorted(ids, claimed)
            inside = np.minimum(place, len(ids) - 1)
            moved = (ids[inside] == claimed) & (epochs[inside] == seen)
            if moved.any():
                to = order[inside]
                claimed[:] = np.where(moved, new[0][to], claimed)
                seen[:] = np.where(moved, new[1][to], seen)

    def _split(self, children, unit, node: Node, length: int) -> Node:
        """Cuts a node in two on the grid; returns the upper part."""
        upper = node.part(0, length, self._sizes)
        lower = node.part(length, len(node.tokens), self._sizes)
        lower.children = node.children
        upper.children[self._unit(lower.ids, 0)] = lower
        children[unit] = upper
        return upper

    def _grow(self, path, children, unit: bytes, rest: Node) -> None:
        """Adds what is new behind a path: a short leaf is made longer.

        A long prompt arrives chunk by chunk; one node per chunk would make every
        later lookup walk thousands of them.
        """
        for pool in range(len(self._sizes.tokens)):
            self._claimed_now(pool, self._sizes.of(rest.claimed, pool))
        leaf = path[-1] if path else None
        if leaf is None or leaf.children or len(leaf.tokens) >= _LONG_EDGE:
            children[unit] = rest
            return
        leaf.extend(rest, self._sizes)

    def _refresh(self, path: list[Node], fresh: Node, holds: Holds) -> None:
        """Replaces the claims along a path that no longer hold by fresh ones that do.

        Those of the plan that a row was admitted with may be older than the others.
        """
        pruning, claimed = self._pruning(holds), self._sizes.joined(path)
        for pool, size in enumerate(self._sizes.tokens):
            good = pruning.good(pool, claimed)
            if good.all():
                continue
            new = self._sizes.of(fresh.claimed, pool)[:, : len(good)]
            kept = good | ~pruning.good(pool, fresh.claimed)[: len(good)]
            self._claimed_now(pool, new[:, ~kept])
            pairs = np.where(kept, self._sizes.of(claimed, pool), new)
            at = 0
            for node in path:
                end = at + len(node.tokens) // size
                self._sizes.of(node.claimed, pool)[:] = pairs[:, at:end]
                at = end

    def _claimed_now(self, pool: int, pairs: np.ndarray) -> None:
        ids, epochs = pairs[:, pairs[0] != NOTHING]
        if self._inserted is not None and len(ids):
            self._inserted.append((pool, ids, epochs))

    def _claims(
        self,
        path: list[tuple[Node, int]],
        length: int,
        shared: int,
        parted: tuple[Node, int] | None,
    ) -> Claims:
        """Joins what is claimed along a path of nodes, each up to a length.

        ``parted`` is where the store goes another way: a node and a place in it.
        """
        claimed = self._sizes.joined([node for node, _ in path])
        # Only the last node can be claimed in part.
        pairs = [
            self._sizes.of(claimed, pool)[:, : length // size]
            for pool, size in enumerate(self._sizes.tokens)
        ]
        edges = [node.tokens for node, _ in path]
        if path:
            edges[-1] = edges[-1][: path[-1][1]]
        token, content = -1, None
        if parted is not None:
            node, place = parted
            token = int(node.tokens[place])
            content = self._content_keys.content(int(node.ids[place]))
        return Claims(
            length=length,
            shared=shared,
            stored_token=token,
            edges=tuple(edges),
            blocks=tuple(ids for ids, _ in pairs),
            epochs=tuple(epochs for _, epochs in pairs),
            stored_content=content,
        )

    def _pruning(self, holds: Holds) -> Pruning:
        return Pruning(self._spec, self._sizes, holds)

    def _unit(self, ids: np.ndarray, at: int) -> bytes:
        """The next grid unit's ids themselves: exact, not a hash of them."""
        return ids[at : at + self._grid].tobytes()

    def _nodes(self) -> Iterator[Node]:
        stack = [node for root in self._roots.values() for node in root.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())
