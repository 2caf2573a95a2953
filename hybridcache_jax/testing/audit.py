"""Reading a cache back on the host, and the laws it must obey.

A first-token check proves nothing about a resumed sequence, so audits compare
*state*: every entry that a row holds, position by position.
"""

import math

import numpy as np

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Provenance, Stage
from hybridcache_jax.entry import Plane
from hybridcache_jax.forms import Form, required
from hybridcache_jax.planes import storage_dtype, storage_width
from hybridcache_jax.prefix_cache import PrefixCache
from hybridcache_jax.rows import block_numbers
from hybridcache_jax.state import HybridCache, StateTable
from pallas_kernels.dtypes import element_bits, named_dtype
from pallas_kernels.stored import Stored

RowState = dict[str, dict[str, np.ndarray]]


def row_state(cache: HybridCache, row: int) -> RowState:
    """Everything that resuming a row at its length requires, read back.

    Args:
      cache: the cache.
      row: a live row.

    Returns:
      Per pool name: ``"positions"`` ``[n]`` int32 ascending, first token position of
      each entry, and per plane ``[L, n, heads, dim]`` in the logical dtype.
    """
    plan = cache.plan
    length = int(cache.rows.length[row])
    state = {}
    for index, pool in enumerate(plan.spec.pools):
        size, step = pool.block_tokens, pool.entry_tokens
        lo, hi = required(pool.form, pool.geometry, length)
        lo = max(lo, int(cache.rows.since[row, index]))
        positions = np.arange(lo - lo % step, hi, step)
        ids = np.array(cache.rows.blocks[index][row])
        reach = max(length, int(cache.rows.held[row, index]))
        numbers = block_numbers(np.array([reach]), size, len(ids))[0]
        block_of = dict(zip(numbers.tolist(), ids.tolist(), strict=True))
        blocks = np.array([block_of[p // size] for p in positions], int)
        state[pool.name] = {"positions": positions.astype(np.int32)}
        for plane in pool.entry.planes:
            memory = np.array(cache.pools[index][plane.name])
            slots = positions % size // step
            if plan.lanes:
                flat = memory[:, blocks].view(storage_dtype(plane.dtype, plan.backend))
                flat = flat.reshape(*flat.shape[:2], math.prod(flat.shape[2:]))
                place = places_in_lanes(pool, plane)[slots]
                stored = np.take_along_axis(flat, place[None], axis=2)
            else:
                stored = memory[:, blocks, slots]
            state[pool.name][plane.name] = _logical(plane, stored)
    return state


def places_in_lanes(pool: Stored, plane: Plane) -> np.ndarray:
    """Where each element of a block lies in its rows of 128 lanes.

    One by one, as :mod:`pallas_kernels.lanes` says.

    Returns:
      ``[S, storage_width]`` places, counted in elements of the plane.
    """
    width, bits = storage_width(plane), max(element_bits(plane.dtype), 8)
    at, slots = np.arange(width), np.arange(pool.block_entries)[:, None]
    if any(plane.name == other.scale for other in pool.entry.planes):
        per = 32 // bits
        return (at // per * pool.block_entries + slots) * per + at % per
    strip = math.gcd(pool.block_entries, 256 // bits)
    row = slots // strip * strip * -(-width // 128) + slots % strip
    return (row + at // 128 * strip) * 128 + at % 128


def _logical(plane: Plane, stored: np.ndarray) -> np.ndarray:
    """``[..., storage_width]`` to ``[..., heads, dim]``; NumPy's own reading."""
    if element_bits(plane.dtype) < 8:
        codes = np.stack([stored & 15, stored >> 4], axis=-1)
        stored = codes.reshape(*stored.shape[:-1], plane.width)
    value = np.ascontiguousarray(stored).view(named_dtype(plane.dtype))
    return value.reshape(*value.shape[:-1], plane.heads, plane.dim)


def state_difference(a: RowState, b: RowState) -> float:
    """Largest absolute difference between two states; inf if their positions differ."""
    worst = 0.0
    for pool, planes in a.items():
        for name, value in planes.items():
            other = b[pool][name]
            if value.shape != other.shape:
                return float("inf")
            if value.size == 0:
                continue
            gap = np.abs(value.astype(np.float64) - other.astype(np.float64)).max()
            if name == "positions" and gap:
                return float("inf")
            worst = max(worst, float(gap))
    return worst


def violations(cache: HybridCache) -> list[str]:
    """Laws of the state that a cache breaks; empty for a sound one.

    Accounting (every block is exactly one of free, evictable, pinned, writing or
    moving), separation of forms, the free stack, the pins: as many as rows refer to a
    block, and provenance: an exact row refers to nothing approximate, and what an
    approximate row writes is marked.
    """
    found = []
    for index, (pool, table) in enumerate(
        zip(cache.plan.spec.pools, cache.tables, strict=True)
    ):
        facts = {name: np.asarray(getattr(table, name)) for name in _COLUMNS}
        found += [
            f"{pool.name}: {law}"
            for law in _table_laws(facts, int(table.num_free), pool.form)
        ]
        found += [f"{pool.name}: {law}" for law in _provenance_laws(cache, index)]
        pins = _references(cache, index, cache.plan)
        if not np.array_equal(pins, facts["pins"]):
            found.append(f"{pool.name}: pins differ from the rows' references")
    return found


_COLUMNS = ("stage", "form", "provenance", "epoch", "pins", "kept", "first", "free")


def _table_laws(facts: dict[str, np.ndarray], num_free: int, form: Form):
    free = facts["stage"] == Stage.FREE
    stack = facts["free"][:num_free]
    if sorted(stack.tolist()) != np.flatnonzero(free).tolist():
        yield "the free stack does not list exactly the free blocks"
    if (facts["form"][free] != Form.NONE).any() or facts["pins"][free].any():
        yield "a free block has a label or a pin"
    if facts["kept"][free].any() or (facts["first"][free] != -1).any():
        yield "a free block is marked as kept or has a position"
    if facts["provenance"][free].any():
        yield "a free block is marked as approximate"
    if (facts["form"][~free] != form).any():
        yield "a block in use carries the label of another form"
    if (facts["pins"] < 0).any() or (facts["epoch"] < 0).any():
        yield "a count is negative"
    # What comes for a load is the load's until it is sealed.
    here = ~free & (facts["stage"] != Stage.LOADING)
    idle = here & (facts["pins"] == 0) & ~facts["kept"]
    if idle.any():
        yield "a block is in use but held by nobody"


def _provenance_laws(cache: HybridCache, index: int):
    table, rows = cache.tables[index], cache.rows
    grade, stage = np.asarray(table.provenance), np.asarray(table.stage)
    epoch = np.asarray(table.epoch)
    for row in np.flatnonzero(np.asarray(rows.live)):
        ids = np.asarray(rows.blocks[index])[row]
        seen = np.asarray(rows.epochs[index])[row]
        mine = ids[ids < len(grade)]
        mine = mine[epoch[mine] == seen[ids < len(grade)]]
        if (grade[mine] > int(rows.provenance[row])).any():
            yield "an exact row refers to an approximate block"
        written = mine[stage[mine] == Stage.WRITING]
        if (grade[written] != int(rows.provenance[row])).any():
            yield "a block is not marked like the row that writes it"


def exact_claims(cache: HybridCache, prefixes: PrefixCache) -> list[str]:
    """Where an exact key claims an approximate block; empty for a sound cache.

    Args:
      cache: the newest value.
      prefixes: the claims about it.
    """
    found = []
    for key, pool, ids, epochs in prefixes.claims():
        table = cache.tables[pool]
        grade, epoch = np.asarray(table.provenance), np.asarray(table.epoch)
        real = ids < len(grade)
        now = ids[real][epoch[ids[real]] == epochs[real]]
        if key.provenance == Provenance.EXACT and grade[now].any():
            name = cache.plan.spec.pools[pool].name
            found.append(f"{name}: an approximate block is kept under an exact key")
    return found


def _references(cache: HybridCache, index: int, plan: CapacityPlan) -> np.ndarray:
    table: StateTable = cache.tables[index]
    ids = np.asarray(cache.rows.blocks[index])[np.asarray(cache.rows.live)].ravel()
    stamps = np.asarray(cache.rows.epochs[index])[np.asarray(cache.rows.live)].ravel()
    real = ids < plan.blocks[index]
    current = np.asarray(table.epoch)[ids[real]] == stamps[real]
    return np.bincount(ids[real][current], minlength=plan.blocks[index])
