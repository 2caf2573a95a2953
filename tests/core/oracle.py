"""A slow oracle of the resume problem: sets of positions, nothing clever.

It reads layer records as data (sizes and ratios) and shares no code with the library.
What a form must hold is stated one position at a time, as a predicate; how far back a
replay must start is found by running the layers over sets of positions that are right.

The parts of a layer are named ``local``, ``global``, ``global_tail``, ``index``,
``index_tail`` and ``recurrent``; what is held is a mapping from ``(layer, part)`` to
the set of token positions that are held (for ``recurrent``, to the set of positions
at which a checkpoint was taken).
"""

import dataclasses
import functools
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

Held = Mapping[tuple[int, str], set[int]]

# What a replay can rebuild, and what only a run from the first hole brings back.
REPLAYED = ("local", "global_tail", "index_tail", "recurrent")
GROWING = ("global", "index")


def sees(local, query: int, key: int) -> bool:
    """Whether a query attends to a key, by a window or a chunk (own key included)."""
    if key > query:
        return False
    if type(local).__name__ == "Chunk":
        return key // local.size == query // local.size
    return query - key < local.size


def parts(layer) -> tuple[str, ...]:
    """The parts that a layer keeps of its own."""
    names = []
    if layer.local is not None:
        names.append("local")
    if layer.global_ is not None:
        names.append("global")
        if layer.global_.ratio > 1:
            names.append("global_tail")
    if layer.index is not None:
        names.append("index")
        if layer.index.raw is not None and layer.index.ratio > 1:
            names.append("index_tail")
    if layer.recurrent is not None:
        names.append("recurrent")
    return tuple(names)


def needs(layer, part: str, point: int, position: int) -> bool:
    """Whether resuming at ``point`` needs what ``part`` keeps for ``position``."""
    if position < 0 or position >= point:
        return False
    if part == "local":
        return sees(layer.local, point, position)
    pooled = layer.global_ if part.startswith("global") else layer.index
    block, open_block = position // pooled.ratio, point // pooled.ratio
    if part in GROWING:
        return block < open_block
    # A tail: the block that is still open; and, where an entry also pools the block
    # before its own, that block once more.
    return block == open_block or (pooled.overlap == 1 and block == open_block - 1)


def required(layer, part: str, point: int) -> set[int]:
    """All positions that ``part`` must hold to resume at ``point``."""
    return {t for t in range(point) if needs(layer, part, point, t)}


def part_held(layers, held: Held, index: int, part: str, point: int) -> bool:
    """Whether one part of one layer has all it must hold at ``point``."""
    if part == "recurrent":
        return point == 0 or point in held[index, part]
    return required(layers[index], part, point) <= held[index, part]


def provable(layers, held: Held, point: int, only=None) -> bool:
    """Whether every part (of those named) of every layer has all it must hold."""
    return all(
        part_held(layers, held, index, part, point)
        for index, layer in enumerate(layers)
        for part in parts(layer)
        if only is None or part in only
    )


@functools.cache
def _seen(kind: type, size: int, query: int) -> frozenset[int]:
    """Positions that a query sees, by a window or a chunk of that size."""
    local = kind(size, None)
    return frozenset(key for key in range(query + 1) if sees(local, query, key))


def replay_is_exact(
    layers, point: int, start: int, checkpoints=frozenset(), kept=frozenset()
) -> bool:
    """Whether running ``start..point-1`` leaves every replayed part right.

    Growing parts are held up to ``point``, are read, and are never written.  Rows of
    the other parts begin empty at ``start``; a part that is kept has there what it must
    hold to resume at ``start``.  From ``start`` on all rows are written anew.  A
    recurrent layer begins from a checkpoint taken at exactly ``start``.

    Args:
      layers: layer records.
      point: the resume point.
      start: the first position that is run.
      checkpoints: positions at which all recurrent layers have a checkpoint.
      kept: layers and parts that the replay goes on from; no recurrent ones.
    """
    right = set(range(start, point))  # inputs of the layer at hand: tokens are right
    rows: list[set[int]] = []
    for index, layer in enumerate(layers):
        there = {
            part: right | required(layer, part, start)
            if (index, part) in kept
            else right
            for part in parts(layer)
            if part not in (*GROWING, "recurrent")
        }
        if not all(required(layer, part, point) <= there[part] for part in there):
            return False
        rows.append(there.get("local", right))
        owner = index if layer.kv_owner is None else layer.kv_owner
        local = layers[owner].local
        folded = start == 0 or start in checkpoints
        outputs = set()
        for t in range(start, point):
            folded = folded and t in right
            good = t in right
            if layer.recurrent is not None:
                good = good and folded
            if local is not None:
                good = good and _seen(type(local), local.size, t) <= rows[owner]
            if good:
                outputs.add(t)
        if layer.recurrent is not None and not folded:
            return False
        right = outputs
    return True


