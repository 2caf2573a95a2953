"""What the thread blocks of a GPU kernel copy: counted from what they are given.

A kernel's copies are what its own arithmetic says (``mosaic_gpu.parts``) of the
operands it was called with, since nothing here can run it; what one copy brings is
taken from the slices that it copies.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_gpu.parts import FAR, part_at, parts_of_tile
from pallas_kernels.mosaic_gpu.sizes import KEYS
from pallas_kernels.mosaic_gpu.tiles import Tiles


@dataclasses.dataclass
class Copies:
    """What the calls of kernels would copy, in bytes.

    Attributes:
      distinct: of the pool, each byte once.
      moved: of the pool, as often as a thread block copies them.
      besides: other operands, and results.
    """

    distinct: int = 0
    moved: int = 0
    besides: int = 0


@contextlib.contextmanager
def recorded() -> Iterator[Copies]:
    """Kernels called in this context do not run; what they would copy is summed.

    Nothing is traced either: their arguments must be arrays, and loops around them
    run as Python does.
    """
    found = Copies()
    counts = {
        "read_blocks": _blocks,
        "score_blocks": _scores,
        "read_entries": _entries,
    }

    def kernel(reader, *, out_type, kernel_name, **others):
        del others

        def call(*operands):
            results = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), out_type)
            counts[kernel_name](found, reader, operands)
            found.besides += _nbytes(jax.tree.leaves(results))
            return results

        return call

    with mock.patch.object(plgpu, "kernel", kernel), jax.disable_jit():
        yield found


def _nbytes(arrays) -> int:
    return sum(x.size * x.dtype.itemsize for x in arrays)


def _blocks(found: Copies, reader, operands) -> None:
    """Whole histories and windows: every tile of a row, for every tile of queries."""
    first, stop, since, end, low, _, table = (np.asarray(x) for x in operands[:7])
    source, tiles = reader.source, reader.attend.tiles
    found.besides += _nbytes(operands[:8])
    for row in range(len(table)):
        numbers = jnp.arange(first[row], stop[row], dtype=jnp.int32)
        there = _there(source, table, row, since[row], end[row], numbers, reader.ring)
        _add(found, tiles, source, there, times=low.shape[1])


def _scores(found: Copies, reader, operands) -> None:
    """Index keys: every tile of the table, once."""
    table, source = np.asarray(operands[0]), reader.source
    found.besides += _nbytes(operands[:3])
    numbers = jnp.arange(table.shape[1] * source.stored.block_entries // KEYS)
    for row in range(len(table)):
        there = _there(source, table, row, 0, FAR, numbers, ring=False)
        _add(found, reader.tiles, source, there, times=1)


def _there(source, table, row, since, end, numbers, ring) -> int:
    """How many parts of tiles are copied."""
    stored = source.stored
    return sum(
        int(
            jnp.sum(
                part_at(
                    stored,
                    jnp.asarray(table),
                    row,
                    since,
                    end,
                    numbers,
                    n,
                    blocks=source.num_blocks,
                    ring=ring,
                )[1]
            )
        )
        for n in range(parts_of_tile(stored))
    )


def _add(found: Copies, tiles: Tiles, source, parts: int, times: int) -> None:
    count = min(source.stored.block_entries, KEYS)
    heads = source.stored.entry.key_planes[0].heads
    each = sum(_copied(tiles, source.stored.block_entries, count).values())
    found.moved += parts * times * heads * each
    found.distinct += parts * count * _entry_bytes(tiles)


def _entries(found: Copies, reader, operands) -> None:
    """Selected entries: each on its own, and its scales by XLA."""
    blocks, slots, query = (np.asarray(x) for x in operands[:3])
    tiles, heads = reader.attend.tiles, query.shape[1]
    there = blocks >= 0
    places = np.stack([blocks[there], slots[there]], axis=1)
    # Of one selection for all heads every head copies its own part.
    sharing = heads if blocks.shape[1] == 1 else 1
    each = sum(_copied(tiles, 1, 1).values())
    found.moved += len(places) * sharing * query.shape[2] * each
    found.distinct += len(np.unique(places, axis=0)) * _entry_bytes(tiles)
    # Scales are gathered by XLA into arrays from which the kernel reads them.
    scales = _nbytes(operands[3 : 3 + len(reader.scales)])
    found.moved += 3 * scales
    found.distinct += scales
    found.besides += _nbytes(operands[:3])


def _entry_bytes(tiles: Tiles) -> int:
    """Bytes of one entry in the planes that are copied."""
    return sum(p.width * np.dtype(p.dtype).itemsize for p in tiles.planes)


def _copied(tiles: Tiles, size: int, count: int) -> dict[str, int]:
    """Bytes that ``Tiles.copy`` copies of each plane, for one head."""
    found: dict[str, int] = {}
    arrays, buffers = {}, {}
    for plane in tiles.planes:
        shape = (1, 1, size, plane.width)
        if tiles.single:
            shape = (*shape[:3], plane.width // 64, 64)
        elif plane.width == 1:
            shape = shape[:3]
        arrays[plane.name] = _Slice(shape)
        buffers[plane.name] = _Slice((1, KEYS))
    sizes = iter(tiles.planes)

    def copy(source, target, barrier):
        del target, barrier
        plane = next(sizes)
        nbytes = math.prod(source.shape) * np.dtype(plane.dtype).itemsize
        found[plane.name] = nbytes

    with mock.patch.object(plgpu, "copy_gmem_to_smem", copy):
        tiles.copy(arrays, 0, (0, 0, count), buffers, 0, 0, 0, None)
    return found


class _Slice:
    """The shape of a reference, and of parts of it."""

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape

    @property
    def at(self) -> "_Slice":
        return self

    def __getitem__(self, where: Any) -> "_Slice":
        where = where if isinstance(where, tuple) else (where,)
        left = self.shape[len(where) :]
        kept = [x.size for x in where if hasattr(x, "size")]
        return _Slice((*kept, *left))
