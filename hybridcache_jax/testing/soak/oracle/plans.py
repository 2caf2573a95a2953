"""Which plan is the cheapest proved one: every way to resume, priced one by one.

Plain sets of block numbers: what lies on the device, what in the outer tier.  The only
thing shared with the solver is the meaning of the verdicts.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hybridcache_jax.codes import Verdict
from hybridcache_jax.testing.soak.oracle.ledger import Pool
from hybridcache_jax.testing.toy import Model
from hybridcache_jax.testing.toy_kinds import exact_starts

Loads = tuple[tuple[int, ...], ...]


class Rates(NamedTuple):
    """What running a token and loading a byte cost."""

    token: float
    byte: float


class Way(NamedTuple):
    """One way to resume, in the order of preference: smaller is better.

    Attributes:
      cost: of what it loads, less that of the tokens it does not run.
      waits: whether anything is loaded.
      replays: whether anything below the resume point is run again.
      shallow: the resume point, negative.
      start: first position to run.
      loads: per pool, numbers of the blocks to load.
    """

    cost: float
    waits: bool
    replays: bool
    shallow: int
    start: int
    loads: Loads

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
        self._starts: dict[int, tuple[int, ...]] = {}

    def best(
        self,
        deepest: int,
        here: Sequence[set[int]],
        away: Sequence[set[int]],
        rates: Rates,
    ) -> Way:
        """The cheapest way to resume at ``deepest`` or before.

        Args:
          deepest: the last resume point that counts.
          here: per pool, numbers of the blocks on the device.
          away: per pool, of those in the outer tier.
          rates: what loading and running cost.
        """
        ways = (
            self._way(point, start, loads, rates)
            for point in range(0, deepest + 1, self._model.grid)
            for start, loads in self._ways(point, here, away)
        )
        return min(ways, key=lambda way: way[:4])

    def _ways(self, point: int, here, away) -> Iterator[tuple[int, Loads]]:
        """Starts from which ``point`` can be reached, and what each of them loads."""
        loads, history = [], []
        whole = reachable = True
        for n, pool in enumerate(self._pools):
            missing = set(pool.required(point)) - here[n]
            there = missing <= away[n]
            whole = whole and there
            reachable = reachable and (there or not pool.grows)
            loads.append(tuple(sorted(missing)))
            history.append(loads[-1] if pool.grows else ())
        if whole:
            yield point, tuple(loads)
        if reachable:
            for start in self._replays(point):
                checkpoints = [
                    (start // self._pools[n].size - 1, here[n], away[n])
                    for n in self._states
                ]
                if any(c not in mine | outer for c, mine, outer in checkpoints):
                    continue
                loads = list(history)
                for n, (c, mine, _) in zip(self._states, checkpoints, strict=True):
                    loads[n] = () if c in mine else (c,)
                yield start, tuple(loads)

    def _replays(self, point: int) -> tuple[int, ...]:
        """Where a replay may start: where states were taken, or as late as it can."""
        if point not in self._starts:
            starts = exact_starts(self._model.kinds, point)
            ends = [self._pools[n].size for n in self._states]
            starts = [k for k in starts if all(k % size == 0 for size in ends)]
            self._starts[point] = tuple(starts if ends else starts[:1])
        return self._starts[point]

    def _way(self, point: int, start: int, loads: Loads, rates: Rates) -> Way:
        nbytes = sum(
            len(numbers) * pool.nbytes
            for numbers, pool in zip(loads, self._pools, strict=True)
        )
        cost = nbytes * rates.byte - start * rates.token
        return Way(cost, nbytes > 0, start < point, -point, start, loads)
