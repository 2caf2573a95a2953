"""From a loaded model to an engine: spec, plan, identity, compiled step."""

from hybridcache_jax._compat import matmul_precision
from hybridcache_jax.budget import plan_capacity
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.identity import Identity
from hybridcache_jax.models.load import LoadedModel
from hybridcache_jax.observe.metrics import Metrics
from hybridcache_jax.offload.host_tier import HostTier
from hybridcache_jax.reads import reads
from hybridcache_jax.rollout import ReusePolicy
from hybridcache_jax.serving.buckets import Buckets
from hybridcache_jax.serving.engine import Engine
from hybridcache_jax.serving.step import CompiledStep
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.store.prefix_store import PrefixStore


def build_engine(
    loaded: LoadedModel,
    *,
    max_length: int,
    max_sequences: int = 4,
    budget: int | str = "4GiB",
    stored_tokens: int | None = None,
    block_tokens: int | None = None,
    buckets: Buckets = Buckets(),
    metrics: Metrics = Metrics(),
    policy: ReusePolicy = ReusePolicy(),
    staging_blocks: int = 0,
    host_memory: int | str | None = None,
    store: PrefixStore | None = None,
    write_back: bool = False,
) -> Engine:
    """An engine for a loaded model, with an empty cache.

    Args:
      loaded: model, config and digests.
      max_length: most tokens of one sequence, prompt and answer.
      max_sequences: sequences alive at once.
      budget: memory of the cache, in bytes or as text such as ``"4GiB"``.
      stored_tokens: tokens of stored prefixes to plan for; None fills the budget.
      block_tokens: tokens per block, and so the distance of resume points; by default
        32, or what the compression ratios ask for.
      buckets: declared shapes of a step.
      metrics: where to count what happens; by default nowhere.
      policy: which requests may reuse what others stored; by default none.
      staging_blocks: blocks that move to or from host memory in one copy; 0 for engines
        without it.
      host_memory: bytes, or text such as ``"8GiB"``, for blocks that are evicted; None
        to lose them.
      store: keeps what is published beyond this process; it needs host memory.
      write_back: as for ``PrefixCache``: saves what is evicted, not all that is
        published.

    Raises:
      ValueError: if the plan does not fit the budget, for host memory without staging
        blocks, or a store without host memory.
    """
    spec = CacheSpec.from_layers(loaded.layers, block_tokens=block_tokens)
    plan = plan_capacity(
        spec,
        budget=budget,
        max_sequences=max_sequences,
        max_length=max_length,
        max_chunk=buckets.max_chunk,
        stored_tokens=stored_tokens,
        staging_blocks=staging_blocks,
    )
    tier = None
    if host_memory is not None:
        # As many tokens may wait for the store as sequences can have.
        known = max_sequences * max_length if store is not None else 0
        tier = HostTier(plan, budget=host_memory, known_tokens=known)
    vocab_size = loaded.config.vocab_size
    return Engine(
        CompiledStep(loaded.model, vocab_size),
        plan,
        model_identity(loaded, plan),
        vocab_size=vocab_size,
        buckets=buckets,
        metrics=metrics,
        policy=policy,
        tier=tier,
        store=store,
        write_back=write_back,
    )


def model_identity(loaded: LoadedModel, plan: CapacityPlan) -> Identity:
    """Who writes what ``loaded`` computes: digests of content, never names.

    Another backend, precision of matrix products or implementation of a read computes
    other bits, so each is part of it: replicas share records only where all are equal.

    Args:
      loaded: model, config and digests.
      plan: of the caches that it writes.
    """
    kernels = {
        plan.kernel(number, read)
        for number in range(len(plan.spec.pools))
        for read in reads(plan.spec, number)
    }
    # Layout, backend and the names of all say which read is whose.
    names = {k.implementation + "/interpreted" * k.interpret for k in kernels}
    said = {
        "params": loaded.param_dtype,
        "matmul": matmul_precision(),
        "backend": plan.backend,
        "reads": "+".join(sorted(names)),
    }
    return Identity(
        weights=loaded.weights_digest,
        config=loaded.config_digest,
        layout=plan.spec.fingerprint,
        tokenizer=loaded.tokenizer_digest or "",
        numerics=",".join(f"{name}={value}" for name, value in said.items()),
    )
