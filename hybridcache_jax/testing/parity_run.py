"""Runs of a model over the cache on the inputs of a reference, way by way."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hybridcache_jax.budget import plan_capacity
from hybridcache_jax.codes import Status, Verdict
from hybridcache_jax.errors import HybridCacheError
from hybridcache_jax.forms import RULES, Form
from hybridcache_jax.identity import Identity
from hybridcache_jax.layers import LayerSpec
from hybridcache_jax.lease import Lease, batch_inputs
from hybridcache_jax.models.protocol import Decoder
from hybridcache_jax.prefix_cache import PrefixCache
from hybridcache_jax.rollout import ReusePolicy
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.state import HybridCache, init
from hybridcache_jax.testing.audit import RowState, row_state, state_difference
from hybridcache_jax.view import begin_step, end_step

RAGGED = (5, 3, 7, 1, 24)
"""Chunk lengths of the ragged runs, repeated."""

OnProgress = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class Reference:
    """Inputs and outputs of a reference implementation.

    Attributes:
      tokens: ``[B, T]`` int32 ids.
      logits: ``[B, T, V]`` float32, of one pass over all tokens.
    """

    tokens: np.ndarray
    logits: np.ndarray

    def __post_init__(self):
        if self.tokens.ndim != 2 or self.logits.shape[:2] != self.tokens.shape:
            raise ValueError(
                f"A reference has tokens [B, T] and logits [B, T, V], got shapes "
                f"{self.tokens.shape} and {self.logits.shape}."
            )
        if self.tokens.dtype.kind not in "iu":
            raise ValueError(
                f"A reference's tokens are integer ids, got {self.tokens.dtype}."
            )
        if not np.isfinite(self.logits).all():
            raise ValueError("The reference's logits hold NaN or infinity.")


@dataclasses.dataclass(frozen=True)
class Way:
    """One way of running, and how far it strayed.

    Attributes:
      name: for people.
      difference: largest absolute logit difference to the reference.
      row: where that was: sequence of the batch,
      position: and token position.
      runs: positions resumed or stopped at, or 1.
    """

    name: str
    difference: float
    row: int
    position: int
    runs: int


class ParityRun:
    """A model, its cache and its reference: the pieces of ``parity.check_parity``.

    Attributes:
      spec: layout of the cache.
      plan: its sizes.
      grid: tokens between resume points.
      resume_points: every legal one below the last token.
      audit: tokens to run past a resume point: the grid and the longest window.
    """

    def __init__(
        self,
        model: Decoder,
        layers: Sequence[LayerSpec],
        reference: Reference,
        *,
        block_tokens: int = 4,
        kernels: str = "auto",
    ):
        """Plans a cache for the reference; arguments as of ``parity.check_parity``."""
        batch, length = reference.tokens.shape
        self.reference = reference
        self.spec = CacheSpec.from_layers(
            layers, block_tokens=_block_sizes(layers, block_tokens)
        )
        self.grid = self.spec.grid
        self.resume_points = range(self.grid, length, self.grid)
        self.audit = self.grid + max(
            (layer.local.reach + 1 for layer in layers if layer.local), default=0
        )
        self.plan = plan_capacity(
            self.spec,
            budget="1TiB",
            max_sequences=batch,
            max_length=length,
            max_chunk=length,
            stored_tokens=batch * (length + self.grid),
            kernels=kernels,
        )
        self.identity = Identity("reference", "reference", self.spec.fingerprint)
        self._step = _compiled(model, reference.logits.shape[-1])

    def way(self, name: str, runs: Sequence[Sequence[int]], report: OnProgress) -> Way:
        """Cold runs of all rows together, in chunks of the sizes given."""
        worst = _Worst(name, len(runs))
        for done, sizes in enumerate(runs):
            report(name, done, len(runs))
            cache, leases = self.cold(init(self.plan), PrefixCache(self.plan))
            for at, size in _places(sizes):
                spans = [(at, at + size)] * len(leases)
                cache, logits = self.step(cache, leases, spans)
                self._compare(worst, logits, spans)
        return worst.way

    def unequal(self, name: str, report: OnProgress) -> Way:
        """All rows in one batch, each at a pace of its own."""
        report(name, 0, 1)
        worst = _Worst(name, 1)
        cache, leases = self.cold(init(self.plan), PrefixCache(self.plan))
        length = self.reference.tokens.shape[1]
        at, turn = [0] * len(leases), 0
        while min(at) < length:
            sizes = [RAGGED[(turn + row) % len(RAGGED)] for row in range(len(at))]
            spans = [
                (a, min(a + size, length)) for a, size in zip(at, sizes, strict=True)
            ]
            cache, logits = self.step(cache, leases, spans)
            self._compare(worst, logits, spans)
            at, turn = [end for _, end in spans], turn + 1
        return worst.way

    def resumed(self, name: str, report: OnProgress) -> tuple[Way, float]:
        """Stores both prefixes grid by grid, then resumes at every legal point.

        Returns:
          The way, and the largest difference between the state at the end of a
          resumed run and that of the run that stored the prefix.
        """
        worst, gap = _Worst(name, len(self.resume_points)), 0.0
        length = self.reference.tokens.shape[1]
        prefixes = PrefixCache(self.plan, policy=ReusePolicy(scope="namespace"))
        cache, ends = self.store(init(self.plan), prefixes)
        for done, point in enumerate(self.resume_points):
            report(name, done, len(self.resume_points))
            cache, leases = self.resume(cache, prefixes, point)
            end = min(length, point + self.audit)
            spans = [(point, end)] * len(leases)
            cache, logits = self.step(cache, leases, spans)
            self._compare(worst, logits, spans)
            for row, lease in enumerate(leases):
                if end == length:
                    state = row_state(cache, lease.row)
                    gap = max(gap, state_difference(state, ends[row]))
                cache = prefixes.release(cache, lease, publish=False)
        return worst.way, gap

    def cold(
        self, cache: HybridCache, prefixes: PrefixCache
    ) -> tuple[HybridCache, list[Lease]]:
        """A row for each sequence, from nothing."""
        leases = []
        for tokens in self.reference.tokens:
            plan = prefixes.cold_plan(tokens, self.identity)
            cache, lease = prefixes.acquire(cache, plan)
            leases.append(lease)
        return cache, leases

    def store(
        self, cache: HybridCache, prefixes: PrefixCache
    ) -> tuple[HybridCache, list[RowState]]:
        """Runs every sequence grid by grid and publishes at every grid point.

        Returns:
          The cache, its rows released, and the state each row ended in.
        """
        cache, leases = self.cold(cache, prefixes)
        length = self.reference.tokens.shape[1]
        for at, size in _places(repeated(length, (self.grid,))):
            cache, _ = self.step(cache, leases, [(at, at + size)] * len(leases))
            for lease in leases:
                cache = prefixes.publish(cache, lease)
        ends = [row_state(cache, lease.row) for lease in leases]
        for lease in leases:
            cache = prefixes.release(cache, lease)
        return cache, ends

    def resume(
        self, cache: HybridCache, prefixes: PrefixCache, point: int
    ) -> tuple[HybridCache, list[Lease]]:
        """A row for each sequence, resumed at a legal point.

        Raises:
          HybridCacheError: if the stored prefix is not resumable there.
        """
        leases = []
        for tokens in self.reference.tokens:
            plan = prefixes.match(cache, tokens[: point + 1], self.identity)
            if (plan.verdict, plan.length) != (Verdict.RESUMABLE, point):
                raise HybridCacheError(
                    f"A prefix stored up to position {point} cannot be resumed there: "
                    f"{plan.explain()}"
                )
            cache, lease = prefixes.acquire(cache, plan)
            leases.append(lease)
        return cache, leases

    def step(
        self,
        cache: HybridCache,
        leases: Sequence[Lease],
        spans: Sequence[tuple[int, int]],
    ) -> tuple[HybridCache, np.ndarray]:
        """Runs positions ``start .. end - 1`` of each row.

        Steps of one token and all others are two compiled shapes.

        Returns:
          The cache, and logits ``[B, T, V]``; a row's are its first ones.

        Raises:
          HybridCacheError: if a row does not run.
        """
        longest = max(end - start for start, end in spans)
        parts = [
            (lease, tokens[start:end])
            for lease, tokens, (start, end) in zip(
                leases, self.reference.tokens, spans, strict=True
            )
        ]
        width = 1 if longest == 1 else self.plan.max_chunk
        inputs = batch_inputs(parts, batch=len(leases), width=width)
        cache, status, logits = self._step(cache, inputs)
        for code, (start, end) in zip(status.tolist(), spans, strict=True):
            if code != Status.OK and end > start:
                raise HybridCacheError(
                    f"Positions {start} to {end - 1} did not run: "
                    f"{Status(code).explanation}"
                )
        return cache, np.asarray(logits)

    def _compare(
        self, worst: "_Worst", logits: np.ndarray, spans: Sequence[tuple[int, int]]
    ) -> None:
        for row, (start, end) in enumerate(spans):
            want = self.reference.logits[row, start:end]
            worst.see(row, start, logits[row, : end - start], want)


class _Worst:
    """The largest difference of one way of running."""

    def __init__(self, name: str, runs: int):
        self.way = Way(name, 0.0, 0, 0, runs)

    def see(self, row: int, start: int, got: np.ndarray, want: np.ndarray) -> None:
        if not got.size:
            return
        gap = np.abs(got.astype(np.float64) - want.astype(np.float64)).max(axis=-1)
        # NaN is as wrong as can be.
        gap = np.where(np.isnan(gap), math.inf, gap)
        place = int(np.argmax(gap))
        if gap[place] > self.way.difference:
            self.way = dataclasses.replace(
                self.way,
                difference=float(gap[place]),
                row=row,
                position=start + place,
            )


def _compiled(model: Decoder, vocab_size: int):
    """``step(cache, inputs)``, jitted; gives cache, status and all logits."""
    graph, state = nnx.split(model)

    def step(state, cache, inputs):
        view = begin_step(cache, inputs, vocab_size)
        model: Any = nnx.merge(graph, state)
        hidden, view = model(jnp.clip(inputs.tokens, 0, vocab_size - 1), view)
        return end_step(view), view.status, model.logits(hidden)

    jitted = jax.jit(step, donate_argnums=1)
    return lambda cache, inputs: jitted(state, cache, inputs)


def _block_sizes(layers: Sequence[LayerSpec], wanted: int) -> dict[Form, int]:
    """Tokens per block by form: ``wanted``, or the next multiple of its ratios."""
    ratios = dict.fromkeys(RULES, 1)
    for layer in layers:
        for form, part in (
            (Form.COMPRESSED_KV, layer.global_),
            (Form.INDEXER_STATE, layer.index),
        ):
            if part is not None:
                ratios[form] = math.lcm(ratios[form], part.ratio)
    return {form: -(-wanted // ratio) * ratio for form, ratio in ratios.items()}


def repeated(total: int, sizes: Sequence[int]) -> list[int]:
    """``sizes``, repeated and cut so that they add up to ``total``."""
    result: list[int] = []
    while (left := total - sum(result)) > 0:
        result.append(min(sizes[len(result) % len(sizes)], left))
    return result


def _places(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Start and size of each chunk."""
    at = 0
    for size in sizes:
        yield at, size
        at += size
