"""One prefix of a given size, published without a model, saved and restored."""

import dataclasses
import pathlib
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from hybridcache_jax.append import StepInputs, begin, end
from hybridcache_jax.budget import plan_capacity
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Verdict
from hybridcache_jax.entry import Entry
from hybridcache_jax.identity import Identity
from hybridcache_jax.layers import Entries, LayerSpec, Window
from hybridcache_jax.lease import batch_inputs
from hybridcache_jax.lineage import OnFacts
from hybridcache_jax.offload.host_tier import HostTier
from hybridcache_jax.prefix_cache import PrefixCache
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.rollout import ReusePolicy
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.state import HybridCache, init
from hybridcache_jax.store.objects import ObjectStore

_BLOCK, _FULL, _VOCABULARY, _THREADS = 64, 8, 2**17, 4
_ENTRY = Entry.kv(heads=2, dim=128, dtype="bfloat16")
_SPEC = CacheSpec.from_layers(
    [
        LayerSpec(local=Window(1024, _ENTRY)),
        *[LayerSpec(global_=Entries(_ENTRY))] * _FULL,
    ],
    block_tokens=_BLOCK,
)
_IDENTITY = Identity(weights="w", config="c", layout=_SPEC.fingerprint)


@dataclasses.dataclass(frozen=True)
class Prefix:
    """What is saved, and the plan of caches that hold it.

    Attributes:
      plan: of the caches.
      tokens: ``[n]`` int32.
    """

    plan: CapacityPlan
    tokens: np.ndarray

    @classmethod
    def of_bytes(cls, nbytes: int) -> "Prefix":
        """A prefix whose full history takes so many bytes.

        Args:
          nbytes: a multiple of a block's.
        """
        full = _SPEC.pools[-1]
        count = nbytes // full.block_bytes * _BLOCK
        plan = plan_capacity(
            _SPEC,
            budget=4 * nbytes + 2**28,
            max_sequences=1,
            max_length=count + _BLOCK,
            max_chunk=min(count, 4096),
            stored_tokens=count,
            staging_blocks=16,
        )
        rng = np.random.default_rng(nbytes)
        return cls(plan, rng.integers(0, _VOCABULARY, count, dtype=np.int32))


class Process:
    """A ``PrefixCache`` over a folder, with nothing in it, as after a start."""

    def __init__(self, prefix: Prefix, folder: pathlib.Path):
        """Compiles what moves blocks; the memory for them is allocated and touched.

        Args:
          prefix: that will be published, or looked for.
          folder: of the store.
        """
        plan = self._plan = prefix.plan
        self._tokens = prefix.tokens
        tier = HostTier(plan, budget="64MiB", known_tokens=len(prefix.tokens))
        policy = ReusePolicy(scope="namespace")
        # A process that serves has started its threads long ago.
        self._threads = ThreadPoolExecutor(_THREADS)
        list(self._threads.map(time.sleep, [0.01] * _THREADS))
        self.prefixes = PrefixCache(
            plan,
            policy=policy,
            tier=tier,
            store=ObjectStore(folder),
            executor=self._threads,
        )
        self.cache = self.prefixes.warm_up(init(plan), _IDENTITY)
        jax.block_until_ready(self.cache)

    def publish(self) -> None:
        """Stores the prefix with memory of random bytes; nothing is saved yet."""
        prefixes, tokens = self.prefixes, self._tokens
        self.cache, lease = prefixes.acquire(self.cache, self._match())
        width = self._plan.max_chunk
        for start in range(0, len(tokens), width):
            some = tokens[start : start + width]
            inputs = batch_inputs([(lease, some)], batch=1, width=width)
            self.cache = _STEP(self.cache, inputs)
        self.cache = prefixes.release(self.cache, lease)
        pools = tuple(map(_random, self.cache.pools))
        # The same line goes on: only memory that no fact speaks of is another.
        self.cache = prefixes.warm_up(
            dataclasses.replace(self.cache, pools=pools), _IDENTITY
        )

    def save(self) -> float:
        """Seconds until what was published is in the store."""
        start = time.perf_counter()
        self.cache = self.prefixes.flush(self.cache)
        return time.perf_counter() - start

    def restore(self) -> tuple[float, int]:
        """Seconds from the lookup in the store until the prefix can be resumed.

        Returns:
          Those, and how many bytes of blocks came.

        Raises:
          AssertionError: if it cannot be resumed whole.
        """
        prefixes, start = self.prefixes, time.perf_counter()
        plan = self._match()
        if plan.verdict != Verdict.NEEDS_IO or plan.length < len(self._tokens):
            raise AssertionError(f"The store has not all of it: {plan.explain()}")
        self.cache = when_loaded(prefixes, self.cache, plan)
        seconds = time.perf_counter() - start
        came = (
            len(blocks) * pool.block_bytes
            for blocks, pool in zip(plan.loads, self._plan.spec.pools, strict=True)
        )
        return seconds, sum(came)

    def close(self) -> None:
        """Ends its threads."""
        self._threads.shutdown()

    def _match(self) -> ResumePlan:
        prompt = np.append(self._tokens, np.int32(0))
        return self.prefixes.match(self.cache, prompt, _IDENTITY)


def when_loaded(
    prefixes: PrefixCache, cache: HybridCache, plan: ResumePlan
) -> HybridCache:
    """The cache once all that a plan waits for is there.

    Args:
      prefixes: the store of prefixes.
      cache: its newest value.
      plan: with the verdict NEEDS_IO.

    Raises:
      AssertionError: if the load fails.
    """
    load = prefixes.load(cache, plan)
    while True:
        cache, reports = prefixes.poll(cache)
        (report,) = (each for each in reports if each.load == load)
        if report.failed:
            raise AssertionError(f"The load failed: {report.why}")
        if report.ready:
            return jax.block_until_ready(cache)
        time.sleep(0.001)


def _write_nothing(cache: HybridCache, inputs: StepInputs):
    """A step over tokens whose entries do not matter."""
    cache, step = begin(cache, inputs, _VOCABULARY)
    return end(cache, step)


_STEP = OnFacts(_write_nothing)


def _random(pool: dict[str, jax.Array]) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    return {
        name: jnp.asarray(
            rng.integers(0, 2**16, plane.shape, np.uint16).view(plane.dtype)
        )
        for name, plane in pool.items()
    }
