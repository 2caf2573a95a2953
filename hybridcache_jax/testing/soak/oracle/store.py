"""What is stored: a tree of grid units, and in each the blocks that are claimed.

A unit that nobody can resume behind, because an earlier one lost a form that no replay
rebuilds, is dropped with everything behind it.  Of bounded forms only what some plan
can use is worth its blocks.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from hybridcache_jax.codes import Stage
from hybridcache_jax.points import Point
from hybridcache_jax.testing.soak.oracle.blocks import Blocks
from hybridcache_jax.testing.soak.oracle.ledger import (
    Block,
    Claimed,
    Expected,
    Row,
    Who,
)
from hybridcache_jax.testing.soak.oracle.outer import Outer
from hybridcache_jax.testing.soak.oracle.plans import Planner, Rates
from hybridcache_jax.testing.soak.oracle.records import Places


@dataclasses.dataclass(eq=False)
class Unit:
    """One grid unit behind a prefix.

    Attributes:
      claims: per pool, its blocks in order; None where nothing is claimed.
      children: the units behind it, by their tokens.
    """

    claims: list[list[Block | None]]
    children: "dict[tuple[int, ...], Unit]" = dataclasses.field(default_factory=dict)


class Store:
    """Claims of all readers over the blocks of one cache.

    Attributes:
      blocks: of the device.
      grid: tokens of a unit.
      outer: the tier, and loads.
      rates: by which plans are compared.
      on_publish: told who published which tokens, while they are claimed.
    """

    def __init__(self, blocks: Blocks, grid: int, planner: Planner, outer: Outer):
        """Nothing is stored.

        Args:
          blocks: of the device.
          grid: tokens of a unit.
          planner: says what is of use.
          outer: the tier, and loads.
        """
        self.blocks, self.grid, self.outer = blocks, grid, outer
        self.on_publish: Callable[[Who, tuple[int, ...]], None] = lambda *_: None
        self.rates = Rates()
        self._planner = planner
        self._roots: dict[Who, dict[tuple[int, ...], Unit]] = {}
        self._per_unit = [grid // pool.size for pool in blocks.pools]

    def expected(self, who: Who, prompt: Sequence[int]) -> Expected:
        """The plan for a prompt."""
        prompt, grid = tuple(prompt), self.grid
        path = list(self._path(who, prompt))
        claims = self.claimed(who, prompt)
        here = [
            {n for n, block in enumerate(part) if block and block.readable}
            for part in claims
        ]
        away = [
            {n for n, block in enumerate(part) if block and block.loadable}
            for part in claims
        ]
        stored = [
            {
                n
                for n, b in enumerate(part)
                if b and b.loadable and b.pack and not b.held
            }
            for part in claims
        ]
        children = path[-1].children if path else self._roots.get(who, {})
        rest = prompt[len(path) * grid :]
        last = max(len(prompt) - 1, 0)
        claimed = min(len(path) * grid, last - last % grid)
        way = self._planner.best(claimed, here, away, stored, self.rates)
        return Expected(
            verdict=way.verdict,
            point=-way.shallow,
            start=way.start,
            kept=way.kept,
            loads=way.loads,
            far=way.far,
            claimed=claimed,
            held=tuple(
                here[n].issuperset(pool.required(claimed))
                for n, pool in enumerate(self.blocks.pools)
            ),
            claims=claims,
            who=who,
            prompt=prompt,
            stored=len(path) * grid,
            ends=not rest or any(unit[: len(rest)] == rest for unit in children),
        )

    def claimed(self, who: Who, prompt: tuple[int, ...]) -> Claimed:
        """Per pool and block number, what is claimed of a prompt."""
        path = list(self._path(who, prompt))
        return tuple(
            tuple(block for unit in path for block in unit.claims[pool])
            for pool in range(len(self.blocks.pools))
        )

    def discover(
        self, who: Who, prompt: tuple[int, ...], length: int, places: Places
    ) -> bool:
        """Claims what records have of a prompt and no true claim names yet.

        Args:
          who: who asks.
          prompt: whole units.
          length: of them, what records have.
          places: of their blocks.

        Returns:
          Whether there is a new claim.
        """
        known, found = self.claimed(who, prompt), []
        for index, pool in enumerate(self.blocks.pools):
            true = {
                n
                for n, b in enumerate(known[index])
                if b and (b.readable or b.loadable)
            }
            wanted = [
                (n, places[index, n])
                for n in range(length // pool.size)
                if n not in true and (index, n) in places
            ]
            needed = self.outer.needed(index)
            found.append(self.outer.tier.claim(index, who, prompt, wanted, needed))
        if not any(found):
            return False
        path, children = [], self._roots.setdefault(who, {})
        for end in range(self.grid, length + 1, self.grid):
            tokens = prompt[end - self.grid : end]
            path.append(children.setdefault(tokens, self._empty()))
            children = path[-1].children
        for block in (block for blocks in found for block in blocks):
            count = self._per_unit[block.pool]
            claims = path[block.number // count].claims[block.pool]
            claims[block.number % count] = block
            block.sites.append((claims, block.number % count))
        return True

    def publish(
        self, row: Row, *, finished: bool, keep: bool = True, marked: bool = True
    ) -> bool:
        """Claims what a row ran; whether there was anything to claim.

        Args:
          row: the row.
          finished: whether its output ends where it stands.
          keep: whether it comes to an end; if not, new claims are taken back, and of
            the tokens it is known that they were there.
          marked: whether it gets beyond the claims: it is to be saved then.
        """
        whole = row.length - row.length % self.grid
        if whole <= row.point or not row.who.shares:
            return False
        fresh, path, undo = set(), [], []
        children = self._roots.setdefault(row.who, {})
        for end in range(self.grid, whole + 1, self.grid):
            tokens = tuple(row.tokens[end - self.grid : end])
            if tokens not in children:
                children[tokens] = self._empty()
                fresh.add(children[tokens])
            path.append(children[tokens])
            children = path[-1].children
        points = range(row.point + self.grid, whole + 1, self.grid)
        ends = [row.asked - 1, row.asked, *([row.length] if finished else [])]
        used = {p: self._planner.of_use(self._kept(row, p, ends)) for p in points}
        for index, pool in enumerate(self.blocks.pools):
            accepted = []
            for number in range(whole // pool.size):
                own = None
                if number < row.point // pool.size:
                    own = row.claims[index][number]
                elif pool.grows or any(
                    index in used[p] and number in pool.required(p) for p in points
                ):
                    own = row.blocks[index].get(number)
                if own is None:
                    continue
                unit = path[number // self._per_unit[index]]
                claims, place = unit.claims[index], number % self._per_unit[index]
                older = claims[place]
                # Of two that are true the older one stays.
                better = own.readable and not (older and older.readable)
                if unit in fresh or better:
                    claims[place] = own
                    if not keep:
                        undo.append((claims, place))
                        continue
                    own.sites.append((claims, place))
                if claims[place]:
                    accepted.append(claims[place])
            # A row refers to its last blocks only.
            for block in accepted[-pool.columns :] if keep else ():
                block.kept = block.kept or block.readable
        if marked:
            self.on_publish(row.who, tuple(row.tokens[:whole]))
        for claims, place in undo:
            claims[place] = None
        return True

    def prefixes(self, who: Who) -> list[tuple[int, ...]]:
        """The longest stored prefixes for a reader, in the order they came."""
        found, open_ = [], [((), self._roots.get(who, {}))]
        while open_:
            prefix, units = open_.pop()
            if prefix and not units:
                found.append(prefix)
            open_ += [(prefix + more, unit.children) for more, unit in units.items()]
        return found

    def drop(self, gone: Callable[[Who], bool]) -> None:
        """Takes back all that is claimed for some, and their loads; blocks stay."""
        self.outer.give_up(gone)
        self._roots = {w: units for w, units in self._roots.items() if not gone(w)}

    def evict(
        self,
        wanted: Sequence[int],
        ages: Sequence[Sequence[int]],
        cut: Point | None = None,
    ) -> None:
        """Evicts: the longest unused go, of equals those at the highest position.

        Args:
          wanted: per pool, how many are to go.
          ages: per pool and place, when a block was last in use, as the facts have it.
          cut: where it dies; what it did to the device is undone.
        """
        begun: list[list[Block]] = []
        for pool, (count, used) in enumerate(zip(wanted, ages, strict=True)):
            free = self.blocks.evictable(pool) - self.outer.protected(pool)
            order = sorted(free, key=lambda n: (used[n], -self._at(pool, n).number, n))
            begun.append([self._at(pool, n) for n in order[:count]])
        going = [block for part in begun for block in part]
        for block in going:
            block.stage = Stage.EVICTING
        if cut != Point.EVICTION_BEGUN:
            for part in begun:
                if part:
                    pool = part[0].pool
                    self.outer.tier.take(part, self.outer.needed(pool))
        if cut == Point.EVICTION_FORGOTTEN:
            self.prune()
        if cut is not None:
            for block in going:
                block.stage = Stage.SEALED
            return
        self.settle()
        for block in going:
            self.blocks.free(block)

    def settle(self) -> None:
        """Drops what is stored behind a hole, and blocks that nothing claims."""
        named = self.prune()
        for blocks in self.blocks.at:
            for block in list(blocks.values()):
                if block.kept and block not in named:
                    dead = block.evictable
                    block.kept = False
                    if dead:
                        self.blocks.free(block)

    def prune(self) -> set[Block]:
        """Drops units behind a hole, and what of the tier nothing claims any more.

        Returns:
          Blocks of which a claim is true.
        """
        named: set[Block] = set()
        for who, units in list(self._roots.items()):
            self._prune(units, named)
            if not units:
                del self._roots[who]
        self.outer.tier.forget(named)
        return named

    def _prune(
        self,
        units: dict[tuple[int, ...], Unit],
        named: set[Block],
        path: tuple[Unit, ...] = (),
    ) -> None:
        for tokens, unit in list(units.items()):
            whole = (*path, unit)
            needed = [
                [
                    whole[n // count].claims[index][n % count]
                    for n in pool.required(len(whole) * self.grid)
                    if not pool.grows or n // count == len(path)
                ]
                for index, (pool, count) in enumerate(
                    zip(self.blocks.pools, self._per_unit, strict=True)
                )
            ]
            held = {
                index
                for index, part in enumerate(needed)
                if all(block and (block.readable or block.loadable) for block in part)
            }
            history = {n for n, pool in enumerate(self.blocks.pools) if pool.grows}
            if not history <= held:
                del units[tokens]
                continue
            used = self._planner.of_use(held - history)
            for index in history | used:
                named.update(block for block in needed[index] if block)
            self._prune(unit.children, named, whole)

    def _path(self, who: Who, prompt: tuple[int, ...]) -> Iterator[Unit]:
        """The units of the longest stored prefix of a prompt."""
        children = self._roots.get(who, {})
        for end in range(self.grid, len(prompt) + 1, self.grid):
            unit = children.get(prompt[end - self.grid : end])
            if unit is None:
                return
            yield unit
            children = unit.children

    def _empty(self) -> Unit:
        return Unit([[None] * count for count in self._per_unit])

    def _at(self, pool: int, place: int) -> Block:
        return self.blocks.at[pool][place]

    def _kept(self, row: Row, point: int, ends: Sequence[int]) -> set[int]:
        """Bounded pools whose policy keeps a point, and that have all it needs."""
        return {
            index
            for index, pool in enumerate(self.blocks.pools)
            if not pool.grows
            and (pool.keeps(point, self.grid, ends) or not pool.required(point))
            and all(self._has(row, index, n) for n in pool.required(point))
        }

    def _has(self, row: Row, index: int, number: int) -> bool:
        """Whether a block is the row's own, or was claimed when it was matched."""
        pool = self.blocks.pools[index]
        if number < row.point // pool.size:
            claim = row.claims[index][number]
            return claim is not None and (claim.readable or claim.loadable)
        block = row.blocks[index].get(number)
        return block is not None and (block.readable or not pool.exact)
