"""Running every case: right, and how fast."""

import time
from collections.abc import Callable, Iterable, Iterator

import jax

from pallas_kernels.choice import Kernel, choose
from pallas_kernels.compiled.cases import Case
from pallas_kernels.device.drawn import Drawn, Sizes
from pallas_kernels.device.results import Result

INTERPRETED = Sizes(rows=2, tokens=640, selected=40)
TIMED = Sizes(rows=8, tokens=32_768, selected=2048)
_REPEAT = 20

# Sums of products whose weights are rounded to bfloat16; float32 pools are exact to
# what their products are, which TPUs make of bfloat16 parts.
_TOLERANCE = {"float32": 1e-3}
_OTHERS = 2e-2


def run(cases: Iterable[Case], backend: str) -> Iterator[Result]:
    """Runs the cases that the backend's kernels accept.

    Args:
      cases: reads.
      backend: ``"tpu"`` or ``"gpu"``; ``"cpu"`` interprets the TPU kernels.
    """
    wanted = {"tpu": "mosaic_tpu", "gpu": "mosaic_gpu", "cpu": "interpret"}[backend]
    for case in cases:
        try:
            kernel = choose(case.operation, case.pool, backend=backend, wanted=wanted)
        except ValueError:
            continue
        if kernel.implementation != "xla":
            yield run_one(case, kernel)


def run_one(case: Case, kernel: Kernel, sizes: Sizes | None = None) -> Result:
    """Runs one case, and times it if nothing is interpreted.

    Args:
      case: the read.
      kernel: what reads.
      sizes: how much there is to read; None for what suits the kernel.
    """
    by_lanes = kernel.implementation == "mosaic_tpu"
    backend = "tpu" if by_lanes else "gpu"
    if sizes is None:
        sizes = INTERPRETED if kernel.interpret else TIMED
    drawn = Drawn(case, sizes, by_lanes=by_lanes)
    arguments = (drawn.planes, drawn.arguments)
    function = jax.jit(case.program(kernel, backend)[0])
    error = drawn.error(function(*arguments))
    seconds = xla_seconds = None
    if not kernel.interpret:
        by_xla = jax.jit(case.program(Kernel("xla", "to compare"), backend)[0])
        seconds = _seconds(function, arguments)
        xla_seconds = _seconds(by_xla, arguments)
    return Result(
        operation=case.operation,
        layout=case.layout,
        dtype=case.dtype,
        width=case.width,
        implementation=kernel.implementation,
        error=error,
        tolerance=_TOLERANCE.get(case.dtype, _OTHERS),
        nbytes=drawn.nbytes,
        seconds=seconds,
        xla_seconds=xla_seconds,
    )


def _seconds(function: Callable, arguments: tuple) -> float:
    """Of one call, the least of some."""
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(_REPEAT):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return min(times)
