"""Running every case: right, and how fast."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.choice import Kernel
from pallas_kernels.compiled.cases import Case
from pallas_kernels.contracts import KERNELS
from pallas_kernels.device import public
from pallas_kernels.device.drawn import SCALE, Drawn
from pallas_kernels.device.results import Result
from pallas_kernels.device.step import Sizes
from pallas_kernels.merge import Partial
from pallas_kernels.mosaic_gpu import interpreter
from pallas_kernels.stored import read_planes

INTERPRETED = Sizes(rows=2, tokens=640, selected=40)
REHEARSED = Sizes(rows=2, tokens=130, selected=9)
# Elements of a pool that is timed: drawn in seconds, and larger than a second-level
# cache in any dtype.
_ELEMENTS = 1 << 26
_REPEAT = 20

# Sums of products whose weights are rounded to bfloat16; float32 pools are exact to
# what their products are, which TPUs make of bfloat16 parts.
_TOLERANCE = {"float32": 1e-3}
_OTHERS = 2e-2


def timed_sizes(case: Case) -> Sizes:
    """How much an accelerator reads: short rows of wide entries, long ones of others.

    Args:
      case: the read.
    """
    rows = 64 if case.operation == "window_decode" else 8
    entry = sum(plane.width for plane in read_planes(case.pool.entry))
    tokens = _ELEMENTS * case.pool.entry_tokens // (rows * entry)
    return Sizes(rows, min(max(tokens, 1024), 1 << 17), selected=2048)


def kernels(case: Case, backend: str) -> Iterator[Kernel]:
    """The kernels that run on a backend and accept a case.

    Args:
      case: the read.
      backend: ``"tpu"`` or ``"gpu"``; ``"cpu"`` interprets those of both, of GPUs where
        JAX can.
    """
    names = {"tpu": ["mosaic_tpu"], "gpu": ["mosaic_gpu"], "cpu": ["mosaic_tpu"]}
    for name in names[backend] + ["mosaic_gpu"] * _interprets_both(backend):
        if KERNELS[name][case.operation].refusal_of(case.pool) is None:
            yield Kernel(name, "the suite asks for it", interpret=backend == "cpu")


def _interprets_both(backend: str) -> bool:
    return backend == "cpu" and interpreter.missing() is None


def run(cases: Iterable[Case], backend: str) -> Iterator[Result]:
    """Runs the cases that the backend's kernels accept.

    Args:
      cases: reads.
      backend: as for :func:`kernels`.
    """
    for case in cases:
        for kernel in kernels(case, backend):
            yield run_one(case, kernel)


def rehearse(cases: Iterable[Case]) -> Iterator[Result]:
    """All that happens on an accelerator, with little to read and none there.

    The times are of an interpreter: they say that a clock ran, and no more.

    Args:
      cases: reads, of which the first of each operation is taken.
    """
    first: dict[str, Case] = {}
    for case in cases:
        first.setdefault(case.operation, dataclasses.replace(case, group=4, window=50))
    for case in first.values():
        for kernel in kernels(case, "cpu"):
            yield run_one(case, kernel, REHEARSED, timed=True)


def run_one(
    case: Case, kernel: Kernel, sizes: Sizes | None = None, *, timed: bool | None = None
) -> Result:
    """Runs one case.

    Args:
      case: the read.
      kernel: what reads.
      sizes: how much there is to read; None for what suits the kernel.
      timed: whether it is timed, beside XLA and the nearest kernel of JAX; None for
        unless it is interpreted.
    """
    by_lanes = kernel.implementation == "mosaic_tpu"
    backend = "tpu" if by_lanes else "gpu"
    if sizes is None:
        sizes = INTERPRETED if kernel.interpret else timed_sizes(case)
    drawn = Drawn(case, sizes, by_lanes=by_lanes)
    arguments = (drawn.planes, drawn.arguments)
    function = jax.jit(case.program(kernel, backend)[0])
    result = Result(
        operation=case.operation,
        layout=case.layout,
        dtype=case.dtype,
        width=case.width,
        implementation=kernel.implementation,
        error=drawn.error(function(*arguments)),
        tolerance=_TOLERANCE.get(case.dtype, _OTHERS),
        nbytes=drawn.nbytes,
    )
    if timed is None:
        timed = not kernel.interpret
    if not timed:
        return result
    repeat = 1 if kernel.interpret else _REPEAT
    by_xla = jax.jit(case.program(Kernel("xla", "to compare"), backend)[0])
    return dataclasses.replace(
        result,
        seconds=_seconds(function, arguments, repeat),
        xla_seconds=_seconds(by_xla, arguments, repeat),
        **_by_public(case, backend, drawn, kernel.interpret, repeat),
    )


def _by_public(case, backend, drawn: Drawn, interpret, repeat) -> dict[str, Any]:
    """Fields of a result about the nearest kernel of JAX."""
    reason = public.reason_for_none(case, backend)
    if reason is not None:
        return {"public": reason}
    near = public.nearest(
        case, backend, drawn.pages, drawn.arguments, scale=SCALE, interpret=interpret
    )
    function = near.function if interpret else jax.jit(near.function)
    try:
        out = function(*near.arguments)
    except Exception as error:  # a kernel of others, on a device it may not know
        return {"public": f"{near.name} fails: {str(error).splitlines()[0]}"}
    partial = Partial(out, out, jnp.ones(out.shape[:-1]))
    return {
        "public": near.name,
        "public_error": drawn.error(partial),
        "public_seconds": _seconds(function, near.arguments, repeat),
    }


def _seconds(function: Callable, arguments: tuple, repeat: int) -> float:
    """Of one call, the least of some."""
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return min(times)