@functools.lru_cache(maxsize=4096)
def latest_start(layers, point: int, checkpoints=frozenset()) -> int:
    """The latest start of an exact replay that keeps nothing; 0 for a whole run."""
    for start in range(point, 0, -1):
        if replay_is_exact(layers, point, start, checkpoints):
            return start
    return 0


def start_by_dependencies(layers, point: int) -> int:
    """The same for models without recurrent layers, also for large ones.

    Walks from the last layer to the first and collects, per layer, the set of
    positions at which its input must be right.
    """
    inputs: list[set[int]] = [set() for _ in layers]
    outputs: set[int] = set()
    for index in range(len(layers) - 1, -1, -1):
        layer = layers[index]
        inputs[index] |= outputs
        owner = index if layer.kv_owner is None else layer.kv_owner
        if layers[owner].local is not None:
            inputs[owner] |= _seen_by_any(layers[owner].local, outputs)
        for part in parts(layer):
            if part in REPLAYED:
                inputs[index] |= _required_near(layer, part, point)
        outputs = inputs[index]
    return min((min(need) for need in inputs if need), default=point)


def _seen_by_any(local, queries: set[int]) -> set[int]:
    """Keys that at least one of the queries sees; each key is visited once."""
    keys: set[int] = set()
    for query in sorted(queries):
        for key in range(query, -1, -1):
            if key in keys or not sees(local, query, key):
                break
            keys.add(key)
    return keys


def _required_near(layer, part: str, point: int) -> set[int]:
    """``required`` for bounded parts: stops at the first position that is not."""
    found = set()
    for position in range(point - 1, -1, -1):
        if not needs(layer, part, point, position):
            break
        found.add(position)
    return found


def kept_by_dependencies(layers, point: int, start: int) -> set[tuple[int, str]]:
    """Layers and parts that a replay from ``start`` cannot do without.

    Walks down like :func:`start_by_dependencies`.  What lies before the start is not
    run, so rows that are needed there must be kept; with them the replay is exact.
    """
    inputs: list[set[int]] = [set() for _ in layers]
    outputs: set[int] = set()
    kept = set()
    for index in range(len(layers) - 1, -1, -1):
        layer = layers[index]
        inputs[index] |= outputs
        if layer.recurrent is not None:
            inputs[index] |= set(range(start, point))
        rows = [
            ((index, part), _required_near(layer, part, point))
            for part in parts(layer)
            if part not in (*GROWING, "recurrent")
        ]
        owner = index if layer.kv_owner is None else layer.kv_owner
        if layers[owner].local is not None:
            rows.append(((owner, "local"), _seen_by_any(layers[owner].local, outputs)))
        for where, needed in rows:
            if any(position < start for position in needed):
                kept.add(where)
            inputs[where[0]] |= {position for position in needed if position >= start}
        outputs = inputs[index]
    return kept


# --- the whole answer ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pool:
    """What one pool stores: a part of some layers, in blocks."""

    layers: tuple[int, ...]
    part: str
    block_tokens: int
    block_bytes: int


class Rates(NamedTuple):
    """What tokens, bytes and loads cost, and a run besides its tokens."""

    token: Fraction
    byte: Fraction
    load: Fraction
    store_byte: Fraction
    store_load: Fraction
    run: Fraction


@dataclasses.dataclass(frozen=True)
class Way:
    """One proved way to go on: what is loaded, then run, up to the resume point.

    ``loads`` has a set per pool: numbers of blocks or, for a pool of recurrent states,
    positions of checkpoints.  ``stored`` are those of them that lie in the store only.
    ``kept`` are the pools that a replay goes on from.
    """

    verdict: str
    point: int
    start: int
    loads: tuple[frozenset[int], ...]
    stored: tuple[frozenset[int], ...]
    kept: tuple[int, ...] = ()

    def nbytes(self, pools, of=None) -> int:
        """Bytes to load, or of some blocks."""
        return sum(
            pool.block_bytes * len(blocks)
            for pool, blocks in zip(pools, of or self.loads, strict=True)
        )

    def cost(self, pools, num_tokens: int, rates: "Rates"):
        """Seconds to load and to run."""
        seconds = rates.run + (num_tokens - self.start) * rates.token
        if not any(self.loads):
            return seconds
        far = self.nbytes(pools, self.stored)
        near = self.nbytes(pools) - far
        fixed = max(rates.load, rates.store_load) if far else rates.load
        return seconds + fixed + near * rates.byte + far * rates.store_byte

    @property
    def trouble(self) -> int:
        """Of ways that cost the same the one with the least trouble is taken."""
        return 2 * any(self.loads) + (self.start < self.point)


