"""What the index says of a prompt, and one edge of its tree."""

import bisect
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from hybridcache_jax.contents import ContentId
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.tokens import common_length

# An id that no pool has: nothing is claimed here.
NOTHING = np.int32(np.iinfo(np.int32).max)

# (pool, ids, epochs, first positions), arrays of equal length, to a bool array.
Holds = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
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
        return join(self.edges)


def no_claims(spec: CacheSpec) -> Claims:
    """What an index that knows nothing says."""
    none = np.zeros(0, np.int32)
    pools = len(spec.pools)
    return Claims(0, 0, -1, (), (none,) * pools, (none,) * pools)


class Sizes:
    """Where a node keeps the claims of each pool: pools of one block size together.

    Attributes:
      grid: tokens of a grid unit.
      tokens: per pool, tokens of a block.
      groups: distinct block sizes, each with its pools in order.
    """

    def __init__(self, spec: CacheSpec):
        """Of the pools of ``spec``."""
        self.grid = spec.grid
        self.tokens = tuple(pool.block_tokens for pool in spec.pools)
        self.groups = tuple(
            (size, tuple(n for n, other in enumerate(self.tokens) if other == size))
            for size in sorted(set(self.tokens))
        )
        self._places = {
            pool: (group, place)
            for group, (_, pools) in enumerate(self.groups)
            for place, pool in enumerate(pools)
        }

    def of(self, claimed: Sequence[np.ndarray], pool: int) -> np.ndarray:
        """``[2, n]`` int32, a view: ids and epochs that are claimed in a pool."""
        group, place = self._places[pool]
        return claimed[group][:, place]

    def joined(self, path: "Sequence[Node]") -> tuple[np.ndarray, ...]:
        """What a path of nodes claims, as a node keeps it; a copy."""
        return tuple(
            np.concatenate(
                [
                    np.zeros((2, len(pools), 0), np.int32),
                    *(node.claimed[group] for node in path),
                ],
                axis=2,
            )
            for group, (_, pools) in enumerate(self.groups)
        )


class Children(dict[bytes, "Node"]):
    """Nodes by their first grid unit, and those units in order.

    Of byte strings in order, what lies next to another one shares the most with it.
    Changed by item only.
    """

    __slots__ = ("_units",)

    def __init__(self):
        """None."""
        super().__init__()
        self._units: list[bytes] = []

    def __setitem__(self, unit: bytes, node: "Node") -> None:
        if unit not in self:
            bisect.insort(self._units, unit)
        super().__setitem__(unit, node)

    def __delitem__(self, unit: bytes) -> None:
        super().__delitem__(unit)
        del self._units[bisect.bisect_left(self._units, unit)]

    def nearest(self, part: bytes) -> "list[Node]":
        """At most two nodes; none has more leading bytes in common with ``part``."""
        place = bisect.bisect_left(self._units, part)
        return [self[unit] for unit in self._units[max(place - 1, 0) : place + 1]]


@dataclasses.dataclass(slots=True)
class Node:
    """One edge of the tree and what is claimed for its tokens; it copies both ids.

    Attributes:
      tokens: ``[n]`` int32.
      claimed: per block size, ``[2, pools, n // size]`` int32: ids, and the epochs they
        were claimed with.  One array, so that long paths are joined at once.
      content_keys: ``[n]``, what is compared where some tokens have content; None
        where the ids are.
      children: by their first grid unit.
      packed: what is compared, as bytes; ``ids`` is a view of them.
    """

    tokens: np.ndarray
    claimed: tuple[np.ndarray, ...]
    content_keys: np.ndarray | None = None
    children: Children = dataclasses.field(default_factory=Children)
    packed: bytes = dataclasses.field(init=False)

    def __post_init__(self):
        if self.content_keys is not None:
            # What is compared is copied below; this has memory of its own, too.
            self.tokens = self.tokens.copy()
        self._pack()

    @property
    def ids(self) -> np.ndarray:
        """What a prompt is compared with."""
        return self.tokens if self.content_keys is None else self.content_keys

    @property
    def nbytes(self) -> int:
        """Bytes of tokens, claims and keys."""
        keys = 0 if self.content_keys is None else self.content_keys.nbytes
        return self.tokens.nbytes + keys + sum(each.nbytes for each in self.claimed)

    def part(self, start: int, stop: int, sizes: Sizes) -> "Node":
        """Tokens ``[start, stop)`` and their claims, without children.

        Args:
          start: a multiple of the grid, like ``stop``.
          stop: where it ends.
          sizes: of the blocks.
        """
        # Copies: a part would keep the memory of the whole alive.
        keys = self.content_keys
        return Node(
            self.tokens[start:stop],
            tuple(
                each[:, :, start // size : stop // size].copy()
                for each, (size, _) in zip(self.claimed, sizes.groups, strict=True)
            ),
            None if keys is None else keys[start:stop],
        )

    def common(self, ids: np.ndarray) -> int:
        """How many leading ones of ``[n]`` int32 contiguous ids the edge shares."""
        ids = ids[: len(self.tokens)]
        # Bytes are compared in one go, without an array of what differs.
        if self.packed.startswith(ids.data):
            return len(ids)
        return common_length(self.ids, ids)

    def extend(self, rest: "Node", sizes: Sizes) -> None:
        """Makes the edge longer by another one."""
        if self.content_keys is not None or rest.content_keys is not None:
            self.content_keys = join([self.ids, rest.ids])
        self.tokens = join([self.tokens, rest.tokens])
        self.claimed = sizes.joined([self, rest])
        self._pack()

    def _pack(self) -> None:
        self.packed = self.ids.tobytes()
        # In the place of the array: not twice the memory.
        ids = np.frombuffer(self.packed, np.int32)
        if self.content_keys is None:
            self.tokens = ids
        else:
            self.content_keys = ids


def join(parts: Sequence[np.ndarray]) -> np.ndarray:
    """One array after the other, also of none."""
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)
