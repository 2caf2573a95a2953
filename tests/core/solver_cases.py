"""One prompt, one model, what is held of it: asked of the solver and of the oracle."""

import dataclasses
import functools
from fractions import Fraction

import numpy as np
import oracle

from hybridcache_jax.codes import Verdict
from hybridcache_jax.cost import CostModel
from hybridcache_jax.entry import Entry
from hybridcache_jax.forms import Form
from hybridcache_jax.layers import Chunk, Entries, LayerSpec, RecurrentState, Window
from hybridcache_jax.replay import bases
from hybridcache_jax.resume import Holdings, solve
from hybridcache_jax.spec import CacheSpec

ROW = Entry.kv(1, 2)
# Powers of two: costs are exact in float32 and float64 alike.
FREE_LOADS = CostModel(1.0, 0.0, store_seconds_per_byte=0.0)
FAIR = CostModel(1.0, 2.0**-8, store_seconds_per_byte=2.0**-8)
SLOW_LOADS = CostModel(1.0, 1.0, store_seconds_per_byte=1.0)
FAR_LOADS = CostModel(1.0, 2.0**-8, 0.5, 2.0**-6, 2.0, 4.0)


def window(size, **more):
    return LayerSpec(local=Window(size, ROW), **more)


def chunk(size, **more):
    return LayerSpec(local=Chunk(size, ROW), **more)


def full(**more):
    return LayerSpec(global_=Entries(ROW), **more)


def compressed(ratio, overlap=0, **more):
    return LayerSpec(global_=Entries(ROW, ratio, overlap, raw=ROW), **more)


def recurrent(**more):
    return LayerSpec(recurrent=RecurrentState(ROW), **more)


@dataclasses.dataclass(frozen=True)
class Case:
    """One prompt, one model, and what is held of it where."""

    spec: CacheSpec
    points: np.ndarray
    num_tokens: int
    device: tuple  # per pool: positions per block, or checkpoint positions
    near: tuple  # likewise, host memory included
    outer: tuple  # likewise, the store included, too
    cost: CostModel

    @property
    def layers(self):
        return self.spec.layers

    def exact(self, number):
        return self.spec.pools[number].form == Form.RECURRENT_STATE

    def covered(self, amounts):
        """What the solver is told."""
        return tuple(
            np.isin(self.points, amounts[number]).astype(bool)
            if self.exact(number)
            else np.array(amounts[number], np.int32)
            for number in range(len(self.spec.pools))
        )

    def held(self, amounts) -> oracle.Held:
        """What the oracle is told: sets of positions."""
        result = {}
        for number, pool in enumerate(self.spec.pools):
            size = pool.block_tokens
            if self.exact(number):
                positions = set(amounts[number])
            else:
                positions = {
                    block * size + offset
                    for block, amount in enumerate(amounts[number])
                    for offset in range(amount)
                }
            for layer in pool.layers:
                result[layer, part_of(pool)] = positions
        return result

    @property
    def checkpoints(self):
        """Positions at which all recurrent layers have one on the device."""
        sets = [
            set(self.device[number])
            for number in range(len(self.spec.pools))
            if self.exact(number)
        ]
        return frozenset(set.intersection(*sets)) if sets else frozenset()

    def checkpoints_for(self, order):
        """Positions with a checkpoint somewhere; which lie away, which in the store."""
        pools = [number for number in order if self.exact(number)]
        if not pools:
            return None, None, None
        everywhere = [set(self.outer[number]) for number in pools]
        positions = sorted(set.intersection(*everywhere))
        away, far = (
            np.array([[at not in held[n] for at in positions] for n in pools], bool)
            for held in (self.device, self.near)
        )
        return np.array(positions, np.int32), away, far

    def solve(self, spec=None, order=None):
        order = order or range(len(self.device))
        device, near, outer = (
            tuple(self.covered(held)[number] for number in order)
            for held in (self.device, self.near, self.outer)
        )
        checkpoints, away, far = self.checkpoints_for(order)
        return solve(
            spec or self.spec,
            self.points,
            np.int32(self.num_tokens),
            Holdings(device, outer, near),
            checkpoints=checkpoints,
            checkpoints_away=away,
            checkpoints_stored=far,
            cost=self.cost,
        )


def part_of(pool) -> str:
    """The oracle's name of what a pool stores."""
    return {
        Form.SWA_WINDOW: "local",
        Form.FULL_KV: "global",
        Form.COMPRESSED_KV: "global",
        Form.INDEXER_STATE: "index",
        Form.UNCOMPRESSED_TAIL: "index_tail"
        if pool.name.endswith(".index")
        else "global_tail",
        Form.RECURRENT_STATE: "recurrent",
    }[pool.form]


def deepest(points):
    return max(points, default=0)


def kept_by(case, start, base):
    """Pools that a replay goes on from, by the number that the solver gave."""
    base = bases(case.spec)[int(base)]
    needs = prompt_of(case.spec).needs(int(start))
    states_of = states(case) if start else ()
    return tuple(sorted({n for n in base if needs[n]} | set(states_of)))


def replays(case):
    """For each point that a replay can reach, the latest start that is exact.

    All that is held at the start is kept: what is exact with less of it is exact so.
    """
    held, prompt = case.held(case.device), prompt_of(case.spec)
    allowed = [int(p) for p in case.points if 0 <= p <= case.num_tokens - 1]

    @functools.cache
    def kept(start):
        if start not in allowed:
            return frozenset()
        return frozenset(
            n
            for n in prompt.bounded
            if oracle.part_held(
                case.layers,
                held,
                prompt.pools[n].layers[0],
                prompt.pools[n].part,
                start,
            )
        )

    result = {}
    for point in allowed:
        if not oracle.provable(case.layers, held, point, only=oracle.GROWING):
            continue
        if oracle.provable(case.layers, held, point):
            continue
        result[point] = 0
        for start in range(point - 1, 0, -1):
            if prompt.states and start not in case.checkpoints:
                continue
            if prompt.exact(point, start, kept(start)):
                result[point] = start
                break
    return result


