"""How many blocks of a pool rows and stored prefixes need."""

from hybridcache_jax.forms import RULES
from hybridcache_jax.retention import (
    Policies,
    Retention,
    policy_of,
    stored_policy,
)
from hybridcache_jax.spec import CacheSpec, PoolSpec


def minimum_blocks(
    pool: PoolSpec,
    max_sequences: int,
    max_length: int,
    max_chunk: int,
    rollback: int = 0,
) -> int:
    """Fewest blocks with which a pool can serve ``max_sequences`` rows.

    Room for a chunk is made while the blocks of the chunk before are still pinned, so
    a bounded form needs its window and two chunks, and a state itself three times.
    What a row holds back, for a rollback or for its last grid point, comes on top.

    Args:
      pool: the pool.
      max_sequences: rows.
      max_length: most tokens of a row.
      max_chunk: most tokens of a row in one step.
      rollback: tokens behind its length at which a row holds a bounded form.
    """
    whole = -(-max_length // pool.block_tokens)
    if RULES[pool.form].grows:
        return whole + max_sequences - 1
    if RULES[pool.form].exact:
        return max_sequences * min(whole, 3 + -(-rollback // pool.block_tokens))
    tokens = 2 * max_chunk + rollback
    return max_sequences * min(whole, live_blocks(pool, tokens))


def live_blocks(pool: PoolSpec, tokens: int) -> int:
    """Most blocks that a bounded form and ``tokens`` tokens behind it can touch."""
    reach = RULES[pool.form].reach(pool.geometry)
    return -(-(reach + tokens) // pool.block_tokens) + 1


def stored_blocks(
    spec: CacheSpec, pool: PoolSpec, retention: Policies, tokens: int, length: int
) -> int:
    """Blocks of a pool for so many tokens of stored sequences of a length."""
    if RULES[pool.form].grows:
        return tokens // pool.block_tokens
    policy = stored_policy(spec, lambda form: policy_of(retention, form), pool.form)
    return policy.stored_blocks(pool, tokens, grid=spec.grid, length=length)


def held_back(spec: CacheSpec, policy: Retention) -> int:
    """Most tokens between a row's last grid point and its length, if that matters."""
    return spec.grid - 1 if policy.holds_back else 0
