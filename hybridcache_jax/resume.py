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
import itertools

import jax

from hybridcache_jax._typing import AnyArray, Array
from hybridcache_jax.codes import Reason, Verdict
from hybridcache_jax.cost import CostModel
from hybridcache_jax.forms import RULES, Remedy
from hybridcache_jax.replay import replay_start
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.validate import boundary, intersection, missing


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Holdings:
    """What one request's claims come to, per pool.

    Attributes:
      device: per pool, readable now; as ``validate.satisfied`` takes it.
      anywhere: per pool, readable now or after loading from an outer tier; None if no
        outer tier holds anything, which spares work.
    """

    device: tuple[AnyArray, ...]
    anywhere: tuple[AnyArray, ...] | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Solution:
    """The solver's answer; ``[]`` int32 unless said otherwise.

    Attributes:
      verdict: ``codes.Verdict``.
      point: the resume point ``p``; 0 for a full recompute.
      start: first position to run: ``p``, or ``k < p`` for a replay of ``k..p-1``.
      bytes_to_load: ``[]`` float32, bytes that must be loaded first.
      device_point: largest point whose forms are all on the device.
      anywhere_point: the same, outer tiers included.
      replay_point: point of the cheapest replay that loads nothing; 0 if there is none.
      replay_start: where that replay starts.
      load_point: point of the cheapest way that loads and replays nothing; 0 if none.
      load_replay_point: point of the cheapest way that loads and then replays; 0 if
        there is none.
      load_replay_start: where that replay starts.
      history_point: how deep the forms alone go that no replay rebuilds, outer tiers
        included.
      lost_point: largest point at which they are held, and another form is lost.
      per_pool: ``[G, K]`` bool, which pool has all it requires on the device.
    """

    verdict: Array
    point: Array
    start: Array
    bytes_to_load: Array
    device_point: Array
    anywhere_point: Array
    replay_point: Array
    replay_start: Array
    load_point: Array
    load_replay_point: Array
    load_replay_start: Array
    history_point: Array
    lost_point: Array
    per_pool: Array


@dataclasses.dataclass(frozen=True)
class _Way:
    """One way that loads; ``seconds`` are those saved, ``-inf`` if there is none."""

    seconds: Array
    point: Array
    start: Array
    nbytes: Array


def solve(
    spec: CacheSpec,
    points: Array,
    num_tokens: Array,
    holdings: Holdings,
    *,
    checkpoints: Array | None = None,
    checkpoints_away: Array | None = None,
    cost: CostModel = CostModel(),
) -> Solution:
    """Finds the cheapest proved way to resume.

    Of ways that cost the same, those that load nothing come first, then those that
    replay nothing, then the point that stands last in ``points``.  Seconds are
    compared in float32, as differences from the best way that loads nothing, so that
    long prompts lose no precision.

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
    loadable, reachable = ready, whole
    if holdings.anywhere is not None:
        loadable, each = intersection(spec, points, anywhere)
        reachable = _history_held(spec, each, xp)

    here = checkpoints
    if checkpoints is not None and checkpoints_away is not None:
        here = _only(checkpoints, ~xp.any(checkpoints_away, axis=0))
    replayable = allowed & whole & ~ready
    starts = xp.where(replayable, replay_start(spec, points, here), 0)
    device_point = _deepest(points, allowed & ready)
    best_start = xp.max(starts, initial=0)
    # Among replays from the same start the deepest point reads the most.
    replay_point = xp.where(
        best_start > 0, _deepest(points, (starts == best_start) & replayable), 0
    )

    base = xp.maximum(device_point, best_start)
    load = load_replay = _no_way(points)
    if holdings.anywhere is not None:
        load, load_replay = _ways_that_load(
            spec,
            points,
            holdings.device,
            (allowed & loadable, allowed & reachable),
            (checkpoints, checkpoints_away),
            base,
            cost,
        )
    wait = xp.maximum(load.seconds, load_replay.seconds) > 0
    both = load_replay.seconds > load.seconds
    replay = ~wait & (best_start > device_point)

    def choose(now, replayed, loaded, loaded_and_replayed):
        waited = xp.where(both, loaded_and_replayed, loaded)
        return xp.where(wait, waited, xp.where(replay, replayed, now))

    point = choose(device_point, replay_point, load.point, load_replay.point)
    start = choose(device_point, best_start, load.start, load_replay.start)
    verdict = xp.where(
        point > 0, int(Verdict.RESUMABLE), int(Verdict.NEEDS_FULL_RECOMPUTE)
    )
    verdict = xp.where(replay, int(Verdict.NEEDS_PARTIAL_RECOMPUTE), verdict)
    verdict = xp.where(wait, int(Verdict.NEEDS_IO), verdict)
    return Solution(
        verdict=verdict,
        point=point,
        start=start,
        bytes_to_load=xp.where(
            wait, xp.where(both, load_replay.nbytes, load.nbytes), xp.float32(0)
        ),
        device_point=device_point,
        anywhere_point=_deepest(points, allowed & loadable),
        replay_point=replay_point,
        replay_start=best_start,
        load_point=load.point,
        load_replay_point=load_replay.point,
        load_replay_start=load_replay.start,
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
        bytes_to_load=no_bytes,
        device_point=point,
        anywhere_point=point,
        replay_point=none,
        replay_start=none,
        load_point=none,
        load_replay_point=none,
        load_replay_start=none,
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
      cost: one model for all.

    Returns:
      A :class:`Solution`, every array with a leading axis ``B``.
    """
    points = jax.numpy.asarray(points)

    def one(num_tokens, holdings, checkpoints, away):
        return solve(
            spec,
            points,
            num_tokens,
            holdings,
            checkpoints=checkpoints,
            checkpoints_away=away,
            cost=cost,
        )

    return jax.vmap(one)(num_tokens, holdings, checkpoints, checkpoints_away)


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


