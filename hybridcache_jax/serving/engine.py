"""The engine: continuous batching over one cache, with proven prefix reuse.

Host code between compiled steps.  A request is matched and admitted when a row and
enough blocks are there, or steps aside while blocks come from an outer tier; rows that
decode share a step.  Every finished grid unit is published at once, and the
end of the output with the last token.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable

import numpy as np

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Status, Verdict
from hybridcache_jax.cost import CostModel
from hybridcache_jax.errors import HybridCacheError
from hybridcache_jax.identity import Identity
from hybridcache_jax.lease import Lease
from hybridcache_jax.observe.metrics import Metrics
from hybridcache_jax.offload.host_tier import HostTier
from hybridcache_jax.prefix_cache import PrefixCache
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.rollout import ReusePolicy
from hybridcache_jax.serving.arrivals import Arrivals
from hybridcache_jax.serving.buckets import Buckets
from hybridcache_jax.serving.request import Progress, Request, Result, check_request
from hybridcache_jax.serving.schedule import fits, next_tokens
from hybridcache_jax.serving.sequence import Sequence
from hybridcache_jax.serving.step import CompiledStep
from hybridcache_jax.serving.steps import Steps
from hybridcache_jax.state import init
from hybridcache_jax.store.prefix_store import PrefixStore

OnProgress = Callable[[Progress], None]

# Seconds between two looks at loads while nothing else is to do.
_PAUSE = 0.001


class Engine:
    """Serves requests on one model and one cache."""

    def __init__(
        self,
        step: CompiledStep,
        plan: CapacityPlan,
        identity: Identity,
        *,
        vocab_size: int,
        buckets: Buckets = Buckets(),
        policy: ReusePolicy = ReusePolicy(),
        metrics: Metrics = Metrics(),
        cost: CostModel = CostModel(),
        tier: HostTier | None = None,
        store: PrefixStore | None = None,
        write_back: bool = False,
    ):
        """An engine with an empty cache.

        Args:
          step: the compiled step of a model whose layers ``plan.spec`` describes.
          plan: sizes of the cache.
          identity: producer of what it writes.
          vocab_size: ids of requests must lie in ``[0, vocab_size)``.
          buckets: declared shapes; the largest chunk must fit the plan's.
          policy: which requests may reuse what others stored; by default none.
          metrics: where to count what happens; by default nowhere.
          cost: rates to begin with.  Every step with a chunk of the largest size, and
            every shorter one that is a row's first and has no other row, is measured
            and folded into ``prefixes.cost``, after :meth:`warm_up`.
          tier: takes what is evicted; requests wait for what comes back from it.
          store: keeps what is published beyond this process; it needs a tier.
          write_back: as for ``PrefixCache``: saves what is evicted; :meth:`flush` does
            so with the rest.

        Raises:
          ValueError: if the buckets exceed the plan, or as ``PrefixCache`` does for the
            tier and the store.
        """
        if buckets.max_chunk > plan.max_chunk:
            raise ValueError(
                f"The largest chunk {buckets.max_chunk} exceeds the plan's max_chunk "
                f"{plan.max_chunk}; lower one or raise the other."
            )
        self.plan = plan
        self.identity = identity
        self.buckets = buckets
        self.cache = step.place(init(plan))
        self.metrics = metrics
        self.prefixes = PrefixCache(
            plan,
            policy=policy,
            metrics=metrics,
            cost=cost,
            tier=tier,
            store=store,
            write_back=write_back,
            clock=time.perf_counter,
        )
        self._steps = Steps(step, plan, buckets, self.prefixes, metrics)
        self._vocab_size = vocab_size
        self._arrivals = Arrivals()
        self._running: list[Sequence] = []
        self._results: dict[int, Result] = {}
        self._submitted = 0

    @property
    def compiled_step(self) -> CompiledStep:
        """The step that runs now."""
        return self._steps.compiled

    @property
    def compiled_shapes(self) -> int:
        """Shapes of the step compiled so far; constant after :meth:`warm_up`."""
        return self._steps.compiled.variants

    def warm_up(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Compiles every declared shape, by steps in which no row runs.

        Args:
          on_progress: called with shapes done and shapes in all.
        """
        self.cache = self.prefixes.warm_up(self.cache, self.identity)
        self.cache = self._steps.warm_up(self.cache, on_progress)

    def update_model(self, step: CompiledStep, identity: Identity) -> None:
        """Serves on with other weights of the same shape, over the same cache.

        What is stored stays, and is found only by the identity that wrote it.

        Args:
          step: from ``CompiledStep.with_model``, so that nothing is compiled again.
          identity: the new producer; its weights digest must tell the change.

        Raises:
          ValueError: while requests are running or waiting, or if the identity did
            not change.
        """
        if self._running or self._arrivals:
            raise ValueError(
                f"{len(self._running) + len(self._arrivals)} requests are not "
                "finished; run them to their end before the weights change."
            )
        if identity == self.identity:
            raise ValueError(
                "The identity did not change, so stored prefixes of the old weights "
                "would be reused; give the new weights' digest."
            )
        self._steps.compiled, self.identity = step, identity

    def submit(self, request: Request) -> int:
        """Queues a request.

        Returns:
          Its number, under which :meth:`run` returns the result.

        Raises:
          ValueError: as :meth:`check`.
        """
        self.check(request)
        number, self._submitted = self._submitted, self._submitted + 1
        self._arrivals.add(number, request)
        return number

    def run(
        self, requests: Iterable[Request], on_progress: OnProgress | None = None
    ) -> list[Result]:
        """Serves requests together, each to its end.

        Args:
          requests: they are all checked before any is run.
          on_progress: called with each :class:`Progress`.

        Returns:
          Results in the order of the requests.

        Raises:
          ValueError: as :meth:`check`.
        """
        requests = list(requests)
        for request in requests:
            self.check(request)
        numbers = [self.submit(request) for request in requests]
        while self._arrivals or self._running:
            self.step(on_progress)
        return [self._results.pop(number) for number in numbers]

    def step(self, on_progress: OnProgress | None = None) -> None:
        """Admits what fits, runs one prefill step and one decode step.

        Before that loads come in, and saves go on; see :meth:`flush`.
        """
        report = on_progress or (lambda progress: None)
        self.cache, loads = self.prefixes.poll(self.cache)
        self._arrivals.reported(loads)
        self._admit(report)
        if self._arrivals and not self._running:
            # All of them wait for blocks.
            time.sleep(_PAUSE)
        for decoding in (False, True):
            ready = [seq for seq in self._running if seq.decoding == decoding]
            if ready:
                self._advance(ready[: self.buckets.max_batch], report)
        # Rows beyond the largest batch take turns.
        self._running.sort(key=lambda seq: seq.position - seq.prompt_length)

    def check(self, request: Request) -> None:
        """Refuses a request that can never be served.

        Raises:
          ValueError: as :func:`check_request`.
        """
        check_request(request, self._vocab_size, self.plan.max_length)

    def flush(
        self,
        on_progress: Callable[[int], None] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Waits until everything that was published is in the store, or has failed.

        Args:
          on_progress: called with how many prefixes are left whenever one was saved.
          timeout: seconds after which it returns anyway; ``prefixes.saving`` says how
            many are left then, and later steps or another flush go on with them.

        Raises:
          ValueError: for a timeout that is no number of seconds, 0 or more.
        """
        self.cache = self.prefixes.flush(
            self.cache, progress=on_progress, timeout=timeout
        )

    def _admit(self, report: OnProgress) -> None:
        while len(self._running) < self.plan.max_sequences:
            arrival = self._arrivals.first()
            if arrival is None:
                return
            number, request = arrival.number, arrival.request
            if not self._fits(len(request.tokens) + request.max_new_tokens):
                return
            plan = self._planned(number, request)
            if plan.verdict == Verdict.NEEDS_IO and arrival.may_wait:
                self._arrivals.wait(self.prefixes.load(self.cache, plan))
                report(Progress(number, "loading", plan.length, len(request.tokens)))
                continue
            begun = time.perf_counter()
            lease = self._acquire(number, request, plan)
            admission = time.perf_counter() - begun
            self._arrivals.admitted()
            seq = Sequence(
                number=number,
                request=request,
                lease=lease,
                started=arrival.started,
                tokens=[int(token) for token in request.tokens],
                position=lease.plan.start,
                waited=arrival.waited,
                admission=admission,
            )
            self._running.append(seq)
            report(Progress(number, "admitted", lease.plan.start, len(request.tokens)))
            if self.prefixes.shadow_due(lease.plan):
                self._compute_again(seq)

    def _compute_again(self, seq: Sequence) -> None:
        """Compares a hit with a cold run; if they differ the request goes on from that.

        Both run up to the resume point, each alone in its steps, before anything else
        does.  Without a row or blocks for a second run the sample is skipped.
        """
        request, point = seq.request, seq.lease.plan.length
        if len(self._running) == self.plan.max_sequences or not self._fits(point):
            return
        plan = self._cold(seq.number, request, shadow=True)
        lease = self._acquire(seq.number, request, plan)
        cold = dataclasses.replace(seq, lease=lease, position=0)
        over = lease
        if self._run_to(cold, point) and self._run_to(seq, point):
            self.cache, report = self.prefixes.shadow_compare(
                self.cache, seq.lease, lease
            )
            if not report.equal:
                over, seq.lease, seq.ran = seq.lease, report.lease, cold.ran
        self.cache = self.prefixes.release(self.cache, over, publish=False)

    def _run_to(self, seq: Sequence, point: int) -> bool:
        """Runs one row of a prompt alone; False if a step was refused."""
        while seq.position < point:
            tokens = self._next_tokens(seq)[: point - seq.position]
            self.cache, ran = self._steps.run(self.cache, [seq], [tokens])
            if ran.statuses[0] != Status.OK:
                return False
            seq.position += len(tokens)
            seq.ran += len(tokens)
        return True

    def _fits(self, length: int) -> bool:
        """Whether all running requests and one more sequence can run to their ends.

        Those that wait for blocks count as if they ran: what was loaded for them is not
        evicted for others.
        """
        going = [seq.request for seq in self._running] + self._arrivals.loading()
        lengths = [len(each.tokens) + each.max_new_tokens for each in going]
        return fits(self.plan, [length, *lengths])

    def _planned(self, number: int, request: Request) -> ResumePlan:
        """Where a request can be resumed; cold if it is to reuse nothing."""
        if not request.reuse:
            return self._cold(number, request)
        return self.prefixes.match(
            self.cache,
            request.tokens,
            self.identity.within(request.namespace),
            request=str(number),
            session=request.session,
        )

    def _cold(
        self, number: int, request: Request, *, shadow: bool = False
    ) -> ResumePlan:
        return self.prefixes.cold_plan(
            request.tokens,
            self.identity.within(request.namespace),
            request=str(number),
            session=request.session,
            shadow=shadow,
        )

    def _acquire(self, number: int, request: Request, plan: ResumePlan) -> Lease:
        """A row; nothing came in between, so the plan still holds."""
        if plan.verdict == Verdict.NEEDS_IO:
            # It waited in vain.
            plan = self._cold(number, request)
        self.cache, lease = self.prefixes.acquire(self.cache, plan)
        return lease

    def _advance(self, ready: list[Sequence], report: OnProgress) -> None:
        """One compiled step over rows that are all in prefill or all decoding."""
        parts = [self._next_tokens(seq) for seq in ready]
        self.cache, ran = self._steps.run(self.cache, ready, parts)
        for seq, tokens, status, token in zip(
            ready, parts, ran.statuses, ran.sampled, strict=True
        ):
            if status != Status.OK:
                self._recover(seq, status)
            else:
                self._moved(seq, len(tokens), token, report)

    def _next_tokens(self, seq: Sequence) -> list[int]:
        return next_tokens(self.plan, self.buckets.max_chunk, seq)

    def _moved(self, seq: Sequence, count: int, token: int, report: OnProgress) -> None:
        before = seq.position
        seq.position += count
        seq.ran += count if before < seq.prompt_length else 0
        stop = False
        if seq.position < len(seq.tokens):
            report(Progress(seq.number, "prefill", seq.position, seq.prompt_length))
        else:
            stop = self._sampled(seq, token, report)
        grid = self.plan.spec.grid
        if seq.request.reuse and seq.position // grid > before // grid:
            self.cache = self.prefixes.publish(self.cache, seq.lease)
        if stop or seq.generated == seq.request.max_new_tokens:
            self._finish(seq, "stop" if stop else "length", report)

    def _sampled(self, seq: Sequence, token: int, report: OnProgress) -> bool:
        """Takes a new token; True if it ends the request."""
        if seq.generated == 0:
            seq.first_token = time.perf_counter()
        if token in seq.request.stop_tokens:
            return True
        seq.tokens.append(token)
        most = seq.request.max_new_tokens
        report(Progress(seq.number, "token", seq.generated, most, token))
        return False

    def _finish(self, seq: Sequence, why: str, report: OnProgress) -> None:
        # Whole grid units were published when they were run; now the end is known.
        publish = seq.request.reuse
        self.cache = self.prefixes.release(self.cache, seq.lease, publish=publish)
        self.prefixes.end_request(seq.lease.plan)
        if self.metrics.enabled:
            self.prefixes.account(self.cache)
        self._running.remove(seq)
        now = time.perf_counter()
        plan = seq.lease.plan
        self._results[seq.number] = Result(
            tokens=tuple(seq.tokens[seq.prompt_length :]),
            plan=plan,
            waited=seq.waited,
            tokens_run=seq.ran,
            seconds_to_first_token=seq.first_token - seq.started,
            seconds=now - seq.started,
            finish=why,
        )
        report(
            Progress(seq.number, "finished", seq.generated, seq.request.max_new_tokens)
        )

    def _recover(self, seq: Sequence, status: Status) -> None:
        """A row that did not run: start it again from what can be proved now."""
        if status != Status.STALE:
            raise HybridCacheError(
                f"Request {seq.number}: {status.name}: {status.explanation}"
            )
        self.cache = self.prefixes.release(self.cache, seq.lease, publish=False)
        request = dataclasses.replace(
            seq.request, tokens=np.array(seq.tokens, np.int32)
        )
        seq.lease = self._acquire(
            seq.number, request, self._planned(seq.number, request)
        )
        seq.position = seq.lease.plan.start
