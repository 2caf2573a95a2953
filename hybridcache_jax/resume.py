"""The resume solver: where can this prefix be resumed now, and at what cost?

For every candidate resume point and every form: is all that is required held, on the
device, or on the device and in an outer tier; and what would be right after a replay.
The usable points of a level are a set, the intersection over forms.  Four kinds of
way follow: resume as it stands, replay first, load first, load and then replay.  The
cheapest one that is proved wins; a run of the whole prompt always is one of them.

All of it is array arithmetic in the namespace of its arguments: the same function
runs on the host (NumPy), inside a compiled step, and under ``jax.vmap`` for a
batch of requests (:func:`solve_batch`).
"""

import dataclasses

import jax

from hybridcache_jax._typing import AnyArray, Array
from hybridcache_jax.codes import Reason, Verdict
from hybridcache_jax.cost import CostModel
from hybridcache_jax.forms import RULES, Remedy
from hybridcache_jax.origins import Origins, origins
from hybridcache_jax.resume_loads import no_way, ways_that_load
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.validate import boundary, intersection


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Holdings:
    """What one request's claims come to, per pool.

    Attributes:
      device: per pool, readable now; as ``validate.satisfied`` takes it.
      anywhere: per pool, readable now or after loading from an outer tier; None if no
        outer tier holds anything, which spares work.
      near: per pool, readable now or after loading from host memory; None if no block
        lies in a store only, which spares work.
    """

    device: tuple[AnyArray, ...]
    anywhere: tuple[AnyArray, ...] | None = None
    near: tuple[AnyArray, ...] | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Solution:
    """The solver's answer; ``[]`` int32 unless said otherwise.

    Attributes:
      verdict: ``codes.Verdict``.
      point: the resume point ``p``; 0 for a full recompute.
      start: first position to run: ``p``, or ``k < p`` for a replay of ``k..p-1``.
      base: the pools that the replay keeps, by their place in ``replay.bases``; 0 where
        nothing is replayed.
      bytes_to_load: ``[]`` float32, bytes that must be loaded first.
      device_point: largest point whose forms are all on the device.
      anywhere_point: the same, outer tiers included.
      replay_point: point of the cheapest replay that loads nothing; 0 if none starts
        after ``device_point``.
      replay_start: where that replay starts.
      replay_base: what it keeps.
      load_point: point of the cheapest way that loads and replays nothing; 0 if none
        starts after what needs no load.
      load_replay_point: point of the cheapest way that loads and then replays; 0 if
        none starts after what needs no load.
      load_replay_start: where that replay starts.
      load_replay_base: what it keeps.
      history_point: how deep the forms alone go that no replay rebuilds, outer tiers
        included.
      lost_point: largest point at which they are held, and another form is lost.
      per_pool: ``[G, K]`` bool, which pool has all it requires on the device.
    """

    verdict: Array
    point: Array
    start: Array
    base: Array
    bytes_to_load: Array
    device_point: Array
    anywhere_point: Array
    replay_point: Array
    replay_start: Array
    replay_base: Array
    load_point: Array
    load_replay_point: Array
    load_replay_start: Array
    load_replay_base: Array
    history_point: Array
    lost_point: Array
    per_pool: Array