def _ways_that_load(spec, points, device, candidates, checkpoints, base, cost):
    """The cheapest way that loads, and the cheapest that then replays.

    Args:
      spec: pools and layers.
      points: ``[K]`` int32.
      device: per pool, what is held on the device.
      candidates: ``[K]`` bool twice: points whose forms are all held somewhere, and
        those where that is so of the forms that a replay cannot rebuild.
      checkpoints: their positions, and which lie in an outer tier.
      base: where the best way that loads nothing starts.
      cost: rates.
    """
    xp = points.__array_namespace__()
    loadable, reachable = candidates
    history = bounded = xp.zeros(points.shape, xp.float32)
    for pool, held in zip(spec.pools, device, strict=True):
        blocks = missing(pool, points, held).astype(xp.float32)
        nbytes = blocks * xp.float32(pool.block_bytes)
        if RULES[pool.form].remedy is Remedy.REPLAY:
            bounded = bounded + nbytes
        else:
            history = history + nbytes

    def best(mask, starts, nbytes):
        return _cheapest(points, mask & (nbytes > 0), starts, nbytes, base, cost)

    load = best(loadable, points, history + bounded)
    load_replay = _no_way(points)
    for positions, per_checkpoint in _choices_of_checkpoints(spec, *checkpoints):
        starts = replay_start(spec, points, positions)
        nbytes = history
        if per_checkpoint is not None:
            rank = xp.searchsorted(positions, starts, side="left")
            nbytes = nbytes + xp.take(per_checkpoint, rank, mode="clip")
        way = best(reachable & (starts > 0), starts, nbytes)
        better = way.seconds > load_replay.seconds
        load_replay = _Way(
            *(
                xp.where(better, getattr(way, name), getattr(load_replay, name))
                for name in ("seconds", "point", "start", "nbytes")
            )
        )
    return load, load_replay


def _choices_of_checkpoints(spec: CacheSpec, checkpoints, away):
    """Yields checkpoints to start from, and the bytes of each: latest is then best.

    One choice for each set of pools whose checkpoints may be loaded: within a choice
    a later checkpoint is worth the more, between them the bytes decide.
    """
    if checkpoints is None or away is None or checkpoints.shape[0] == 0:
        yield checkpoints, None
        return
    xp = checkpoints.__array_namespace__()
    sizes = [pool.block_bytes for pool in spec.pools if RULES[pool.form].exact]
    for loaded in itertools.product((False, True), repeat=len(sizes)):
        allowed = ~xp.any(away & ~xp.asarray(loaded)[:, None], axis=0)
        nbytes = away * xp.asarray(sizes, xp.float32)[:, None]
        order = xp.argsort(xp.where(allowed, checkpoints, 0))
        yield (
            xp.take(xp.where(allowed, checkpoints, 0), order),
            xp.take(xp.sum(nbytes, axis=0), order),
        )


def _only(checkpoints: Array, allowed: Array) -> Array:
    """The checkpoints that are allowed, ascending; zeros in front for the others."""
    xp = checkpoints.__array_namespace__()
    return xp.sort(xp.where(allowed, checkpoints, 0))


def _cheapest(points, mask, starts, nbytes, base, cost: CostModel) -> _Way:
    """The best of one kind of way; of equals the last."""
    xp = points.__array_namespace__()
    per_token = xp.asarray(cost.seconds_per_token, xp.float32)
    per_byte = xp.asarray(cost.seconds_per_byte, xp.float32)
    # Differences of positions, not of total costs: exact in any float width.
    seconds = (starts - base).astype(xp.float32) * per_token - nbytes * per_byte
    none = xp.zeros(1, xp.int32)
    seconds = xp.concatenate(
        [xp.where(mask, seconds, -xp.inf)[::-1], xp.full(1, -xp.inf, xp.float32)]
    )
    at = xp.argmax(seconds)

    def pick(array):
        return xp.take(xp.concatenate([array[::-1], none.astype(array.dtype)]), at)

    there = seconds[at] > -xp.inf
    return _Way(
        seconds[at],
        xp.where(there, pick(points), 0),
        xp.where(there, pick(starts), 0),
        pick(nbytes),
    )


def _no_way(points: Array) -> _Way:
    xp = points.__array_namespace__()
    zero = xp.zeros((), xp.int32)
    return _Way(xp.float32(-xp.inf), zero, zero, xp.zeros((), xp.float32))
