"""The oracle of the toy: what running tokens from nothing leaves.

Plain Python over lists of integers, NumPy only for the result.  Nothing of the library
is used, so that a mistake of the library cannot hide here.

Token ``t`` at position ``p`` has the value ``v(p) = 10 p + t``.  A layer keeps, of the
values ``x`` that go into it:

* local keys and entries of ratio 1: ``x(p)``;
* compressed entries: the sum of ``x`` over their block, with overlap over two blocks;
* the raw rows behind them: ``x(p)``;
* index keys: the sum over their block, modulo 11;
* recurrent state: ``S <- (2 S + x mod 10) mod 1000``.

So a missing, doubled, foreign or misplaced token shows in the numbers, and every number
is exact in float32.  In a ``plain`` toy every layer gets ``v``; in a ``chain`` a layer
gets ``h <- (2 h + all that the layer below read) mod 997``, so that an error in one
layer shows in all above it.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridcache_jax.testing.toy_kinds import Kind

if TYPE_CHECKING:
    from hybridcache_jax.testing.toy import Model

KEYS = 11
STATES = 1000
# A prime, so that an error in one layer does not vanish when it is doubled.
CHAIN = 997


@dataclasses.dataclass(frozen=True)
class Rows:
    """What one part of one layer holds.

    Attributes:
      positions: first token of each row, ascending; for a state, its length.
      planes: by name, ``[n, heads, dim]`` float32.
    """

    positions: tuple[int, ...]
    planes: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Cold:
    """What running some tokens leaves.

    Attributes:
      parts: by layer and name of the part, all that is required to go on.
      reads: ``[layers, T, width]`` float32, what each query read; see :func:`cold`.
    """

    parts: dict[tuple[int, str], Rows]
    reads: np.ndarray


def v(tokens: Sequence[int]) -> list[int]:
    """The value of each token: ``10 p + t``."""
    return [10 * p + t for p, t in enumerate(tokens)]


def places(kinds: Sequence[Kind], layer: int, length: int) -> tuple[int, int]:
    """Places that local keys and entries have in what ``layer`` reads of a head."""
    kind = kinds[_or(kinds[layer].kv_owner, layer)]
    return length if kind.local else 0, -(-length // kind.ratio) if kind.ratio else 0


def width(kinds: Sequence[Kind], length: int) -> int:
    """Places of the widest layer: those of every head, and one for the state."""
    return max(
        kinds[_or(kind.kv_owner, layer)].heads * sum(places(kinds, layer, length))
        + kind.recurrent
        for layer, kind in enumerate(kinds)
    )


def cold(model: "Model", tokens: Sequence[int]) -> Cold:
    """All forms after running ``tokens`` from nothing in one call.

    A query reads, in the place of every local key and entry that it sees, the value:
    in a ``plain`` toy divided by how many it sees, as equal weights give it, in a
    ``chain`` the value itself.  Heads follow each other; the state comes last.

    Example::

        toy.cold(toy.model([LayerSpec(...)]), [3, 1, 4, 1]).parts[0, "entries"]

    Args:
      model: a ``plain`` or a ``chain`` toy; only its kinds, style and ``max_length``
        are looked at.
      tokens: ``[n]`` token ids.
    """
    kinds, length, chain = model.kinds, model.max_length, model.style == "chain"
    size, h = len(tokens), v(tokens)
    kept: list[_Kept] = []
    reads = np.zeros((len(kinds), size, width(kinds, length)), np.float32)
    for layer, kind in enumerate(kinds):
        kept.append(_keep(kind, h if chain else v(tokens)))
        owner = _or(kind.kv_owner, layer)
        room, across = places(kinds, layer, length)
        after = []
        for p in range(size):
            total = kept[layer].states[p] if kind.recurrent else 0
            end = kinds[owner].heads * (room + across)
            for head in range(kinds[owner].heads):
                seen = _seen(kinds, kept, layer, p, head, room)
                total += sum(seen.values())
                for place, value in seen.items():
                    share = np.float32(1 if chain else len(seen))
                    at = head * (room + across) + place
                    reads[layer, p, at] = np.float32(value) / share
            if kind.recurrent:
                reads[layer, p, end] = kept[layer].states[p]
            after.append((2 * h[p] + total) % CHAIN)
        h = after if chain else h
    parts = {
        (layer, part): _rows(kind, part, kept[layer], size, model, layer)
        for layer, kind in enumerate(kinds)
        for part in kind.parts
    }
    return Cold(parts, reads)


@dataclasses.dataclass(frozen=True)
class _Kept:
    """Everything that a layer ever kept, whether it is still required or not."""

    x: list[int]
    entries: list[int]
    keys: list[int]
    states: list[int]


def _keep(kind: Kind, x: list[int]) -> _Kept:
    entries = _pooled(x, kind.ratio, kind.overlap)
    if kind.pooled or kind.index_ratio == 1:
        keys = _pooled(x, kind.index_ratio, kind.index_overlap)
    else:
        keys = entries if kind.index_ratio else []
    states, state = [], 0
    for value in x:
        state = (2 * state + value % 10) % STATES
        states.append(state)
    return _Kept(x, entries, [key % KEYS for key in keys], states)


def _pooled(x: list[int], ratio: int, overlap: int) -> list[int]:
    if not ratio:
        return []
    return [
        sum(x[max(0, block - overlap) * ratio : (block + 1) * ratio])
        for block in range(len(x) // ratio)
    ]


def _seen(kinds, kept, layer: int, p: int, head: int, room: int) -> dict[int, int]:
    """What one head of the query at ``p`` reads: place to value."""
    owner = _or(kinds[layer].kv_owner, layer)
    kind, rows, seen = kinds[owner], kept[owner], {}
    if kind.local:
        seen = {q: rows.x[q] for q in range(kind.first(p), p + 1)}
    if not kind.ratio:
        return seen
    chooser = _or(kinds[layer].select_owner, layer)
    visible = range((p + 1) // kind.ratio)
    if kinds[chooser].top:
        units = _selected(kinds, kept, chooser, p, head)
        per = kinds[chooser].unit // kind.ratio
        visible = [entry for entry in visible if entry // per in units]
    return seen | {room + entry: rows.entries[entry] for entry in visible}


def _selected(kinds, kept, layer: int, p: int, head: int) -> set[int]:
    """Units that one head of the query at ``p`` selects.

    A query of an odd value ranks large keys first, of an even one small keys; the
    heads take turns.
    """
    kind = kinds[layer]
    source = _or(kind.index_owner, layer)
    keys, ratio = kept[source].keys, kinds[source].index_ratio
    sign = 1 if kept[layer].x[p] % 2 else -1
    if kind.per_head and head % 2:
        sign = -sign
    own = p // kind.unit
    is_open = kind.open_tail and (p + 1) % kind.unit != 0
    scores = {}
    for key in range((p + 1) // ratio):
        number, score = key * ratio // kind.unit, sign * keys[key]
        scores[number] = max(scores.get(number, score), score)
    for number in range(max(0, own - kind.near + 1), own + 1):
        scores[number] = float("inf")
    if is_open:
        scores.pop(own, None)
    best = sorted(scores, key=lambda number: (-scores[number], number))[: kind.top]
    return {*best, own} if is_open else set(best)


def _rows(kind: Kind, part: str, kept: _Kept, size: int, model, layer: int) -> Rows:
    """What of a part is required to go on after ``size`` tokens."""
    lo, hi = kind.required(part, size)
    if part == "state":
        return Rows((size,) * (hi - lo), {"s": _column(kept.states[lo:hi])})
    if part.endswith("raw"):
        return Rows(tuple(range(lo, hi)), {"x": _column(kept.x[lo:hi])})
    if part == "index":
        step = kind.index_ratio
        return Rows(tuple(range(lo, hi, step)), {"k": _column(kept.keys[: hi // step])})
    room, across = places(model.kinds, layer, model.max_length)
    step = kind.ratio if part == "entries" else 1
    start = room if part == "entries" else 0
    values = kept.entries if part == "entries" else kept.x
    positions = tuple(range(lo, hi, step))
    rows = np.zeros((len(positions), kind.heads, room + across), np.float32)
    if model.style == "chain":
        # One more number in each, the same in all: it tells how many were read.
        rows = np.concatenate([rows, np.ones_like(rows[..., :1])], axis=-1)
    for row, position in zip(rows, positions, strict=True):
        row[:, start + position // step] = values[position // step]
    keys = _column([values[position // step] for position in positions])
    return Rows(positions, {"k": np.repeat(keys, kind.heads, axis=1), "v": rows})


def _column(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.float32).reshape(len(values), 1, 1)


def _or(owner: int | None, layer: int) -> int:
    return layer if owner is None else owner