def solve(
    spec: CacheSpec,
    points: Array,
    num_tokens: Array,
    holdings: Holdings,
    *,
    checkpoints: Array | None = None,
    checkpoints_away: Array | None = None,
    checkpoints_stored: Array | None = None,
    cost: CostModel = CostModel(),
) -> Solution:
    """Finds the cheapest proved way to resume.

    Of ways that cost the same, those that load nothing come first, then those that
    replay nothing, then the point that stands last in ``points``, then the base of the
    fewest pools, whether or not each has something to keep at the start.

    Args:
      spec: pools and layers.
      points: ``[K]`` int32 candidates, ascending: grid points and checkpoint
        positions.  Those that layer 1 refuses do not count; negative ones are padding.
      num_tokens: ``[]`` int32, tokens of the prompt; at least one position is run,
        so only points up to ``num_tokens - 1`` count.
      holdings: what the claims come to.
      checkpoints: ``[M]`` int32 ascending, positions at which all recurrent layers
        have a checkpoint; None for models without.
      checkpoints_away: ``[E, M]`` bool, for each checkpoint pool in the order of the
        spec: does that checkpoint lie in an outer tier?  None if all are on the device.
      checkpoints_stored: ``[E, M]`` bool, does it lie in a store only?  None if none.
      cost: rates by which waiting, replaying and recomputing are compared.

    Returns:
      A :class:`Solution`.  Point 0 needs nothing, so there always is one.

    Raises:
      ValueError: if checkpoints lie in an outer tier of which ``holdings`` say nothing.
    """
    if checkpoints_away is not None and holdings.anywhere is None:
        raise ValueError(
            "checkpoints_away says that checkpoints lie in an outer tier, but "
            "holdings.anywhere is None; give what is held there, too."
        )
    xp = points.__array_namespace__()
    anywhere = holdings.device if holdings.anywhere is None else holdings.anywhere
    allowed = _resume_points(spec, points, anywhere) & (points <= num_tokens - 1)
    ready, per_pool = intersection(spec, points, holdings.device)
    whole = _history_held(spec, per_pool, xp)
    loadable, reachable, each = ready, whole, per_pool
    if holdings.anywhere is not None:
        loadable, each = intersection(spec, points, anywhere)
        reachable = _history_held(spec, each, xp)

    device_point = _deepest(points, allowed & ready)
    sources = origins(
        spec,
        points,
        allowed,
        (holdings.device, holdings.near, each),
        checkpoints,
        checkpoints_away,
        checkpoints_stored,
    )
    best_start, replay_point, replay_base = _latest_replay(
        points, allowed & whole & ~ready, sources, device_point
    )
    load = load_replay = no_way(points)
    if holdings.anywhere is not None:
        load, load_replay = ways_that_load(
            spec,
            points,
            holdings.device,
            holdings.near,
            (allowed & loadable, allowed & reachable),
            sources,
            xp.maximum(device_point, best_start),
            cost,
        )
    wait = xp.maximum(load.seconds, load_replay.seconds) > 0
    both = load_replay.seconds > load.seconds
    replay = ~wait & (best_start > 0)

    def choose(now, replayed, loaded, loaded_and_replayed):
        waited = xp.where(both, loaded_and_replayed, loaded)
        return xp.where(wait, waited, xp.where(replay, replayed, now))

    point = choose(device_point, replay_point, load.point, load_replay.point)
    start = choose(device_point, best_start, load.start, load_replay.start)
    base = choose(xp.int32(0), replay_base, xp.int32(0), load_replay.base)
    verdict = xp.where(
        point > 0, int(Verdict.RESUMABLE), int(Verdict.NEEDS_FULL_RECOMPUTE)
    )
    verdict = xp.where(replay, int(Verdict.NEEDS_PARTIAL_RECOMPUTE), verdict)
    verdict = xp.where(wait, int(Verdict.NEEDS_IO), verdict)
    return Solution(
        verdict=verdict,
        point=point,
        start=start,
        base=base,
        bytes_to_load=xp.where(
            wait, xp.where(both, load_replay.nbytes, load.nbytes), xp.float32(0)
        ),
        device_point=device_point,
        anywhere_point=_deepest(points, allowed & loadable),
        replay_point=replay_point,
        replay_start=best_start,
        replay_base=replay_base,
        load_point=load.point,
        load_replay_point=load_replay.point,
        load_replay_start=load_replay.start,
        load_replay_base=load_replay.base,
        history_point=_deepest(points, allowed & reachable),
        lost_point=_deepest(points, allowed & reachable & ~loadable),
        per_pool=per_pool,
    )


