"""Every small model against brute force: the whole answer, not the verdict alone.

The oracle lists every proved way, with what it loads, and takes the cheapest.  What
*every* means here:

* Exhaustive: all sets of one to four of the ten kinds in ``KINDS``, and in the slow
  suite all their orders; for one kind, and in the slow suite for two that have up to
  three pools, every combination of blocks on the device, away and lost, of one to six
  blocks per pool.
* Sampled, with fixed seeds: the order of a set in the quick suite; for each model what
  is held of up to twelve blocks per pool and in which tier, blocks of which a part is
  held, snapshots off the grid, the length of the prompt, and one of eight rates.
* Fixed: the sizes, ratios and overlaps in ``KINDS``; blocks of 2 tokens, or of 1, 2
  and 4; no kind twice in a model.  A reader without a window below it gets one.
"""

import functools
import itertools

import numpy as np
import pytest
from solver_cases import (
    FAIR,
    FAR_LOADS,
    FREE_LOADS,
    ROW,
    SLOW_LOADS,
    Case,
    answer_of_oracle,
    check_choice,
    chunk,
    compressed,
    full,
    holdings_of,
    kept_by,
    prompt_of,
    rates_of,
    recurrent,
    window,
)

from hybridcache_jax import matching
from hybridcache_jax.codes import Reason, Stage, Verdict
from hybridcache_jax.cost import CostModel
from hybridcache_jax.forms import RULES, Form
from hybridcache_jax.host_facts import HostFacts
from hybridcache_jax.identity import Identity
from hybridcache_jax.layers import Chunk, Entries, IndexKeys, LayerSpec, Window
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.rollout import Key
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.state import StateTable

KINDS = {
    "window": window(4),
    "short window": window(2),
    "chunk": chunk(6),
    "full": full(),
    "overlap": compressed(2, 1),
    "entries beside a window": compressed(2, 0, local=Window(3, ROW)),
    "index": LayerSpec(
        global_=Entries(ROW), index=IndexKeys(ROW, 2, overlap=1, raw=ROW)
    ),
    "state": recurrent(),
    "state beside a chunk": recurrent(local=Chunk(4, ROW)),
    # Reads the lowest window or chunk below it; its owner is found by ``spec_of``.
    "reader": None,
}
HERE, AWAY, FAR, LOST = range(4)
# A block costs 32 to 64 bytes: from free to as dear as several tokens.
RATES = (
    FREE_LOADS,
    CostModel(1.0, 2.0**-6, store_seconds_per_byte=2.0**-5),
    FAIR,
    CostModel(1.0, 2.0**-4, store_seconds_per_byte=2.0**-6),
    SLOW_LOADS,
    FAR_LOADS,
    # A store that is said to begin sooner, and one whose bytes cost no more.
    CostModel(1.0, 2.0**-8, 2.0, 2.0**-7, 0.25),
    CostModel(1.0, 2.0**-7, 0.25, 2.0**-7, 2.0, 8.0),
)


@functools.cache
def spec_of(names, mixed=False):
    sizes = {Form.SWA_WINDOW: 1, Form.RECURRENT_STATE: 4, Form.FULL_KV: 4}
    sizes = {form: sizes.get(form, 2) if mixed else 2 for form in Form}
    layers = []
    for name in names:
        if KINDS[name] is None and not any(layer.local for layer in layers):
            layers.append(window(3))
        owners = [n for n, layer in enumerate(layers) if layer.local]
        layers.append(KINDS[name] or LayerSpec(kv_owner=owners[0]))
    return CacheSpec.from_layers(layers, block_tokens=sizes)


def case_of(spec, blocks, num_tokens, cost, snapshots=()):
    """A case from the presence of every block; snapshots are extra checkpoints.

    Args:
      blocks: per pool, HERE, AWAY, FAR or LOST for each of its blocks.
      snapshots: per pool of states, positions off the grid, on the device and away.
    """
    device, near, outer = [], [], []
    snapshots = iter(snapshots)
    total = len(blocks[0]) * spec.pools[0].block_tokens
    for pool, states in zip(spec.pools, blocks, strict=True):
        size, states = pool.block_tokens, np.asarray(states)
        if pool.form == Form.RECURRENT_STATE:
            here, away = next(snapshots, (set(), set()))
            ends = (np.arange(len(states)) + 1) * size
            here = here | set(ends[states == HERE].tolist())
            device.append(sorted(here))
            # Some snapshots lie in the store.
            close = here | {at for at in away if at % 3}
            near.append(sorted(close | set(ends[states == AWAY].tolist())))
            outer.append(sorted(here | away | set(ends[states % LOST > 0].tolist())))
        else:
            device.append(np.where(states == HERE, size, 0))
            near.append(np.where(states <= AWAY, size, 0))
            outer.append(np.where(states == LOST, 0, size))
    exact = [
        set(outer[number])
        for number, pool in enumerate(spec.pools)
        if pool.form == Form.RECURRENT_STATE
    ]
    points = set(range(0, total + 1, spec.grid))
    if exact:
        points |= {at for at in set.intersection(*exact) if at <= total}
    return Case(
        spec=spec,
        points=np.array([-1, *sorted(points)], np.int32),
        num_tokens=num_tokens,
        device=tuple(device),
        near=tuple(near),
        outer=tuple(outer),
        cost=cost,
    )


