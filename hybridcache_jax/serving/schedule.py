"""What runs next, and the blocks that it takes: by positions alone.

Prompts run in chunks whose ends lie at absolute multiples of the largest chunk, so
that a resumed prompt and a cold one share their schedule.
"""

from collections.abc import Sequence as Listed

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.forms import RULES
from hybridcache_jax.serving.sequence import Sequence


def fits(plan: CapacityPlan, lengths: Listed[int]) -> bool:
    """Whether sequences of these lengths can all run to their ends."""
    return all(
        sum(-(-length // pool.block_tokens) for length in lengths) <= count
        for pool, count in zip(plan.spec.pools, plan.blocks, strict=True)
        if RULES[pool.form].grows
    )


def next_tokens(plan: CapacityPlan, chunk: int, seq: Sequence) -> list[int]:
    """The tokens that a sequence runs in its next step.

    Args:
      plan: the plan of the cache.
      chunk: tokens of the largest chunk.
      seq: the sequence.
    """
    stop = seq.position - seq.position % chunk + chunk
    end = min(stop, len(seq.tokens))
    exact = [pool.form for pool in plan.spec.pools if RULES[pool.form].exact]
    if exact:
        # A state becomes a checkpoint only where a step ends.
        end = plan.policy(exact[0]).step_end(
            seq.position, end, grid=plan.spec.grid, prompt=seq.lease.plan.num_tokens
        )
    return seq.tokens[seq.position : end]


def new_blocks(
    plan: CapacityPlan, ready: Listed[Sequence], counts: Listed[int]
) -> list[int]:
    """Per pool, blocks that a step begins.

    Args:
      plan: the plan of the cache.
      ready: the rows of the step.
      counts: tokens that each of them runs.
    """
    wanted = []
    for pool in plan.spec.pools:
        size = pool.block_tokens
        needs = [
            -(-(seq.position + count) // size) - seq.position // size
            for seq, count in zip(ready, counts, strict=True)
        ]
        # Of a state only the one after the step is written.
        one = RULES[pool.form].exact
        wanted.append(sum(min(need, 1) if one else need for need in needs))
    return wanted