def check_levels(case, solution):
    """Sound and complete: the deepest provable point of each level, no other."""
    held, anywhere = case.held(case.device), case.held(case.outer)
    allowed = [int(p) for p in case.points if 0 <= p <= case.num_tokens - 1]
    ready = [p for p in allowed if oracle.provable(case.layers, held, p)]
    loadable = [p for p in allowed if oracle.provable(case.layers, anywhere, p)]
    history = [
        p for p in allowed if oracle.provable(case.layers, anywhere, p, oracle.GROWING)
    ]
    assert int(solution.device_point) == deepest(ready)
    assert int(solution.anywhere_point) == deepest(loadable)
    assert int(solution.history_point) == deepest(history)
    assert int(solution.lost_point) == deepest(set(history) - set(loadable))
    for number, pool in enumerate(case.spec.pools):
        for place, point in enumerate(map(int, case.points)):
            want = point >= 0 and oracle.part_held(
                case.layers, held, pool.layers[0], part_of(pool), point
            )
            assert bool(solution.per_pool[number, place]) == want, (pool.name, point)


def check_replay(case, solution):
    """Sound, complete, and with no more kept than need be."""
    best = replays(case)
    start, point = int(solution.replay_start), int(solution.replay_point)
    latest = deepest(best.values())
    # One that runs no less than a row resumed on the device is of use to nobody.
    assert start == (latest if latest > int(solution.device_point) else 0)
    if start == 0:
        assert point == 0
        return
    assert point == max(p for p, first in best.items() if first == latest)
    prompt, held = prompt_of(case.spec), case.held(case.device)
    base = frozenset(bases(case.spec)[int(solution.replay_base)]) - {*prompt.states}
    assert prompt.exact(point, start, base)
    kept = kept_by(case, start, solution.replay_base)
    assert {*kept} == prompt.least(point, start) | {*prompt.states}
    for number in kept:
        pool = prompt.pools[number]
        assert oracle.part_held(case.layers, held, pool.layers[0], pool.part, start)
        assert start in case.points or number in prompt.states


@functools.lru_cache(maxsize=4096)
def prompt_of(spec) -> oracle.Prompt:
    """The oracle for one model."""
    pools = [
        oracle.Pool(pool.layers, part_of(pool), pool.block_tokens, pool.block_bytes)
        for pool in spec.pools
    ]
    return oracle.Prompt(spec.layers, pools)


def holdings_of(case):
    """Per pool, the positions held on the device, near, and anywhere."""
    pools = prompt_of(case.spec).pools
    return tuple(
        [case.held(amounts)[pool.layers[0], pool.part] for pool in pools]
        for amounts in (case.device, case.near, case.outer)
    )


def rates_of(cost):
    """The same rates for the oracle."""
    return oracle.Rates(
        Fraction(cost.seconds_per_token),
        Fraction(cost.seconds_per_byte),
        Fraction(cost.seconds_per_load),
        Fraction(cost.store_seconds_per_byte),
        Fraction(cost.store_seconds_per_load),
        Fraction(cost.seconds_per_run),
    )


def answer_of_oracle(case):
    """All proved ways, and the best of them."""
    prompt = prompt_of(case.spec)
    points = sorted({int(point) for point in case.points if point >= 0})
    ways = prompt.ways(points, case.num_tokens, *holdings_of(case))
    best, _ = prompt.best(ways, case.num_tokens, rates_of(case.cost))
    return ways, best


def check_choice(case, solution):
    """The verdict is the cheapest proved way: no other point, start or bytes."""
    ways, best = answer_of_oracle(case)
    ready = [way.point for way in ways if way.verdict == "RESUMABLE"]
    direct = [way.point for way in ways if way.start == way.point]
    assert int(solution.device_point) == deepest(ready)
    assert int(solution.anywhere_point) == deepest(direct)
    replayed = solution.start < solution.point
    chosen = (
        Verdict(int(solution.verdict)).name,
        int(solution.point),
        int(solution.start),
        float(solution.bytes_to_load),
        kept_by(case, solution.start, solution.base) if replayed else (),
    )
    assert replayed or int(solution.base) == 0
    pools = prompt_of(case.spec).pools
    wanted = {
        (way.verdict, way.point, way.start, float(way.nbytes(pools)), way.kept)
        for way in best
    }
    assert chosen in wanted, (chosen, wanted)
    if not any(way.start in way.loads[n] for way in best for n in states(case)):
        # Of equals the deepest point, but for checkpoints that must be loaded; of
        # those, the one with the fewest pools in its base.
        assert chosen[1] == max(way[1] for way in wanted)
        rivals = [way for way in best if way.point == chosen[1]]
        fewest = min(len(base) for way in rivals for base in bases_of(case, way))
        assert len(bases(case.spec)[int(solution.base)]) == fewest


def bases_of(case, way):
    """The bases by which a way keeps just what it keeps; empty for no replay."""
    if way.start == way.point:
        return ((),)
    known = bases(case.spec)
    return [
        base for n, base in enumerate(known) if kept_by(case, way.start, n) == way.kept
    ]


def states(case):
    """The pools of recurrent states."""
    return prompt_of(case.spec).states
