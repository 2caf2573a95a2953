"""All claims of an index as data: what a snapshot of a cache keeps of them.

The tree is kept edge by edge, so what prompts share is kept once.  Claims on places of
an outer tier are left out: the tier is not part of a cache's value.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from hybridcache_jax.claims import NOTHING, Children, Node, Sizes, join
from hybridcache_jax.contents import ContentId, Contents, Span
from hybridcache_jax.identity import Identity
from hybridcache_jax.rollout import Key

# Key, tokens, and per pool ids and epochs, and contents, of one stored prefix.
Prefix = tuple[Key, np.ndarray, list[np.ndarray], list[np.ndarray], Contents]


@dataclasses.dataclass(frozen=True, eq=False)
class SavedClaims:
    """Claims of one moment; ``K`` edges of ``T`` tokens in all.

    Attributes:
      keys: whose claims there are.
      versions: ids of identities in the facts, of all that ever wrote.
      contents: content id by the number that stands for it in ``content_keys``.
      key: ``[K]`` int32, place of each edge's key among ``keys``.
      parent: ``[K]`` int32, the edge it hangs on, always an earlier one; -1 for none.
      length: ``[K]`` int32, its tokens, a multiple of the grid.
      tokens: ``[T]`` int32, of one edge after the other.
      content_keys: ``[T]`` int32, negative where a token stands for content.
      blocks: per pool, ``[T // block_tokens]`` int32 ids; ``NOTHING`` for none.
      epochs: per pool, likewise, the epochs they were claimed with.
      stamp: of the cache of which they are true.
      given_up: keys whose claims do not count any more.
    """

    keys: tuple[Key, ...]
    versions: Mapping[Identity, int]
    contents: Mapping[int, ContentId]
    key: np.ndarray
    parent: np.ndarray
    length: np.ndarray
    tokens: np.ndarray
    content_keys: np.ndarray
    blocks: tuple[np.ndarray, ...]
    epochs: tuple[np.ndarray, ...]
    stamp: int
    given_up: frozenset[Key] = frozenset()

    def prefixes(self, sizes: Sizes) -> Iterator[Prefix]:
        """Every stored prefix that no longer one goes on from.

        Args:
          sizes: of the blocks.
        """
        ends = np.cumsum(self.length)
        starts = ends - self.length
        inner = set(self.parent.tolist())
        for end in range(len(self.length)):
            key = self.keys[self.key[end]]
            if end in inner or key in self.given_up:
                continue
            path, edge = [], end
            while edge >= 0:
                path.append(slice(int(starts[edge]), int(ends[edge])))
                edge = int(self.parent[edge])
            path.reverse()
            ids, epochs = (
                [
                    join([of_pool[p.start // size : p.stop // size] for p in path])
                    for of_pool, size in zip(each, sizes.tokens, strict=True)
                ]
                for each in (self.blocks, self.epochs)
            )
            contents = self._contents(join([self.content_keys[p] for p in path]))
            yield key, join([self.tokens[p] for p in path]), ids, epochs, contents

    def _contents(self, keys: np.ndarray) -> Contents:
        spans: list[Span] = []
        if (keys < 0).any():
            edges = np.flatnonzero(np.diff(keys)) + 1
            bounds = [0, *edges.tolist(), len(keys)]
            spans = [
                (start, stop, self.contents[int(keys[start])])
                for start, stop in itertools.pairwise(bounds)
                if keys[start] < 0
            ]
        return Contents(tuple(spans))


def saved(
    roots: Mapping[Key, Children],
    sizes: Sizes,
    blocks: tuple[int, ...],
    growing: tuple[int, ...],
    most: int,
    versions: Mapping[Identity, int],
    content: Callable[[int], ContentId | None],
    stamp: int,
) -> SavedClaims:
    """What trees claim on the device at this moment; a copy.

    What lies behind a hole of a pool that grows, or has nothing on the device, is of no
    use without the outer tier, and left out.

    Args:
      roots: the trees.
      sizes: of the blocks.
      blocks: of each pool; ids beyond name places outside of the device.
      growing: pools of forms that grow with the history.
      most: tokens that may be claimed in all, those that a reader believes; where they
        are more, because an outer tier holds the others, some edges are left out.
      versions: ids of identities in the facts.
      content: what a content key stands for.
      stamp: of the cache.
    """
    walked: list[tuple[int, int, Node]] = []
    for number, root in enumerate(roots.values()):
        stack = [(-1, node) for node in root.values()]
        while stack:
            parent, node = stack.pop()
            whole = _before_holes(node, sizes, blocks, growing)
            if len(whole.tokens) == 0:
                continue
            place = len(walked)
            walked.append((number, parent, whole))
            stack += [(place, child) for child in whole.children.values()]
    useful = [_on_device(node, sizes, blocks) for _, _, node in walked]
    for place in reversed(range(len(walked))):
        if useful[place] and walked[place][1] >= 0:
            useful[walked[place][1]] = True
    edges: list[Node] = []
    numbers: list[int] = []
    parents: list[int] = []
    kept, total = {-1: -1}, 0
    for place, (number, parent, node) in enumerate(walked):
        more = total + len(node.tokens)
        if not useful[place] or parent not in kept or more > most:
            continue
        kept[place], total = len(edges), more
        edges.append(node)
        numbers.append(number)
        parents.append(kept[parent])
    keys = join([edge.ids for edge in edges])
    named = np.unique(keys[keys < 0]).tolist()
    contents = {key: found for key in named if (found := content(key)) is not None}
    claimed = sizes.joined(edges)
    ids, epochs = [], []
    for pool, count in enumerate(blocks):
        here, seen = sizes.of(claimed, pool)
        ids.append(np.where(here < count, here, NOTHING))
        epochs.append(np.where(here < count, seen, np.int32(0)))
    return SavedClaims(
        keys=tuple(roots),
        versions=dict(versions),
        contents=contents,
        key=np.array(numbers, np.int32),
        parent=np.array(parents, np.int32),
        length=np.array([len(edge.tokens) for edge in edges], np.int32),
        tokens=join([edge.tokens for edge in edges]),
        content_keys=keys,
        blocks=tuple(ids),
        epochs=tuple(epochs),
        stamp=stamp,
    )


def _before_holes(
    node: Node, sizes: Sizes, blocks: tuple[int, ...], growing: tuple[int, ...]
) -> Node:
    """A node up to where something that grows is not on the device."""
    length = len(node.tokens)
    for pool in growing:
        away = np.flatnonzero(sizes.of(node.claimed, pool)[0] >= blocks[pool])
        if len(away):
            length = min(length, int(away[0]) * sizes.tokens[pool])
    if length == len(node.tokens):
        return node
    return node.part(0, length - length % sizes.grid, sizes)


def _on_device(node: Node, sizes: Sizes, blocks: tuple[int, ...]) -> bool:
    return any(
        bool((sizes.of(node.claimed, pool)[0] < count).any())
        for pool, count in enumerate(blocks)
    )
