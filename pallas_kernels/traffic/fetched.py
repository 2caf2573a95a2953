"""What a grid of Pallas brings to a TPU kernel: counted from its block specs.

Before a step Pallas fetches the blocks of an operand whose index differs from that of
the step before, and after one it writes those of results likewise.  So the index maps
that a kernel hands to ``pallas_call``, run over its grid, tell what is moved; no
formula of the kernel's own is asked.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl


@dataclasses.dataclass(frozen=True)
class Moved:
    """One operand or result of one call.

    Attributes:
      array: what was given; a shape and a dtype for results.
      nbytes: of one block of it.
      blocks: index of each block that was moved, in order, ``[N, ndim]``.
    """

    array: Any
    nbytes: int
    blocks: np.ndarray


@contextlib.contextmanager
def recorded() -> Iterator[list[Moved]]:
    """Kernels called in this context do not run; what they would move is listed.

    Nothing is traced either: their arguments must be arrays, and loops around them
    run as Python does.
    """
    found: list[Moved] = []

    def pallas_call(kernel, *, grid_spec, out_shape, **others):
        del kernel, others

        def call(*operands):
            count = grid_spec.num_scalar_prefetch
            rest = operands[count:]
            scalars = tuple(jnp.asarray(each) for each in operands[:count])
            single = not isinstance(out_shape, Sequence)
            shapes = (out_shape,) if single else tuple(out_shape)
            specs = grid_spec.out_specs
            specs = (specs,) if single else tuple(specs)
            pairs = [*zip(grid_spec.in_specs, rest, strict=True)]
            pairs += zip(specs, shapes, strict=True)
            grid = tuple(int(size) for size in grid_spec.grid)
            found.extend(_moved(grid, pairs, scalars))
            results = [jnp.zeros(each.shape, each.dtype) for each in shapes]
            return results[0] if single else results

        return call

    with mock.patch.object(pl, "pallas_call", pallas_call), jax.disable_jit():
        yield found


def _moved(grid, pairs, scalars) -> Iterator[Moved]:
    """What goes to or comes from the places of each pair of spec and array."""
    steps = np.indices(grid, np.int32).reshape(len(grid), -1)

    def indices(*step):
        found = [spec.index_map(*step, *scalars) for spec, _ in pairs]
        return jax.tree.map(lambda at: jnp.asarray(at, jnp.int32), found)

    with jax.disable_jit(False):
        every = jax.jit(jax.vmap(indices))(*steps)
    for (spec, array), index in zip(pairs, every, strict=True):
        blocks = np.stack(index, axis=1)
        changed = (blocks[1:] != blocks[:-1]).any(axis=1)
        blocks = blocks[np.concatenate([[True], changed])]
        nbytes = math.prod(spec.block_shape) * np.dtype(array.dtype).itemsize
        yield Moved(array, nbytes, blocks)