class Prompt:
    """All proved ways for one model, whatever is held.

    Args:
      layers: layer records.
      pools: how their parts are stored.
    """

    def __init__(self, layers, pools):
        self.layers, self.pools = tuple(layers), tuple(pools)
        self.states = [n for n, pool in enumerate(pools) if pool.part == "recurrent"]
        self.bounded = frozenset(
            n
            for n, pool in enumerate(pools)
            if pool.part not in (*GROWING, "recurrent")
        )
        self.needs = functools.cache(self._needs)
        self.exact = functools.cache(self._exact)
        self.least = functools.cache(self._least)

    def _needs(self, point: int) -> list[frozenset[int]]:
        """Per pool, what resuming at a point needs."""
        found = []
        for pool in self.pools:
            if pool.part == "recurrent":
                found.append(frozenset({point} if point else ()))
            else:
                parts_of = (self.layers[layer] for layer in pool.layers)
                need = (required(layer, pool.part, point) for layer in parts_of)
                found.append(frozenset().union(*need))
        return found

    def _exact(self, point: int, start: int, kept: frozenset[int] = frozenset()):
        """Whether a replay is exact, from a checkpoint at its start and these pools."""
        where = frozenset(
            (layer, self.pools[n].part) for n in kept for layer in self.pools[n].layers
        )
        taken = frozenset({start})
        return replay_is_exact(self.layers, point, start, taken, where)

    def _least(self, point: int, start: int) -> frozenset[int]:
        """The fewest pools that an exact replay keeps: all but those it can do without.

        With all of them it is exact, since no row that it reads is missing; and which
        ones it cannot do without does not depend on the others.
        """
        return frozenset(
            n
            for n in self.bounded
            if self.needs(start)[n] and not self.exact(point, start, self.bounded - {n})
        )

    def ways(self, points, num_tokens: int, device, near, anywhere) -> list[Way]:
        """Every way there is.

        Args:
          points: legal resume points.
          num_tokens: length of the prompt; its last token is always run.
          device: per pool, positions held; for recurrent states those of checkpoints.
          near: likewise, host memory included.
          anywhere: likewise, the store included, too.
        """
        none = (frozenset(),) * len(self.pools)
        found = [Way("NEEDS_FULL_RECOMPUTE", 0, 0, none, none)]
        for point in points:
            if not 0 < point <= num_tokens - 1:
                continue
            needs = self.needs(point)
            loads = self._loads(needs, device, anywhere)
            if loads is not None:
                verdict = "NEEDS_IO" if any(loads) else "RESUMABLE"
                far = self._loads(needs, near, anywhere)
                found.append(Way(verdict, point, point, loads, far))
            if any(
                pool.part in GROWING and not need <= there
                for pool, need, there in zip(self.pools, needs, anywhere, strict=True)
            ):
                continue
            for start, kept in self._starts(point, points, anywhere):
                replay = self._in_replay(point, start, kept)
                loads = self._loads(replay, device, anywhere)
                if loads is not None:
                    verdict = "NEEDS_IO" if any(loads) else "NEEDS_PARTIAL_RECOMPUTE"
                    far = self._loads(replay, near, anywhere)
                    found.append(Way(verdict, point, start, loads, far, kept))
        return found

    def _starts(self, point: int, points, anywhere) -> list[tuple[int, tuple]]:
        """Starts of exact replays, less those that another one is never worse than.

        To keep more pools than need be is never better, and without recurrent layers
        no start is that lies before the latest one from nothing.
        """
        if self.states:
            taken = set.intersection(*(set(anywhere[number]) for number in self.states))
            starts = {start for start in taken if 0 < start < point}
        else:
            latest = latest_start(self.layers, point)
            starts = {start for start in (latest, *points) if latest <= start < point}
        return [
            (start, tuple(sorted({*kept, *self.states})))
            for start in starts - {0}
            if not (kept := self.least(point, start)) or start in points
        ]

    def _in_replay(self, point: int, start: int, kept) -> list[frozenset[int]]:
        """Per pool, what a replay needs."""
        return [
            self.needs(point)[n]
            if pool.part in GROWING
            else self.needs(start)[n]
            if n in kept
            else frozenset()
            for n, pool in enumerate(self.pools)
        ]

    def _loads(self, needs, device, anywhere):
        """What must be loaded so that all is held; None if it is nowhere."""
        loads = []
        for pool, need, here, there in zip(
            self.pools, needs, device, anywhere, strict=True
        ):
            if not need <= there:
                return None
            away = need - here
            if pool.part != "recurrent":
                away = frozenset(position // pool.block_tokens for position in away)
            loads.append(away)
        return tuple(loads)

    def best(self, ways, num_tokens: int, rates: Rates):
        """The ways that are as cheap and as little trouble as any, and their cost."""
        ranked = [
            (way.cost(self.pools, num_tokens, rates), way.trouble, way) for way in ways
        ]
        least = min(rank[:2] for rank in ranked)
        return [way for *rank, way in ranked if tuple(rank) == least], least[0]
