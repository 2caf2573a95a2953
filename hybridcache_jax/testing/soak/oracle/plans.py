"""Which plan is the cheapest proved one: every way to resume, priced one by one.

Plain sets of block numbers: what lies on the device, what in the outer tier.  The only
thing shared with the solver is the meaning of the verdicts.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from hybridcache_jax.codes import Verdict
from hybridcache_jax.testing.soak.oracle.ledger import Pool
from hybridcache_jax.testing.toy import Model
from hybridcache_jax.testing.toy_kinds import must_keep

Loads = tuple[tuple[int, ...], ...]
Kept = tuple[int, ...]


class Rates(NamedTuple):
    """What running and loading cost.

    Attributes:
      token: running one.
      byte: loading one from host memory.
      stored_byte: loading one that lies in the store alone.
      load: any load, whatever it brings.
      stored_load: one that brings something from the store, if that is more.
    """

    token: float = 1.0
    byte: float = 0.0
    stored_byte: float = 0.0
    load: float = 0.0
    stored_load: float = 0.0


class Way(NamedTuple):
    """One way to resume, in the order of preference: smaller is better.

    Attributes:
      cost: of what it loads, less that of the tokens it does not run.
      waits: whether anything is loaded.
      replays: whether anything below the resume point is run again.
      shallow: the resume point, negative.
      keeps: how many pools a replay goes on from.
      start: first position to run.
      far: bytes of what it loads that lie in the store alone.
      loads: per pool, numbers of the blocks to load.
      kept: those pools.
    """

    cost: float
    waits: bool
    replays: bool
    shallow: int
    keeps: int
    start: int
    far: int
    loads: Loads
    kept: Kept

    @property
    def verdict(self) -> Verdict:
        """What it is called."""
        if self.waits:
            return Verdict.NEEDS_IO
        if self.replays:
            return Verdict.NEEDS_PARTIAL_RECOMPUTE
        return Verdict.RESUMABLE if self.shallow else Verdict.NEEDS_FULL_RECOMPUTE


class Planner:
    """Plans for one toy."""

    def __init__(self, model: Model, pools: Sequence[Pool]):
        """Knows no replay yet."""
        self._model, self._pools = model, pools
        self._states = [n for n, pool in enumerate(pools) if pool.exact]
        self._starts: dict[int, tuple[tuple[int, Kept], ...]] = {}

    def best(
        self,
        deepest: int,
        here: Sequence[set[int]],
        away: Sequence[set[int]],
        stored: Sequence[set[int]],
        rates: Rates,
    ) -> Way:
        """The cheapest way to resume at ``deepest`` or before.

        Args:
          deepest: the last resume point that counts.
          here: per pool, numbers of the blocks on the device.
          away: per pool, of those in the outer tier.
          stored: per pool, of those of them that lie in the store alone.
          rates: what loading and running cost.
        """
        ways = (
            self._way(point, start, loads, kept, stored, rates)
            for point in range(0, deepest + 1, self._model.grid)
            for start, loads, kept in self._ways(point, here, away)
        )
        return min(ways, key=lambda way: way[:5])

    def of_use(self, held: set[int]) -> set[int]:
        """Pools of which some plan may use what they hold at a point.

        By what they are, whatever their sizes: all of them to resume there, or a replay
        that goes on from the states and from what lies lowest.

        Args:
          held: bounded pools that hold all that resuming at the point needs.
        """
        bounded = {n for n, pool in enumerate(self._pools) if not pool.grows}
        if bounded <= held:
            return bounded
        local = [n for n in bounded if self._pools[n].part == "local"]
        top = max((at for at, part in self._model.parts if part == "state"), default=0)
        lowest = {n: self._pools[n].layer for n in local}
        start = {*self._states, *(n for n in local if lowest[n] < top)}
        if not start <= held:
            return set()
        return start | {
            n
            for n in held.intersection(local)
            if held.issuperset(m for m in local if lowest[m] <= lowest[n])
        }

    def _ways(self, point: int, here, away) -> Iterator[tuple[int, Loads, Kept]]:
        """Starts from which ``point`` can be reached, what each loads and keeps."""
        everything = range(len(self._pools))
        loads = self._missing(point, everything, here, away)
        if loads is not None:
            yield point, loads, ()
        history = [n for n in everything if self._pools[n].grows]
        entries = self._missing(point, history, here, away)
        if entries is None:
            return
        for start, kept in self._replays(point):
            loads = self._missing(start, kept, here, away)
            if loads is not None:
                both = zip(entries, loads, strict=True)
                yield start, tuple(one + other for one, other in both), kept

    def _missing(self, point: int, pools: Iterable[int], here, away) -> Loads | None:
        """What some pools lack at a point; None if that is nowhere."""
        missing: list[tuple[int, ...]] = [()] * len(self._pools)
        for n in pools:
            lacking = set(self._pools[n].required(point)) - here[n]
            if not lacking <= away[n]:
                return None
            missing[n] = tuple(sorted(lacking))
        return tuple(missing)

    def _replays(self, point: int) -> tuple[tuple[int, Kept], ...]:
        """Where a replay may start, and the fewest pools that it goes on from there.

        States are taken at ends of blocks; without any, nothing before the latest start
        that needs no pool is worth a look.  Other forms are claimed at resume points.
        """
        if point not in self._starts:
            found = []
            ends = [self._pools[n].size for n in self._states]
            for start in range(point - 1, 0, -1):
                if any(start % size for size in ends):
                    continue
                needed = must_keep(self._model.kinds, point, start)
                pools = {self._model.pool_of(*where) for where in needed}
                if not pools or start % self._model.grid == 0:
                    found.append((start, tuple(sorted(pools.union(self._states)))))
                if not pools and not ends:
                    break
            self._starts[point] = tuple(found)
        return self._starts[point]

    def _way(
        self,
        point: int,
        start: int,
        loads: Loads,
        kept: Kept,
        stored: Sequence[set[int]],
        rates: Rates,
    ) -> Way:
        nbytes = far = 0
        for numbers, away, pool in zip(loads, stored, self._pools, strict=True):
            nbytes += len(numbers) * pool.nbytes
            far += len(away.intersection(numbers)) * pool.nbytes
        cost = (nbytes - far) * rates.byte + far * rates.stored_byte
        cost -= start * rates.token
        if far:
            cost += max(rates.load, rates.stored_load)
        elif nbytes:
            cost += rates.load
        return Way(
            cost=cost,
            waits=nbytes > 0,
            replays=start < point,
            shallow=-point,
            keeps=len(kept),
            start=start,
            far=far,
            loads=loads,
            kept=kept,
        )
