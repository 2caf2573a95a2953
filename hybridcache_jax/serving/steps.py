"""Steps of an engine: room for one, the step itself, what is learned from its time."""

import time
from collections.abc import Callable
from collections.abc import Sequence as Listed
from typing import NamedTuple

import numpy as np

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Status
from hybridcache_jax.lease import batch_inputs
from hybridcache_jax.observe.metrics import Metrics
from hybridcache_jax.prefix_cache import PrefixCache
from hybridcache_jax.serving.buckets import Buckets
from hybridcache_jax.serving.sampling import sampling_inputs
from hybridcache_jax.serving.schedule import new_blocks
from hybridcache_jax.serving.sequence import Sequence
from hybridcache_jax.serving.step import CompiledStep
from hybridcache_jax.state import HybridCache

# To make room takes as long for many blocks as for one: where some are short, this
# part of a pool is freed besides, for the steps to come.
_AHEAD = 64


class Ran(NamedTuple):
    """What a step did, by row.

    Attributes:
      statuses: whether each row ran.
      sampled: the token that follows each row's last one; -1 where it did not run.
    """

    statuses: list[Status]
    sampled: list[int]


class Steps:
    """Runs rows of one cache in steps of declared shapes.

    Attributes:
      compiled: the step; another one of the same structure may take its place.
    """

    def __init__(
        self,
        compiled: CompiledStep,
        plan: CapacityPlan,
        buckets: Buckets,
        prefixes: PrefixCache,
        metrics: Metrics,
    ):
        """Compiles nothing yet.

        Args:
          compiled: the step.
          plan: sizes of the cache.
          buckets: declared shapes.
          prefixes: makes room, and keeps the rates that are learned.
          metrics: counts what runs.
        """
        self.compiled = compiled
        self._plan, self._buckets = plan, buckets
        self._prefixes, self._metrics = prefixes, metrics
        self._warm = False

    def warm_up(
        self, cache: HybridCache, on_progress: Callable[[int, int], None] | None
    ) -> HybridCache:
        """Compiles every declared shape, by steps in which no row runs."""
        shapes = self._buckets.shapes()
        for done, (batch, width) in enumerate(shapes):
            if on_progress:
                on_progress(done, len(shapes))
            inputs = batch_inputs([], batch=batch, width=width)
            cache, output = self.compiled(cache, inputs, sampling_inputs([], batch))
            output.tokens.block_until_ready()
        if on_progress:
            on_progress(len(shapes), len(shapes))
        self._warm = True
        return cache

    def run(
        self, cache: HybridCache, ready: Listed[Sequence], chunks: Listed[list[int]]
    ) -> tuple[HybridCache, Ran]:
        """Runs the next tokens of some rows.

        Args:
          cache: the newest value; donated.
          ready: rows, at most a batch.
          chunks: tokens of each, at most the largest chunk.
        """
        parts = [(seq.lease, ids) for seq, ids in zip(ready, chunks, strict=True)]
        batch, width = self._buckets.fit(len(parts), max(map(len, chunks)))
        cache = self._with_room(cache, ready, chunks)
        inputs = batch_inputs(parts, batch=batch, width=width)
        sampling = sampling_inputs([seq.request.sampling for seq in ready], batch)
        shapes, begun = self.compiled.variants, time.perf_counter()
        cache, output = self.compiled(cache, inputs, sampling)
        fresh = self.compiled.variants - shapes
        if self._warm:
            self._metrics.retraced(fresh)
        codes = np.array(output.status)[: len(parts)].tolist()
        statuses = [Status(code) for code in codes]
        if self._warm and not fresh:
            self._learn(ready, chunks, statuses, time.perf_counter() - begun)
        for seq, ids, status in zip(ready, chunks, statuses, strict=True):
            self._metrics.ran(seq.lease.plan, seq.position, len(ids), status)
        sampled = np.array(output.tokens)[: len(parts)].tolist()
        return cache, Ran(statuses, sampled)

    def _with_room(
        self, cache: HybridCache, ready: Listed[Sequence], chunks: Listed[list[int]]
    ) -> HybridCache:
        wanted = new_blocks(self._plan, ready, [len(ids) for ids in chunks])
        ahead = [
            want + count // _AHEAD
            for want, count in zip(wanted, self._plan.blocks, strict=True)
        ]
        return self._prefixes.make_room(cache, wanted, ahead=ahead)

    def _learn(
        self,
        ready: Listed[Sequence],
        chunks: Listed[list[int]],
        statuses: list[Status],
        seconds: float,
    ) -> None:
        """How long a token takes, or a row's first few alone."""
        parts = zip(chunks, statuses, strict=True)
        tokens = sum(len(ids) for ids, status in parts if status == Status.OK)
        cost = self._prefixes.cost
        if tokens and max(map(len, chunks)) == self._buckets.max_chunk:
            self._prefixes.cost = cost.after_run(tokens, seconds)
        elif tokens and len(ready) == 1 and ready[0].ran == 0:
            seconds += ready[0].admission
            self._prefixes.cost = cost.after_short_run(tokens, seconds)
