"""Counting what a kernel moves for a step."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_kernels.choice import BACKENDS, Kernel, choose
from pallas_kernels.compiled.cases import LAYERS, Case
from pallas_kernels.device.step import Sizes, Step
from pallas_kernels.lanes import Lanes
from pallas_kernels.stored import read_planes
from pallas_kernels.traffic import copied, fetched
from pallas_kernels.traffic.amounts import Amounts

ROWS, SELECTED = 4, 2048


def count(case: Case, implementation: str, tokens: int) -> Amounts | None:
    """What a kernel moves for one step of 4 rows, drawn the same each time.

    Args:
      case: the read.
      implementation: ``"mosaic_tpu"`` or ``"mosaic_gpu"``.
      tokens: of each row, about; of the window of ``window_decode``, whose rows are
        1,024 tokens longer.

    Returns:
      None if the kernel does not accept the layout.
    """
    backend = BACKENDS[implementation]
    try:
        kernel = choose(
            case.operation, case.pool, backend=backend, wanted=implementation
        )
    except ValueError:
        return None
    length = tokens
    if case.operation == "window_decode":
        case, length = dataclasses.replace(case, window=tokens), tokens + 1024
    step = Step(case, Sizes(ROWS, length, SELECTED), np.random.default_rng(0))
    by = _tpu if backend == "tpu" else _gpu
    held, distinct, moved, besides = by(case, kernel, step)
    return Amounts(
        implementation,
        case.operation,
        case.layout,
        case.dtype,
        case.width,
        tokens,
        needed=step.nbytes,
        held=held,
        distinct=distinct,
        moved=moved,
        besides=besides,
    )


def _tpu(case: Case, kernel: Kernel, step: Step) -> tuple[int, int, int, int]:
    planes = _pool(case, "tpu", step)
    with fetched.recorded() as found:
        case.program(kernel, "tpu")[0](planes, step.arguments)
    distinct = moved = 0
    for array in planes.values():
        mine = [each for each in found if each.array is array]
        moved += sum(len(each.blocks) * each.nbytes for each in mine)
        blocks = np.concatenate([each.blocks for each in mine])
        distinct += len(np.unique(blocks, axis=0)) * mine[0].nbytes
    pool = {id(array) for array in planes.values()}
    besides = sum(
        len(each.blocks) * each.nbytes for each in found if id(each.array) not in pool
    )
    lanes = [Lanes.of(case.pool, plane) for plane in read_planes(case.pool.entry)]
    block = sum(each.nbytes for each in lanes)
    return step.entries * block // case.pool.block_entries, distinct, moved, besides


def _gpu(case: Case, kernel: Kernel, step: Step) -> tuple[int, int, int, int]:
    planes = _pool(case, "gpu", step)
    with copied.recorded() as found:
        case.program(kernel, "gpu")[0](planes, step.arguments)
    return step.nbytes, found.distinct, found.moved, found.besides


def _pool(case: Case, backend: str, step: Step) -> dict[str, Any]:
    """Arrays of the right shape; those that XLA does not read take no memory."""
    scales = {plane.scale for plane in case.pool.entry.planes}
    found = {}
    for name, array in case.planes(backend).items():
        shape = (LAYERS, step.blocks, *array.shape[2:])
        if backend == "gpu" and name in scales:
            found[name] = jnp.zeros(shape, array.dtype)
        else:
            found[name] = np.broadcast_to(np.zeros((), array.dtype), shape)
    return found
