"""What a layer kind requires to go on, and what a plan must therefore say.

Everything is found by trying: every resume point, and every start of a replay, with
sets of positions that are right.  Nothing of the library is used but the verdicts.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hybridcache_jax.codes import Verdict

if TYPE_CHECKING:
    from hybridcache_jax.testing.toy import Model

# What only a run from the first hole brings back; a replay rebuilds all else.
GROWING = ("entries", "index")

Where = tuple[int, str]  # layer and part


@dataclasses.dataclass(frozen=True)
class Kind:
    """How a layer sees and what it keeps, in plain numbers.

    Attributes:
      local: ``"window"``, ``"chunk"``, or empty for none.
      size: tokens of the window (the query's own counted) or of the chunk.
      ratio: tokens per entry of the history; 0 for no entries.
      overlap: 1 if an entry also pools the block before its own.
      heads: key/value heads; more than 1 only where each selects for itself.
      index_ratio: tokens per index key; 0 for no keys.
      index_overlap: 1 if a key also pools the block before its own.
      pooled: whether keys are pooled from raw rows of their own.
      top: units selected; 0 where all that is visible is read.
      unit: tokens per unit.
      near: units nearest the query that are always selected.
      open_tail: whether the query's own unit is read while it is not complete.
      per_head: whether every head has a selection of its own.
      recurrent: whether it carries a state.
      kv_owner: layer whose local keys and entries it reads; None for its own.
      index_owner: layer whose index keys it ranks.
      select_owner: layer whose selection it reuses.
    """

    local: str = ""
    size: int = 0
    ratio: int = 0
    overlap: int = 0
    heads: int = 1
    index_ratio: int = 0
    index_overlap: int = 0
    pooled: bool = False
    top: int = 0
    unit: int = 1
    near: int = 0
    open_tail: bool = False
    per_head: bool = False
    recurrent: bool = False
    kv_owner: int | None = None
    index_owner: int | None = None
    select_owner: int | None = None

    @classmethod
    def of(cls, layer: Any) -> "Kind":
        """The kind of a ``LayerSpec``, which is read as data."""
        local, history = layer.local, layer.global_
        index, select = layer.index, layer.select
        numbers: dict[str, Any] = {}
        if local is not None:
            numbers.update(local=type(local).__name__.lower(), size=local.size)
        if history is not None:
            numbers.update(ratio=history.ratio, overlap=history.overlap)
        if index is not None:
            pooled = index.raw is not None
            numbers.update(index_ratio=index.ratio, pooled=pooled)
            numbers.update(index_overlap=index.overlap)
        if select is not None:
            numbers.update(top=select.k, unit=select.unit)
            numbers.update(near=select.local_units, open_tail=select.open_tail)
            numbers.update(per_head=select.per == "kv_group")
            if select.per == "kv_group" and history is not None:
                heads = max(plane.heads for plane in history.entry.planes)
                numbers.update(heads=heads)
        return cls(
            recurrent=layer.recurrent is not None,
            kv_owner=layer.kv_owner,
            index_owner=layer.index_owner,
            select_owner=layer.select_owner,
            **numbers,
        )

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of what the layer keeps of its own."""
        kept = {
            "local": bool(self.local),
            "entries": self.ratio > 0,
            "entries_raw": self.ratio > 1,
            "index": self.index_ratio > 0,
            "index_raw": self.pooled,
            "state": self.recurrent,
        }
        return tuple(name for name, there in kept.items() if there)

    def first(self, position: int) -> int:
        """First position whose local key the query at ``position`` sees."""
        if self.local == "window":
            return max(0, position - self.size + 1)
        if self.local == "chunk":
            return position - position % self.size
        return 0

    def required(self, part: str, point: int) -> tuple[int, int]:
        """Positions ``[lo, hi)`` of a part that resuming at ``point`` needs."""
        if part == "local":
            return self.first(point), point
        if part == "state":
            return max(point - 1, 0), point
        of_index = part.startswith("index")
        ratio = self.index_ratio if of_index else self.ratio
        overlap = self.index_overlap if of_index else self.overlap
        boundary = point - point % ratio
        if part in ("entries", "index"):
            return 0, boundary
        return max(0, boundary - overlap * ratio), point


def expected_plan(
    model: "Model",
    length: int,
    common: int,
    held: Mapping[Where, set[int]],
) -> tuple[Verdict, int, int]:
    """Verdict, resume point and start that a search over all points gives.

    A replay that starts at a resume point goes on from all that is held there.

    Example::

        blocks = toy.stored_blocks(model, cache)
        blocks[0, "local"].discard(1)  # as if it were lost
        toy.expected_plan(model, len(prompt), shared, blocks)

    Args:
      model: the toy.
      length: tokens of the prompt.
      common: tokens that it shares with the stored history.
      held: by layer and part, the numbers of the blocks that are there; for a state,
        of those at whose end there is a checkpoint.
    """

    def there(layer, part, point):
        size = model.block(layer, part)
        lo, hi = model.kinds[layer].required(part, point)
        if part == "state" and point % size:
            return False
        return all(q // size in held[layer, part] for q in range(lo, hi))

    points = range(0, min(common, length - 1) + 1, model.grid)
    states = [where for where in model.parts if where[1] == "state"]
    checkpoints = frozenset(
        point
        for point in range(1, common + 1)
        if all(there(*where, point) for where in states)
    )

    kept = {point: _held_at(model, there, point) for point in points}

    def latest(point):
        for start in range(point - 1, 0, -1):
            mine = kept.get(start, frozenset())
            if start in checkpoints and _is_exact(model.kinds, point, start, mine):
                return start
        return 0

    resumable, replays = [0], []
    for point in points:
        missing = [where for where in model.parts if not there(*where, point)]
        if not missing:
            resumable.append(point)
        elif all(part not in GROWING for _, part in missing):
            replays.append((latest(point), point))
    best, (start, point) = max(resumable), max(replays, default=(0, 0))
    if start > best:
        return Verdict.NEEDS_PARTIAL_RECOMPUTE, point, start
    if best:
        return Verdict.RESUMABLE, best, best
    return Verdict.NEEDS_FULL_RECOMPUTE, 0, 0


def _held_at(
    model: "Model", there: Callable[[int, str, int], bool], start: int
) -> frozenset[Where]:
    """Parts that a replay may go on from: parts of one pool together, or not at all."""
    lost = {model.pool_of(*where) for where in model.parts if not there(*where, start)}
    bounded = [where for where in model.parts if where[1] not in (*GROWING, "state")]
    return frozenset(where for where in bounded if model.pool_of(*where) not in lost)


def replay_start(
    kinds: Sequence[Kind], point: int, checkpoints: frozenset[int] = frozenset()
) -> int:
    """Latest position from which a replay up to ``point`` rebuilds every form.

    Of the forms that it rebuilds it goes on from none but the states.

    Args:
      kinds: one per layer.
      point: the resume point; entries and index keys are held up to it.
      checkpoints: positions at which every recurrent layer has a checkpoint.

    Returns:
      0 where only a run from the beginning will do.
    """
    starts = range(point, 0, -1)
    if any(kind.recurrent for kind in kinds):
        starts = sorted((c for c in checkpoints if 0 < c <= point), reverse=True)
    return next((k for k in starts if _is_exact(kinds, point, k)), 0)


def must_keep(kinds: Sequence[Kind], point: int, start: int) -> frozenset[Where]:
    """Layers and parts without which a replay of ``start .. point - 1`` goes wrong.

    With all that resuming at ``start`` needs it is exact, and it stays so without each
    part that it can do without, whatever the others.  States are taken for given.

    Args:
      kinds: one per layer.
      point: the resume point; entries and index keys are held up to it.
      start: the first position that is run.
    """
    bounded = frozenset(
        (layer, part)
        for layer, kind in enumerate(kinds)
        for part in kind.parts
        if part not in (*GROWING, "state")
    )
    return frozenset(
        where
        for where in bounded
        if not _is_exact(kinds, point, start, bounded - {where})
    )


def _is_exact(
    kinds: Sequence[Kind], point: int, start: int, kept: frozenset[Where] = frozenset()
) -> bool:
    """Whether running ``start .. point - 1`` makes all that it writes right.

    Of the parts that are kept there is what resuming at ``start`` needs.
    """
    right = set(range(start, point))
    rows: list[set[int]] = []
    for layer, kind in enumerate(kinds):
        rows.append(right)
        for part in kind.parts:
            if part in (*GROWING, "state"):
                continue
            there = right
            if (layer, part) in kept:
                there = right | set(range(*kind.required(part, start)))
            if not set(range(*kind.required(part, point))) <= there:
                return False
            if part == "local":
                rows[layer] = there
        if kind.recurrent and right != set(range(start, point)):
            return False
        owner = layer if kind.kv_owner is None else kind.kv_owner
        near = kinds[owner]
        if near.local:
            right = {
                p for p in right if set(range(near.first(p), p + 1)) <= rows[owner]
            }
    return True
