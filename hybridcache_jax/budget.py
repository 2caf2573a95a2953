"""From a byte budget to a capacity plan: how many blocks every pool gets."""

import bisect
from collections.abc import Mapping

import jax

from hybridcache_jax._whole import whole
from hybridcache_jax.block_counts import held_back, minimum_blocks, stored_blocks
from hybridcache_jax.byte_sizes import format_bytes, parse_bytes
from hybridcache_jax.capacity import INT32_BYTES, INT32_MAX, CapacityPlan
from hybridcache_jax.forms import Form
from hybridcache_jax.retention import Retention, policies, policy_of
from hybridcache_jax.spec import CacheSpec


def plan_capacity(
    spec: CacheSpec,
    *,
    budget: int | str,
    max_sequences: int,
    max_length: int,
    max_chunk: int = 256,
    stored_tokens: int | None = None,
    stored_length: int | None = None,
    rollback: int = 0,
    retention: Retention | Mapping[Form, Retention] = Retention.every_block(),
    staging_blocks: int = 0,
    kernels: str = "auto",
    backend: str | None = None,
) -> CapacityPlan:
    """Divides a byte budget over the pools of a spec.

    Every pool first gets what live sequences need: one sequence of ``max_length``
    and one block for each other row in the growing pools, a full window, tail or
    state for every row in the bounded ones.  What is left goes to stored prefixes, so
    that all pools serve the same number of further tokens; a bounded pool gets the
    blocks that its retention policy keeps for so many.

    Args:
      spec: what is cached.
      budget: bytes, or text such as ``"8GiB"`` or ``"500MB"``.
      max_sequences: rows alive at once.
      max_length: most tokens of one sequence.
      max_chunk: most tokens of one row in one step.
      stored_tokens: tokens of stored prefixes to plan for, rounded up to the grid;
        None uses the whole budget.
      stored_length: tokens of a stored sequence, prompt and output, on average; None
        for ``max_length``.  Where sequences are shorter than that, pools under
        ``Retention.ends`` fill up sooner, and hits are replayed more often.
      rollback: tokens by which a row can be rewound below the furthest it stood,
        within what it ran itself; what the last step ran needs no margin.
      retention: at which resume points bounded forms are kept; one policy for all of
        them, or one for each form that is named.
      staging_blocks: blocks that are copied to or from an outer tier in one call; a
        ``PrefixCache`` with a tier needs at least one, 16 are plenty.  The budget pays
        for them on the device and in host memory (``CapacityPlan.staging_bytes``).
      kernels: ``"auto"`` reads with the backend's kernels where they accept a pool's
        layout and with XLA elsewhere (``CapacityPlan.kernel`` says which and why);
        ``"xla"`` never takes a kernel, ``"mosaic_tpu"`` and ``"mosaic_gpu"`` insist
        on it, ``"interpret"`` interprets the TPU kernels on any backend, slowly, for
        tests.  No GPU kernel has run on a GPU yet, so ``"auto"`` takes none.
      backend: None for JAX's default backend.

    Raises:
      ValueError: for a budget that cannot be read or does not fit, saying how many
        bytes the smallest plan needs; for a retention policy of a form that grows, or
        whose distance is no multiple of the grid.
    """
    size = parse_bytes(budget)
    # What is divided by or multiplied below; the plan checks the rest.
    max_length = whole("max_length", max_length, least=1)
    length = max_length
    if stored_length is not None:
        length = whole("stored_length", stored_length, least=1)
    if stored_tokens is not None:
        stored_tokens = whole("stored_tokens", stored_tokens)
    whole("max_sequences", max_sequences, least=1)
    whole("max_chunk", max_chunk, least=1)
    whole("rollback", rollback)
    backend = jax.default_backend() if backend is None else backend
    max_chunk = min(max_chunk, max_length)
    kept = policies(spec, retention)
    least = tuple(
        minimum_blocks(
            pool,
            max_sequences,
            max_length,
            max_chunk,
            rollback + held_back(spec, policy_of(kept, pool.form)),
        )
        for pool in spec.pools
    )

    def plan(grids: int) -> CapacityPlan:
        tokens = grids * spec.grid
        blocks = tuple(
            base + stored_blocks(spec, pool, kept, tokens, length)
            for base, pool in zip(least, spec.pools, strict=True)
        )
        return CapacityPlan(
            spec=spec,
            max_sequences=max_sequences,
            max_length=max_length,
            max_chunk=max_chunk,
            blocks=blocks,
            backend=backend,
            rollback=rollback,
            retention=kept,
            stored_tokens=tokens,
            stored_length=length,
            staging_blocks=staging_blocks,
            kernels=kernels,
        )

    if stored_tokens is None:
        # Index and growing pools alone tell how many can be at most; one more than
        # int32 can count says so when it is tried.
        per_grid = spec.grid * (INT32_BYTES + int(spec.bytes_per_token()))
        most = min(size // per_grid, INT32_MAX // spec.grid) + 2
        fitting = range(most)
        grids = bisect.bisect(fitting, size, key=lambda n: plan(n).total_bytes) - 1
    else:
        grids = -(-stored_tokens // spec.grid)
    made = plan(max(grids, 0))
    if made.total_bytes > size:
        raise ValueError(
            f"The plan does not fit: {max_sequences} sequences of up to {max_length} "
            f"tokens"
            + ("" if stored_tokens is None else f" and {stored_tokens} stored tokens")
            + f" need {format_bytes(made.total_bytes)}, the budget is "
            f"{format_bytes(size)}. Raise the budget, or lower max_length, "
            f"max_sequences or stored_tokens."
        )
    return made
