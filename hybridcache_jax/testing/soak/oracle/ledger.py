"""What the oracle keeps: blocks by what they hold, rows by what they ran.

Plain Python objects: a block is the object, so nothing needs an epoch to tell it from
the next block with the same number.  One that moves becomes another object.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from hybridcache_jax.codes import Stage, Verdict
from hybridcache_jax.retention import Keep, Retention
from hybridcache_jax.rollout import Scope
from hybridcache_jax.testing.toy import Model
from hybridcache_jax.testing.toy_kinds import GROWING, Kind


@dataclasses.dataclass(frozen=True)
class Pool:
    """One pool, in plain numbers.

    Attributes:
      layer: the lowest that keeps its part there.
      kind: of that layer.
      part: name of the part.
      size: tokens per block.
      nbytes: bytes per block.
      count: blocks.
      columns: places of a row's block table.
      policy: at which resume points it is kept, read as data.
    """

    layer: int
    kind: Kind
    part: str
    size: int
    nbytes: int
    count: int
    columns: int
    policy: Retention

    @property
    def grows(self) -> bool:
        """Whether only a run from the first hole brings back what is lost."""
        return self.part in GROWING

    @property
    def exact(self) -> bool:
        """Whether a block is of use only at its own end."""
        return self.part == "state"

    def required(self, point: int) -> range:
        """Numbers of the blocks that resuming at ``point`` needs."""
        lo, hi = self.kind.required(self.part, point)
        return range(lo // self.size, -(-hi // self.size)) if lo < hi else range(0)

    def keeps(self, point: int, grid: int, ends: Sequence[int]) -> bool:
        """Whether its policy keeps what a grid point needs.

        Args:
          point: the grid point.
          grid: tokens between such points.
          ends: tokens at which a prompt or an output ends.
        """
        if self.policy.keep is Keep.EVERY:
            return point % (self.policy.tokens or grid) == 0
        return self.policy.keep is Keep.ENDS and point in [n - n % grid for n in ends]


def pools_of(model: Model) -> tuple[Pool, ...]:
    """The pools of a toy, in the order of its plan."""
    first: dict[int, tuple[int, str]] = {}
    for layer, part in model.parts:
        first.setdefault(model.pool_of(layer, part), (layer, part))
    return tuple(
        Pool(
            layer=first[number][0],
            kind=model.kinds[first[number][0]],
            part=first[number][1],
            size=model.block(*first[number]),
            nbytes=model.plan.spec.pools[number].block_bytes,
            count=model.plan.blocks[number],
            columns=model.plan.columns(number),
            policy=model.plan.policy(model.plan.spec.pools[number].form),
        )
        for number in sorted(first)
    )


class Who(NamedTuple):
    """Whose claims: two that are equal find what the other stored.

    Attributes:
      identity: number of the producer in its namespace.
      owner: the request or session, where reuse stops at it.
      generation: changes of the producer's reuse scope so far.
      shares: whether anything is stored for it at all.
      producer: number of the producer, whatever its namespace.
      scope: how widely it is reused.
    """

    identity: int
    owner: str
    generation: int
    shares: bool
    producer: int
    scope: Scope

    @property
    def outlives(self) -> bool:
        """Whether what is stored for it is saved; a request ends with the process."""
        return self.shares and self.scope > Scope.REQUEST


@dataclasses.dataclass(eq=False)
class Block:
    """One block in use, on the device or in the outer tier.

    Attributes:
      pool: its pool.
      number: which block of a row it is.
      who: for whom it was written.
      stage: as the facts must have it.
      pins: rows that refer to it.
      kept: whether a stored prefix holds it.
      tokens: the whole prefix up to its end; empty while it is being written.
      id: its place in the pool or in the tier; -1 until it was read from there.
      used: in the tier, when it was last in use.
      held: in the tier, whether its memory has it.
      pack: where it lies in the store, too; empty if it does not.
      sites: lists and places in them where it was claimed; rows that part within a
        grid unit share its first blocks, so there may be several.
    """

    pool: int
    number: int
    who: Who
    stage: Stage = Stage.WRITING
    pins: int = 1
    kept: bool = False
    tokens: tuple[int, ...] = ()
    id: int = -1
    used: int = 0
    held: bool = False
    pack: str = ""
    sites: "list[tuple[list[Block | None], int]]" = dataclasses.field(
        default_factory=list
    )

    @property
    def readable(self) -> bool:
        """Whether a claim on it is true, on the device."""
        return self.stage == Stage.SEALED

    @property
    def loadable(self) -> bool:
        """Whether a claim on it is true, in the outer tier."""
        return self.stage == Stage.ON_DISK

    @property
    def evictable(self) -> bool:
        """Whether an eviction may take it."""
        return self.readable and self.kept and self.pins == 0

    def moved(self, stage: Stage, place: int) -> "Block":
        """The same content elsewhere: claims lead there, and nothing else does."""
        sites = [(claims, at) for claims, at in self.sites if claims[at] is self]
        other = dataclasses.replace(
            self, stage=stage, id=place, pins=0, held=False, sites=sites
        )
        for claims, at in sites:
            claims[at] = other
        return other


Claimed = tuple[tuple[Block | None, ...], ...]


@dataclasses.dataclass(frozen=True)
class Expected:
    """The plan that the oracle expects.

    Attributes:
      verdict: one of four.
      point: the resume point.
      start: first position to run.
      kept: pools that a replay goes on from, with what ``start`` requires of them.
      loads: per pool, numbers of the blocks that must be loaded first.
      far: bytes of those that lie in the store alone.
      claimed: deepest resume point that the store claims below the last token.
      held: per pool, whether all that ``claimed`` requires is on the device.
      claims: per pool and block number, what is claimed.
      who: who asks.
      prompt: for what.
      stored: tokens of it that the store claims.
      ends: whether all of it is the beginning of what is stored.
    """

    verdict: Verdict
    point: int
    start: int
    kept: tuple[int, ...]
    loads: tuple[tuple[int, ...], ...]
    far: int
    claimed: int
    held: tuple[bool, ...]
    claims: Claimed
    who: Who
    prompt: tuple[int, ...]
    stored: int = 0
    ends: bool = False

    def wanted(self, pools: Sequence[Pool]) -> list[dict[int, Block | None]]:
        """Per pool, the blocks by number that a row starts with."""
        found = []
        for index, pool in enumerate(pools):
            rebuilt = self.start < self.point and not pool.grows
            numbers = pool.required(self.start if rebuilt else self.point)
            if rebuilt and index not in self.kept:
                numbers = range(0)
            found.append({n: self.claims[index][n] for n in numbers})
        return found


@dataclasses.dataclass(eq=False)
class Row:
    """A row that somebody has.

    Attributes:
      who: for whom it writes.
      tokens: what it holds, from position 0 on.
      point: nothing below is published as its own.
      known: positions below may only be run with the tokens of ``prompt``.
      prompt: those tokens.
      asked: tokens of the whole prompt.
      since: per pool, positions below do not count.
      held: per pool, positions below are never written.
      blocks: per pool, its blocks by number.
      claims: what was claimed when it was matched.
      deadline: clock after which its lease is overdue; None for never.
    """

    who: Who
    tokens: list[int]
    point: int
    known: int
    prompt: tuple[int, ...]
    asked: int
    since: list[int]
    held: list[int]
    blocks: list[dict[int, Block]]
    claims: Claimed
    deadline: int | None = None

    @property
    def length(self) -> int:
        """Tokens that it stands behind."""
        return len(self.tokens)

    @property
    def exact(self) -> bool:
        """Whether no replay is under way, so that it holds what a cold run leaves."""
        return self.length >= self.known

    @property
    def stale(self) -> bool:
        """Whether a block of it was set aside: it is of no use any more."""
        return any(
            block.stage == Stage.QUARANTINED
            for blocks in self.blocks
            for block in blocks.values()
        )

    def twin(self) -> "Row":
        """Another row like this one; the blocks are the same."""
        return dataclasses.replace(
            self,
            tokens=list(self.tokens),
            since=list(self.since),
            held=list(self.held),
            blocks=[dict(blocks) for blocks in self.blocks],
        )
