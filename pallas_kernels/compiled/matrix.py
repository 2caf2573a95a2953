"""Compiling every case for every target, and what came of it."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import multiprocessing
from collections.abc import Iterable, Iterator

from pallas_kernels.choice import Kernel, choose
from pallas_kernels.compiled.accelerators import GPUS, TPUS, platform_of
from pallas_kernels.compiled.cases import (
    BLOCKS,
    COLUMNS,
    LAYERS,
    ROWS,
    SELECTED,
    Case,
)
from pallas_kernels.compiled.copies import large_moves
from pallas_kernels.compiled.outcomes import Outcome, Outcomes
from pallas_kernels.compiled.sources import fingerprint
from pallas_kernels.compiled.targets import compile_for
from pallas_kernels.contracts import KERNELS, MOSAIC_GPU

# Where there are kernels for a card, XLA is compiled for the others only.
WANTED = {
    **dict.fromkeys(TPUS, "auto"),
    **{
        name: "xla" if MOSAIC_GPU.card_refusal(name, card.capability) else "mosaic_gpu"
        for name, card in GPUS.items()
    },
}
"""By target, what is compiled for it, as ``choice.choose`` takes it."""


@contextlib.contextmanager
def process() -> Iterator[concurrent.futures.Executor]:
    """A process of its own to compile in, which begins with this one's environment.

    One is for one target: Mosaic GPU compiles for the first card that a process asks
    for.  For another one its assembler fails, or it hands out the first one's kernel
    again (seen with JAX 0.10 and 0.12).
    """
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as executor:
        yield executor


def compile_all(
    target: str, cases: Iterable[Case], wanted: str
) -> Iterator[tuple[Outcome, float]]:
    """Compiles cases for a target, one after the other, in a process of their own.

    Args:
      target: accelerator.
      cases: reads.
      wanted: as for ``choice.choose``.

    Returns:
      What came of each, and the seconds it took.
    """
    with process() as executor:
        yield from executor.map(
            functools.partial(compile_one, target, wanted=wanted), tuple(cases)
        )


def outdated(target: str, cases: Iterable[Case], known: Outcomes) -> list[Case]:
    """Cases that were not compiled for a target from the text that is here.

    Args:
      target: accelerator.
      cases: reads.
      known: what is kept.
    """
    sources = {
        each.case: each.source for each in known.outcomes if each.target == target
    }
    return [
        case
        for case in cases
        if sources.get(case.identity) != source_of(target, case, WANTED[target])
    ]


def source_of(target: str, case: Case, wanted: str) -> str:
    """What ``Outcome.source`` is of a case compiled from the text that is here.

    Args:
      target: accelerator.
      case: the read.
      wanted: as for ``choice.choose``.
    """
    kernel = _kernel(case, _backend(target), wanted)
    form = (case, ROWS, COLUMNS, BLOCKS, LAYERS, SELECTED)
    return fingerprint(case.operation, kernel.implementation, form)


def _kernel(case: Case, backend: str, wanted: str) -> Kernel:
    """What is compiled where an implementation is wanted."""
    if wanted in KERNELS:
        refusal = KERNELS[wanted][case.operation].refusal_of(case.pool)
        if refusal is not None:
            return Kernel("xla", refusal)
    return choose(case.operation, case.pool, backend=backend, wanted=wanted)


def _backend(target: str) -> str:
    return {"tpu": "tpu", "cuda": "gpu"}[platform_of(target)]


def compile_one(target: str, case: Case, wanted: str = "auto") -> tuple[Outcome, float]:
    """Compiles one case for one target.

    Args:
      target: accelerator.
      case: the read.
      wanted: as for ``choice.choose``.

    Returns:
      What came of it, and the seconds it took; of plain XLA if the kernel that was
      asked for does not accept the layout.
    """
    backend = _backend(target)
    kernel = _kernel(case, backend, wanted)
    outcome = Outcome(
        target,
        case.operation,
        case.layout,
        case.dtype,
        case.width,
        kernel.implementation,
        source=source_of(target, case, wanted),
    )
    try:
        compiled, seconds = compile_for(target, *case.program(kernel, backend))
    except Exception as error:  # the compiler's errors have no common class
        refused = dataclasses.replace(outcome, refusal=str(error).splitlines()[0])
        return refused, 0.0
    memory, layer = compiled.memory_analysis(), case.layer_bytes(backend)
    moves = large_moves(compiled, layer)
    temporary = 0 if memory is None else memory.temp_size_in_bytes
    if temporary >= layer and not moves:
        # Fused with something else, for example a conversion.
        moves = (f"{temporary:,} bytes, as much as a layer",)
    found = dataclasses.replace(outcome, temporary_bytes=temporary, moves=moves)
    return found, seconds
