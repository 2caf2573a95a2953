"""Compiling every case for every target, and what came of it."""

import dataclasses
from collections.abc import Iterable, Iterator

from pallas_kernels.choice import choose
from pallas_kernels.compiled.cases import Case
from pallas_kernels.compiled.copies import large_moves
from pallas_kernels.compiled.targets import compile_for, missing, platform_of


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of compiling one case for one target.

    Attributes:
      target: accelerator.
      operation: read.
      layout: of the pool.
      dtype: of the pool.
      width: queries of a row in a step.
      implementation: which one was compiled, ``"xla"`` or a kernel.
      seconds: that compiling took.
      temporary_bytes: scratch memory of the program.
      moves: instructions that copy a pool, or lay it out anew.
      refusal: what the compiler said; None if it compiled.
    """

    target: str
    operation: str
    layout: str
    dtype: str
    width: int
    implementation: str
    seconds: float = 0.0
    temporary_bytes: int = 0
    moves: tuple[str, ...] = ()
    refusal: str | None = None

    @property
    def good(self) -> bool:
        """Whether it compiled and copies no pool."""
        return self.refusal is None and not self.moves


def compile_all(
    targets: Iterable[str], cases: Iterable[Case], wanted: str = "auto"
) -> Iterator[Outcome]:
    """Compiles cases for targets, one after the other.

    Args:
      targets: accelerators; those that cannot be compiled for here are left out, see
        ``targets.missing``.
      cases: reads.
      wanted: as for ``choice.choose``.
    """
    cases = tuple(cases)
    for target in targets:
        if missing(target) is None:
            for case in cases:
                yield compile_one(target, case, wanted)


def compile_one(target: str, case: Case, wanted: str = "auto") -> Outcome:
    """Compiles one case for one target.

    Args:
      target: accelerator.
      case: the read.
      wanted: as for ``choice.choose``.
    """
    backend = {"tpu": "tpu", "cuda": "gpu"}[platform_of(target)]
    kernel = choose(case.operation, case.pool, backend=backend, wanted=wanted)
    outcome = Outcome(
        target,
        case.operation,
        case.layout,
        case.dtype,
        case.width,
        kernel.implementation,
    )
    try:
        compiled, seconds = compile_for(target, *case.program(kernel))
    except Exception as error:  # the compiler's errors have no common class
        return dataclasses.replace(outcome, refusal=str(error).splitlines()[0])
    memory = compiled.memory_analysis()
    return dataclasses.replace(
        outcome,
        seconds=seconds,
        temporary_bytes=0 if memory is None else memory.temp_size_in_bytes,
        moves=large_moves(compiled, case.pool_bytes),
    )
