"""The four validation layers, in order, as pure functions.

1. *Boundary*: is the position a resume point?
2. *Interface and layout*: does the read that will run accept the stored layout?
3. *Intersection*: block by block, does the fact match the claim (version, epoch,
   form, position), and is everything held that each form requires?
4. *Alignment*: do address and length of every block obey the backend's rules?

Layers 1, 3 and 4 work on arrays and are written against the array namespace of
their arguments: NumPy arrays on the host, traced arrays inside a compiled step.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridcache_jax._typing import Array
from hybridcache_jax.codes import Provenance, Reason, Stage
from hybridcache_jax.forms import RULES, Form, Read, required
from hybridcache_jax.spec import CacheSpec, Part, PoolSpec
from pallas_kernels.contracts import ReadContract
from pallas_kernels.dtypes import element_bits, named_dtype

if TYPE_CHECKING:
    from hybridcache_jax.host_facts import Columns
    from hybridcache_jax.offload.places import Places
    from hybridcache_jax.state import StateTable


def boundary(points: Array, grid: int, checkpoints: Array | None = None) -> Array:
    """Layer 1: which positions are resume points.

    Args:
      points: ``[K]`` int32.
      grid: tokens between grid points.
      checkpoints: ``[M]`` int32, exact positions of sealed checkpoints, or None.

    Returns:
      ``[K]`` int32: ``Reason.OK`` or ``Reason.NOT_A_RESUME_POINT``.
    """
    xp = points.__array_namespace__()
    legal = (points >= 0) & (points % grid == 0)
    if checkpoints is not None:
        at_checkpoint = xp.any(points[:, None] == checkpoints[None, :], axis=1)
        legal = legal | ((points >= 0) & at_checkpoint)
    return xp.where(legal, int(Reason.OK), int(Reason.NOT_A_RESUME_POINT))


def layout(spec: CacheSpec, contract: ReadContract) -> tuple[str, ...]:
    """Layer 2: what the read does not accept; empty if it accepts the spec.

    Args:
      spec: what is to be cached.
      contract: the read that will run.

    Returns:
      One sentence per refused plane.
    """
    refusals = [
        f"{pool.name}: {text}" for pool in spec.pools for text in _unusable(spec, pool)
    ]
    for pool in spec.pools:
        if RULES[pool.form].read is Read.NONE:
            continue
        entry = pool.entry
        read = {plane.name for plane in (*entry.key_planes, *entry.value_planes)}
        where = f"{pool.name}, read '{contract.name}'"
        if not entry.key_planes:
            names = [plane.name for plane in entry.planes]
            refusals.append(
                f"{where}: nothing is the key of planes {names}; name one 'k', or say "
                "which make the key"
            )
        for plane in entry.planes:
            refusal = contract.refusal(dtype=plane.dtype, dim=plane.dim)
            if plane.name not in read | entry.scale_planes:
                refusal = "it is neither key, value nor scale"
            elif plane.name in entry.scale_planes:
                refusal = None
            if refusal:
                refusals.append(f"{where}, plane {plane.name}: {refusal}")
    return tuple(refusals)


def _unusable(spec: CacheSpec, pool: PoolSpec):
    """Why a pool could never hold what a model gives; nothing if it can."""
    for plane in pool.entry.planes:
        integers = named_dtype(plane.dtype).kind in "iub"
        coarse = integers or element_bits(plane.dtype) < 8
        if coarse and plane.scale is None and plane.name not in pool.entry.scale_planes:
            yield (
                f"plane {plane.name} of dtype {plane.dtype} has no scales and would "
                "lose nearly everything; name a plane of scales, or use a wider dtype"
            )
    group = spec.groups[pool.group]
    parts = {spec.pools[number].part: spec.pools[number] for number in group.pools}
    projected = pool.part == Part.INDEX and Part.INDEX_RAW not in parts
    if projected and pool.entry_tokens > 1:
        entries = parts.get(Part.ENTRIES)
        if entries is None or entries.entry_tokens != pool.entry_tokens:
            yield (
                f"keys of ratio {pool.entry_tokens} without raw rows are projected "
                "from the entry, and the layer has no entries of that ratio; give the "
                "layout of the raw rows that are pooled"
            )


def facts(
    table: "StateTable | Places | Columns",
    ids: Array,
    epochs: Array,
    *,
    form: Form,
    version: Array,
    first: Array,
    provenance: Array | int = Provenance.EXACT,
    writable: bool = False,
) -> Array:
    """Layer 3, first half: does each claimed block still hold what was claimed?

    Args:
      table: facts of the pool; NumPy or JAX leaves like the other arguments.
      ids: ``[...]`` int32 claimed blocks; outside ``[0, P)`` means none.
      epochs: ``[...]`` int32 epochs they were claimed with.
      form: label they must carry.
      version: int32, broadcastable: identity that must have written them.
      first: ``[...]`` int32 first token position they must hold.
      provenance: int32, broadcastable: the least ``codes.Provenance`` that counts.
      writable: whether a block still being written counts, as it does for the row
        that writes it.

    Returns:
      ``[...]`` int32 ``Reason``, the first that applies in the order in which the
      conditions stand here; ``OK`` or ``IN_OUTER_TIER`` for a good claim.
    """
    xp = ids.__array_namespace__()
    label, stage = _taken(table.form, ids), _taken(table.stage, ids)
    outer = xp.zeros(label.shape, bool)
    for away in (form for form, rule in RULES.items() if not rule.resident):
        outer = outer | (label == int(away))
    labelled = ((label == int(form)) | outer) & (_taken(table.first, ids) == first)
    tests = (
        (Reason.NOT_RETAINED, _inside(table, ids)),
        (Reason.EVICTED, _taken(table.epoch, ids) == epochs),
        (Reason.VERSION_CHANGED, _taken(table.version, ids) == version),
        (Reason.APPROXIMATE, _taken(table.provenance, ids) <= provenance),
        (Reason.WRONG_FORM, labelled),
        (Reason.QUARANTINED, stage != int(Stage.QUARANTINED)),
        (Reason.IN_OUTER_TIER, ~outer),
        (Reason.NOT_SEALED, _done(stage, writable)),
    )
    reason = xp.zeros(ids.shape, xp.int32)
    for code, holds in reversed(tests):
        reason = xp.where(holds, reason, xp.int32(code))
    return reason


def readable(
    table: "StateTable | Places | Columns",
    ids: Array,
    epochs: Array,
    *,
    form: Form,
    version: Array,
    first: Array,
    provenance: Array | int = Provenance.EXACT,
    writable: bool = False,
) -> Array:
    """``facts(...) == Reason.OK``, without finding out why not.

    Args and returns: as :func:`facts`, but ``[...]`` bool.
    """
    good = _inside(table, ids)
    # As NumPy indexes, so that not every lookup converts them again.
    ids = ids.astype(int)
    good &= _taken(table.epoch, ids) == epochs
    good &= _taken(table.first, ids) == first
    # To look up is what costs.  Where many claims are alike, all blocks are tested for
    # what the claims have in common before any is looked up.
    alike = getattr(version, "ndim", 0) == getattr(provenance, "ndim", 0) == 0
    many = alike and 4 * ids.size >= table.stage.shape[0]
    common = table.stage, table.form, table.version, table.provenance
    if not many:
        common = (_taken(column, ids) for column in common)
    stage, label, writer, least = common
    # The own label is resident and a finished block is not in quarantine: these two
    # stand for four reasons.
    sound = _done(stage, writable) & (label == int(form))
    sound = sound & (writer == version) & (least <= provenance)
    return good & (_taken(sound, ids) if many else sound)


def _inside(table, ids: Array) -> Array:
    # Negative ones become large.
    return ids.astype(np.uint32) < table.stage.shape[0]


def _taken(column: Array, ids: Array) -> Array:
    """One fact of each claimed block; ids out of range give that of another one."""
    # Not wrapped: NumPy would count down from them, once around for every step.
    return column.take(ids, mode="clip")


def _done(stage: Array, writable: bool) -> Array:
    # Plain ints: NumPy compares with an enum's member in 64 bits, four times slower.
    done = stage == int(Stage.SEALED)
    return done | (stage == int(Stage.WRITING)) if writable else done


def missing(pool: PoolSpec, points: Array, covered: Array) -> Array:
    """Layer 3, second half: how many blocks that one form requires are not held?

    Args:
      pool: form, geometry and block size.
      points: ``[K]`` int32 candidate resume points; negative ones are padding, of
        which the answer means nothing.
      covered: for a form of ranges, ``[N]`` int32: how many of its leading token
        positions block ``n`` holds, ``block_tokens`` for a whole one.  For a
        checkpoint form, ``[K]`` bool: is there a checkpoint at exactly that point.

    Returns:
      ``[K]`` int32.  A block that holds a part counts where more than it is required.
    """
    xp = points.__array_namespace__()
    if RULES[pool.form].exact:
        return ((points > 0) & ~covered).astype(xp.int32)
    lo, hi = required(pool.form, pool.geometry, points)
    size, count = pool.block_tokens, covered.shape[0]
    holes = xp.concatenate(
        [xp.zeros(1, xp.int32), xp.cumsum(covered < size, dtype=xp.int32)]
    )
    start, stop = lo // size, hi // size
    whole = xp.take(holes, stop, mode="clip")
    whole = whole - xp.take(holes, start, mode="clip")
    padded = xp.concatenate([covered, xp.full(1, size, covered.dtype)])
    part = xp.take(padded, stop, mode="clip") < hi - stop * size
    beyond = xp.maximum(-(-hi // size) - xp.maximum(start, count), 0)
    return xp.where(lo < hi, whole + part + beyond, 0)


def satisfied(pool: PoolSpec, points: Array, covered: Array) -> Array:
    """Layer 3, second half: is all held that one form requires?

    Args:
      pool: form, geometry and block size.
      points: ``[K]`` int32 candidate resume points; negative ones are padding.
      covered: as for :func:`missing`.

    Returns:
      ``[K]`` bool.
    """
    return (points >= 0) & (missing(pool, points, covered) == 0)


def alignment(spec: CacheSpec, pool: int, ids: Array, contract: ReadContract) -> Array:
    """Layer 4: do the blocks' addresses and lengths obey the read's rules?

    The address of block ``i`` in a plane is ``i`` times the plane's block length,
    computed modulo the alignment so that it is exact in 32 bits.

    Args:
      spec: what is cached.
      pool: index of the pool.
      ids: ``[...]`` int32 block ids.
      contract: the read that will run.

    Returns:
      ``[...]`` int32: ``Reason.OK`` or ``Reason.MISALIGNED``.
    """
    xp = ids.__array_namespace__()
    unit = contract.block_alignment
    wrong = xp.zeros(ids.shape, bool)
    for plane in spec.pools[pool].entry.planes:
        length = spec.pools[pool].block_entries * plane.nbytes
        address = (ids % unit) * (length % unit) % unit
        wrong = wrong | (address != 0) | (length % unit != 0)
    return xp.where(wrong, int(Reason.MISALIGNED), int(Reason.OK))


def intersection(
    spec: CacheSpec,
    points: Array,
    covered: Sequence[Array],
) -> tuple[Array, Array]:
    """Layer 3, whole: the points at which *every* form has all it requires.

    Args:
      spec: pools, in the order of ``covered``.
      points: ``[K]`` int32.
      covered: per pool, as for :func:`satisfied`.

    Returns:
      ``[K]`` bool over all pools, and ``[G, K]`` bool per pool.
    """
    xp = points.__array_namespace__()
    each = xp.stack(
        [
            satisfied(pool, points, held)
            for pool, held in zip(spec.pools, covered, strict=True)
        ]
    )
    return xp.all(each, axis=0), each
