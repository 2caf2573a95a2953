"""Does a model over the cache compute what a reference implementation computes?

Runs given tokens in every way a server may run them and compares logits with those
of the reference: all at once, token by token, in ragged chunks, in batches of unequal
lengths, stopped and continued at awkward positions, and resumed from stored prefixes
at every legal point.  A resumed run is judged by what comes long after the resume
point, for a lost tail or window shows only there, and by the state it ends in.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from hybridcache_jax.layers import LayerSpec
from hybridcache_jax.models.protocol import Decoder
from hybridcache_jax.testing.parity_run import (
    RAGGED,
    ParityRun,
    Reference,
    Way,
    repeated,
)

ATTENTION_TOLERANCE = 1e-4
"""Largest logit difference of models without recurrent state, float32 throughout."""

RECURRENT_TOLERANCE = 2e-3
"""The same with recurrent state: one-shot and step-by-step are two algorithms."""

OnProgress = Callable[[str, int, int], None]
"""Called with the way of running, runs done and runs in all."""


@dataclasses.dataclass(frozen=True)
class ParityReport:
    """What was run and how far it strayed.

    Attributes:
      ways: one per way of running.
      state_difference: largest difference between the state that a resumed run ends
        in and that of the run that was never interrupted.
      resume_points: positions resumed at.
      grid: tokens between resume points.
      audit: tokens run past each resume point, where the reference is that long.
      tolerance: largest difference allowed.
    """

    ways: tuple[Way, ...]
    state_difference: float
    resume_points: tuple[int, ...]
    grid: int
    audit: int
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether every difference is within the tolerance."""
        worst = max(way.difference for way in self.ways)
        return worst <= self.tolerance and self.state_difference <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON-ready data."""
        return {
            "passed": self.passed,
            "tolerance": self.tolerance,
            "grid": self.grid,
            "audit": self.audit,
            "resume_points": list(self.resume_points),
            "state_difference": self.state_difference,
            "ways": [dataclasses.asdict(way) for way in self.ways],
        }


def default_tolerance(layers: Sequence[LayerSpec]) -> float:
    """The tolerance for a model of these layers, in float32."""
    recurrent = any(layer.recurrent is not None for layer in layers)
    return RECURRENT_TOLERANCE if recurrent else ATTENTION_TOLERANCE


def check_parity(
    model: Decoder,
    layers: Sequence[LayerSpec],
    reference: Reference,
    *,
    tolerance: float | None = None,
    block_tokens: int = 4,
    kernels: str = "auto",
    run: ParityRun | None = None,
    on_progress: OnProgress | None = None,
) -> ParityReport:
    """Runs the reference's tokens in every way and compares.

    Matrix products run in the caller's ``jax.default_matmul_precision``; set it to
    ``"highest"`` or a few differing bits will flip a selection.

    Args:
      model: the model.
      layers: what each of its layers keeps.
      reference: tokens and logits; at least two tokens.
      tolerance: largest difference allowed; by default :func:`default_tolerance`.
      block_tokens: tokens per block, raised to a multiple of the compression ratios
        where there are any.  Small blocks give many resume points.
      kernels: what reads the pools, as for ``plan_capacity``.
      run: pieces made before, with what they have compiled; made anew otherwise.
      on_progress: told about every run.

    Raises:
      HybridCacheError: if a run fails, or a stored prefix cannot be resumed.
      ValueError: if the reference has fewer than two tokens.
    """
    length = reference.tokens.shape[1]
    if length < 2:
        raise ValueError(f"A reference needs at least two tokens, got {length}.")
    if run is None:
        run = ParityRun(
            model, layers, reference, block_tokens=block_tokens, kernels=kernels
        )
    report = on_progress or (lambda way, done, total: None)
    ways = [
        run.way("one shot", [[length]], report),
        run.way("token by token", [[1] * length], report),
        run.way("ragged chunks", [repeated(length, RAGGED)], report),
        run.way(
            "stopped and continued",
            [[p, length - p] for p in _stops(length, run.grid)],
            report,
        ),
        run.unequal("unequal rows", report),
    ]
    resumed, state_gap = run.resumed("resumed", report)
    return ParityReport(
        ways=(*ways, resumed),
        state_difference=state_gap,
        resume_points=tuple(run.resume_points),
        grid=run.grid,
        audit=run.audit,
        tolerance=default_tolerance(layers) if tolerance is None else tolerance,
    )


def _stops(length: int, grid: int) -> list[int]:
    """Awkward positions to stop at: around grid points, and before the last token."""
    base = min(length // (2 * grid) * grid, length - 1)
    offsets = (0, 1, 3, 4, grid - 1)
    near = {base + offset for offset in offsets} | {1, 2, 3, length - 1}
    return sorted(p for p in near if 0 < p < length)