def random_blocks(spec, rng, most=12):
    """Presence of each block: pools that are whole, cut, bare, or full of holes."""
    tokens = 2 * int(rng.integers(1, most + 1))
    tokens += -tokens % max(pool.block_tokens for pool in spec.pools)
    if rng.random() < 0.4:
        return _mostly_there(spec, rng, tokens), tokens
    blocks = []
    for pool in spec.pools:
        count = tokens // pool.block_tokens
        states = np.full(count, int(rng.choice([HERE, HERE, HERE, AWAY, FAR, LOST])))
        for _ in range(rng.integers(0, 3)):
            first = rng.integers(0, count)
            last = rng.choice([first + 1, count])
            states[first:last] = rng.choice([HERE, AWAY, FAR, LOST])
        if rng.random() < 0.25:
            states = rng.choice([HERE, HERE, AWAY, FAR, LOST], count)
        blocks.append(states)
    return blocks, tokens


def _mostly_there(spec, rng, tokens):
    """One form is lost, and others some way up: replays from what is left of them."""
    blocks = [np.full(tokens // pool.block_tokens, HERE) for pool in spec.pools]
    bounded = [n for n, pool in enumerate(spec.pools) if not RULES[pool.form].grows]
    for number, pool in enumerate(spec.pools):
        first = int(rng.integers(0, tokens)) // pool.block_tokens
        if number in bounded:
            last = first + int(rng.integers(0, 3))
            blocks[number][first:last] = rng.choice([AWAY, FAR, LOST])
        elif rng.random() < 0.3:
            blocks[number][first:] = rng.choice([AWAY, FAR])
    if bounded:
        blocks[rng.choice(bounded)][:] = LOST
    return blocks


def random_case(spec, rng):
    blocks, tokens = random_blocks(spec, rng)
    snapshots = []
    for pool in spec.pools:
        if pool.form == Form.RECURRENT_STATE:
            at = [set(rng.integers(1, tokens + 1, 2).tolist()) for _ in range(2)]
            # The same in every pool now and then, or there would be none in common.
            at[1] |= {tokens // 2 + 1, max(1, tokens - 1)}
            snapshots.append(tuple(at) if rng.random() < 0.6 else (set(), set()))
    case = case_of(
        spec,
        blocks,
        int(rng.choice([tokens + 1, tokens, rng.integers(0, tokens + 2)])),
        RATES[rng.integers(len(RATES))],
        snapshots,
    )
    if rng.random() < 0.3:
        _shorten(case, rng)
    return case


def _shorten(case, rng):
    """A last block that holds but a part, on the device and maybe beyond."""
    number = int(rng.integers(len(case.spec.pools)))
    size = case.spec.pools[number].block_tokens
    if not case.exact(number) and size > 1:
        case.device[number][-1] = rng.integers(0, size)
        if rng.random() < 0.5:
            case.outer[number][-1] = max(
                case.device[number][-1], rng.integers(0, size + 1)
            )
        else:
            case.outer[number][-1] = size
        case.near[number][-1] = rng.choice(
            [case.device[number][-1], case.outer[number][-1]]
        )


def check(case, seen):
    solution = case.solve()
    check_choice(case, solution)
    replayed = bool(solution.start < solution.point)
    kept = kept_by(case, solution.start, solution.base) if replayed else ()
    kept = not set(kept) <= set(prompt_of(case.spec).states)
    seen[Verdict(int(solution.verdict)), replayed, kept] += 1


# Verdict, whether there is a replay, and whether it goes on from more than checkpoints.
ANSWERS = {
    (Verdict.RESUMABLE, False, False),
    (Verdict.NEEDS_IO, False, False),
    (Verdict.NEEDS_IO, True, False),
    (Verdict.NEEDS_IO, True, True),
    (Verdict.NEEDS_PARTIAL_RECOMPUTE, True, False),
    (Verdict.NEEDS_PARTIAL_RECOMPUTE, True, True),
    (Verdict.NEEDS_FULL_RECOMPUTE, False, False),
}


def counter():
    return dict.fromkeys(ANSWERS, 0)


def sample(models, each, seed, mixed):
    rng, seen = np.random.default_rng(seed), counter()
    for names in models:
        order = tuple(rng.permutation(names).tolist())
        for _ in range(each):
            check(random_case(spec_of(order, mixed), rng), seen)
    assert min(seen.values()) > 10, seen


def groups(kinds=tuple(KINDS), most=4):
    return [
        names
        for count in range(1, most + 1)
        for names in itertools.combinations(kinds, count)
    ]


def test_every_set_of_kinds():
    """385 models of up to four groups, in random order."""
    assert len(groups()) == 385
    sample(groups(), each=2, seed=0, mixed=False)


@pytest.mark.slow
def test_every_sequence_of_kinds():
    """All orders of up to four kinds, with blocks of one size or of several."""
    rng, seen, specs = np.random.default_rng(1), counter(), 0
    for count in range(1, 5):
        for names in itertools.permutations(KINDS, count):
            specs += 1
            mixed = bool(rng.integers(2))
            check(random_case(spec_of(names, mixed), rng), seen)
    assert specs == 10 + 10 * 9 + 10 * 9 * 8 + 10 * 9 * 8 * 7
    assert min(seen.values()) > 100, seen


def every_presence(names, blocks, cost, seen, away=AWAY):
    spec = spec_of(names)
    pools = len(spec.pools)
    for states in itertools.product((HERE, away, LOST), repeat=pools * blocks):
        parts = [states[n * blocks : (n + 1) * blocks] for n in range(pools)]
        check(case_of(spec, parts, 2 * blocks + 1, cost), seen)


@pytest.mark.parametrize("name", KINDS)
def test_every_presence_of_one_group(name):
    """Each block on the device, away or lost: all of it, in every combination."""
    pools = len(spec_of((name,)).pools)
    for cost, away in ((FREE_LOADS, AWAY), (FAR_LOADS, FAR)):
        every_presence((name,), {1: 4, 2: 2, 3: 1}[pools], cost, counter(), away)


@pytest.mark.slow
def test_every_presence_of_two_groups():
    """And of one group with more blocks."""
    cost = CostModel(1.0, 2.0**-5)
    for name in KINDS:
        pools = len(spec_of((name,)).pools)
        every_presence((name,), 6 // pools, cost, counter())
    for number, names in enumerate(itertools.combinations(KINDS, 2)):
        names = names[:: 1 if number % 2 else -1]
        pools = len(spec_of(names).pools)
        if pools <= 3:
            every_presence(names, 6 // pools, cost, counter())


# --- the whole way from claims to a plan ---------------------------------------------

ME = Key(Identity("weights", "config", "layout"))
VERSION = 7


def stored(spec, blocks, tokens):
    """Facts and claims that come to these presences: block ``n`` in slot ``n``.

    What lies outside has facts that say so; :class:`Facts` says where.
    """
    index, tables = PrefixIndex(spec), []
    for pool, states in zip(spec.pools, blocks, strict=True):
        count, states = len(states), np.asarray(states)
        outside = (states == AWAY) | (states == FAR)
        form = np.where(outside, Form.ON_DISK_PREFIX, pool.form)
        tables.append(
            StateTable(
                stage=np.full(count, int(Stage.SEALED), np.int32),
                form=form.astype(np.int32),
                version=np.full(count, VERSION, np.int32),
                provenance=np.zeros(count, np.int32),
                epoch=(5 + (states == LOST)).astype(np.int32),
                pins=np.zeros(count, np.int32),
                kept=np.ones(count, bool),
                first=np.arange(count, dtype=np.int32) * pool.block_tokens,
                used=np.zeros(count, np.int32),
                free=np.zeros(count, np.int32),
                num_free=np.int32(0),
            )
        )
    ids = [np.arange(len(states), dtype=np.int32) for states in blocks]
    epochs = [np.full(len(states), 5, np.int32) for states in blocks]
    index.insert(
        ME, tokens, ids, epochs, lambda pool, ids, epochs, first: np.zeros(len(ids))
    )
    return tuple(tables), index


class Facts(HostFacts):
    """Facts that know where these presences lie."""

    def __init__(self, spec, tables, blocks):
        super().__init__(spec, tables)
        self.blocks = blocks

    def stored(self, pool, ids):
        return np.asarray(self.blocks[pool])[ids] == FAR


def check_plan(spec, rng):
    blocks, length = random_blocks(spec, rng)
    tokens = np.arange(length, dtype=np.int32)
    tables, index = stored(spec, blocks, tokens)
    num_tokens = int(rng.choice([length + 1, length, rng.integers(1, length + 2)]))
    prompt = np.append(tokens, np.int32(0))[:num_tokens]
    cost = RATES[rng.integers(len(RATES))]
    case = case_of(spec, blocks, num_tokens, cost)
    # Claims are whole blocks: only grid points are looked at, and those below the end.
    whole = (num_tokens if num_tokens <= length else length) // spec.grid * spec.grid
    grid = range(0, whole + 1, spec.grid)
    case = Case(**{**vars(case), "points": np.array(grid, np.int32)})
    now = Facts(spec, tables, blocks)
    plan = matching.make_plan(spec, now, index, prompt, ME, VERSION, cost)
    ways, best = answer_of_oracle(case)
    prompt = prompt_of(spec)

    def loads_of(way):
        return tuple(
            sorted(at // pool.block_tokens - 1 for at in blocks)
            if pool.part == "recurrent"
            else sorted(blocks)
            for pool, blocks in zip(prompt.pools, way.loads, strict=True)
        )

    wanted = [
        (
            way.verdict,
            way.point,
            way.start,
            way.nbytes(prompt.pools),
            way.nbytes(prompt.pools, way.stored),
            loads_of(way),
            way.kept,
        )
        for way in best
    ]
    got = (
        plan.verdict.name,
        plan.length,
        plan.start,
        plan.bytes_to_load,
        plan.bytes_from_store,
        tuple(blocks.tolist() for blocks in plan.loads),
        plan.kept,
    )
    assert got in wanted
    assert all(blocks.dtype == np.int32 for blocks in plan.loads)
    # Every alternative is proved, is priced right, and is no cheaper.
    proved = {(way.verdict, way.point, way.start, way.kept): way for way in ways}
    assert plan.alternatives[0].verdict == plan.verdict
    for other in plan.alternatives:
        way = proved[other.verdict.name, other.length, other.start, other.kept]
        assert other.bytes_to_load == way.nbytes(prompt.pools)
        assert other.bytes_from_store == way.nbytes(prompt.pools, way.stored)
        seconds = way.cost(prompt.pools, num_tokens, rates_of(cost))
        assert other.seconds == float(seconds)
        assert other.tokens_to_run == num_tokens - other.start
        assert other.seconds >= plan.seconds
    assert plan.seconds <= cost.seconds(num_tokens)
    check_story(plan, case, ways)
    return plan


def check_story(plan, case, ways):
    """What is said about history, checkpoints and each form is true."""
    prompt = prompt_of(case.spec)
    held, _, anywhere = holdings_of(case)
    growing = [n for n, p in enumerate(prompt.pools) if p.part in ("global", "index")]
    points = [p for p in map(int, case.points) if p <= case.num_tokens - 1]
    history = [
        p for p in points if all(prompt.needs(p)[n] <= anywhere[n] for n in growing)
    ]
    direct = {way.point for way in ways if way.start == way.point}
    lost = [p for p in history if p not in direct and p > plan.start]
    assert plan.history_length == max(history)
    assert plan.checkpoint_position == max(lost, default=0)
    assert plan.claimed_length == max(points, default=0)
    for number, report in enumerate(plan.forms):
        need = prompt.needs(plan.claimed_length)[number]
        here, there = need & held[number], need & anywhere[number]
        assert report.held == (need <= held[number])
        if prompt.pools[number].part == "recurrent":
            continue
        assert (report.found, report.loadable) == (len(here), len(there) - len(here))
        if not report.held:
            away = need <= anywhere[number]
            first = min(need - (held[number] if away else anywhere[number]))
            assert report.position == first
            assert (report.reason == Reason.IN_OUTER_TIER) == away


@pytest.mark.parametrize(
    "most", [3, pytest.param(4, marks=pytest.mark.slow)], ids=lambda n: f"{n}_groups"
)
def test_plans_from_claims_and_facts(most):
    rng = np.random.default_rng(3)
    seen = counter()
    for names in groups(most=most):
        for mixed in (False, True) * 2:
            order = tuple(rng.permutation(names).tolist())
            plan = check_plan(spec_of(order, mixed), rng)
            kept = not set(plan.kept) <= set(prompt_of(spec_of(order, mixed)).states)
            seen[plan.verdict, plan.start < plan.length, kept] += 1
    assert min(seen.values()) > 2, seen
