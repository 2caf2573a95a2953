"""Bounded replays: shorter than the exact one, and marked for good.

An exact replay goes as far back as a lost row depends on, layer upon layer.  For many
stacked windows that is far, and running the last few tokens alone gives rows that are
nearly right.  Who wants that asks for it; all that comes of it is ``APPROXIMATE``, is
kept under a key of its own, and is never met by an exact reader.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from hybridcache_jax.codes import Provenance, Verdict
from hybridcache_jax.cost import CostModel
from hybridcache_jax.forms import RULES, Remedy, required
from hybridcache_jax.host_facts import HostFacts
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.ways import Alternative


def bounded(
    spec: CacheSpec,
    facts: HostFacts,
    plan: ResumePlan,
    version: int,
    tokens: int,
    cost: CostModel,
) -> ResumePlan:
    """A plan that replays ``tokens`` tokens where its exact replay is longer.

    It resumes at the deepest point at which the history is held and another form is
    not.  Every position that a form requires there is run again, also where that is
    more than ``tokens``; what those rows depend on below is not.  Models with recurrent
    layers have no such replay: a state needs its checkpoint.

    Args:
      spec: pools and layers.
      facts: of this moment.
      plan: the plan that was solved.
      version: id of the plan's identity in the facts.
      tokens: least tokens to replay.
      cost: rates.

    Returns:
      The plan itself where that is no cheaper, or where the history has to be loaded
      first.
    """
    point = plan.lost_length
    start = max(point - tokens, 0)
    for pool in spec.pools:
        if RULES[pool.form].remedy is Remedy.REPLAY:
            if RULES[pool.form].exact:
                return plan
            lo, hi = required(pool.form, pool.geometry, point)
            start = min(start, lo if lo < hi else point)
    seconds = cost.seconds(plan.num_tokens - start)
    if seconds >= plan.seconds or not _history_here(spec, facts, plan, version):
        return plan
    way = Alternative(
        Verdict.NEEDS_PARTIAL_RECOMPUTE,
        point,
        start,
        (),
        plan.num_tokens - start,
        0,
        0,
        seconds,
    )
    return dataclasses.replace(
        marked(plan),
        verdict=way.verdict,
        length=point,
        start=start,
        kept=(),
        seconds=seconds,
        bytes_to_load=0,
        bytes_from_store=0,
        loads=tuple(np.zeros(0, np.int32) for _ in spec.pools),
        alternatives=(way, *plan.alternatives),
    )


def cheapest(plans: Sequence[ResumePlan]) -> ResumePlan:
    """The plan that costs the least, of equals the first, with the others' ways.

    Args:
      plans: for one prompt, the exact one first.
    """
    best = min(plans, key=lambda plan: plan.seconds)
    if best is plans[0]:
        return best
    chosen = best.alternatives[0]
    others = {way for plan in plans for way in plan.alternatives} - {chosen}
    ways = chosen, *sorted(others, key=lambda way: (way.seconds, way.verdict))
    return dataclasses.replace(best, alternatives=ways)


def _history_here(
    spec: CacheSpec, facts: HostFacts, plan: ResumePlan, version: int
) -> bool:
    """Whether all that no replay rebuilds can be read now, up to ``lost_length``."""
    for number, pool in enumerate(spec.pools):
        if RULES[pool.form].remedy is not Remedy.REPLAY:
            count = plan.lost_length // pool.block_tokens
            first = np.arange(count, dtype=np.int32) * np.int32(pool.block_tokens)
            reasons = facts.reasons(
                number,
                plan.claims.blocks[number][:count],
                plan.claims.epochs[number][:count],
                np.int32(version),
                first,
                plan.provenance,
            )
            if reasons.any():
                return False
    return True


def marked(plan: ResumePlan) -> ResumePlan:
    """The plan as one whose row and whatever it writes are approximate."""
    key = dataclasses.replace(plan.key, provenance=Provenance.APPROXIMATE)
    return dataclasses.replace(plan, key=key)