def ready_at(spec: CacheSpec, point: Array) -> Solution:
    """What :func:`solve` answers for one point that lacks nothing.

    Args:
      spec: pools and layers.
      point: ``[]`` int32; all its forms are on the device.
    """
    xp = point.__array_namespace__()
    none, no_bytes = xp.zeros((), xp.int32), xp.zeros((), xp.float32)
    some = int(Verdict.RESUMABLE), int(Verdict.NEEDS_FULL_RECOMPUTE)
    return Solution(
        verdict=xp.where(point > 0, *some),
        point=point,
        start=point,
        base=none,
        bytes_to_load=no_bytes,
        device_point=point,
        anywhere_point=point,
        replay_point=none,
        replay_start=none,
        replay_base=none,
        load_point=none,
        load_replay_point=none,
        load_replay_start=none,
        load_replay_base=none,
        history_point=point,
        lost_point=none,
        per_pool=xp.ones((len(spec.pools), 1), bool),
    )


def solve_batch(
    spec: CacheSpec,
    points: Array,
    num_tokens: Array,
    holdings: Holdings,
    *,
    checkpoints: Array | None = None,
    checkpoints_away: Array | None = None,
    checkpoints_stored: Array | None = None,
    cost: CostModel = CostModel(),
) -> Solution:
    """:func:`solve` for ``B`` requests at once, on JAX arrays.

    Args:
      spec: pools and layers.
      points: ``[K]`` int32, the same for all requests; give as many as the longest
        needs, those beyond a request's ``num_tokens`` do not count.
      num_tokens: ``[B]`` int32.
      holdings: as for :func:`solve`, every array with a leading axis ``B``.
      checkpoints: ``[B, M]`` int32, or None.  Rows are padded in front with 0.
      checkpoints_away: ``[B, E, M]`` bool, or None.
      checkpoints_stored: likewise.
      cost: one model for all.

    Returns:
      A :class:`Solution`, every array with a leading axis ``B``.
    """
    points = jax.numpy.asarray(points)

    def one(num_tokens, holdings, checkpoints, away, stored):
        return solve(
            spec,
            points,
            num_tokens,
            holdings,
            checkpoints=checkpoints,
            checkpoints_away=away,
            checkpoints_stored=stored,
            cost=cost,
        )

    return jax.vmap(one)(
        num_tokens, holdings, checkpoints, checkpoints_away, checkpoints_stored
    )


def _latest_replay(
    points: Array, replayable: Array, sources: tuple[Origins, ...], after: Array
) -> tuple[Array, Array, Array]:
    """Start, resume point and base of the replay that runs the fewest tokens.

    Zeros if none starts after ``after``: that would run more than a row resumed there.
    Among replays from the same start the deepest point reads the most; then the one
    that keeps the fewest pools.
    """
    xp = points.__array_namespace__()
    best_start = best_point = best = xp.zeros((), xp.int32)
    for number, source in enumerate(sources):
        starts = source.at_hand()
        starts = xp.where(replayable & (starts > after), starts, 0)
        start = xp.max(starts, initial=0)
        point = xp.where(start > 0, _deepest(points, (starts == start) & replayable), 0)
        deeper = (start == best_start) & (point > best_point)
        take = (start > best_start) | deeper
        best_start = xp.where(take, start, best_start)
        best_point = xp.where(take, point, best_point)
        best = xp.where(take, xp.int32(number), best)
    return best_start, best_point, best


def _deepest(points: Array, mask: Array) -> Array:
    xp = points.__array_namespace__()
    return xp.max(xp.where(mask, points, 0), initial=0)


def _resume_points(spec: CacheSpec, points: Array, anywhere) -> Array:
    """Layer 1: grid points, and points where every checkpoint form has one."""
    legal = boundary(points, spec.grid) == Reason.OK
    taken = [
        held
        for pool, held in zip(spec.pools, anywhere, strict=True)
        if RULES[pool.form].exact
    ]
    if not taken:
        return legal
    xp = points.__array_namespace__()
    return legal | ((points >= 0) & xp.all(xp.stack(taken), axis=0))


def _history_held(spec: CacheSpec, per_pool: Array, xp) -> Array:
    """Points at which every form is held that a replay cannot rebuild."""
    held = xp.ones(per_pool.shape[1], bool)
    for pool, each in zip(spec.pools, per_pool, strict=True):
        if RULES[pool.form].remedy is not Remedy.REPLAY:
            held = held & each
    return held
