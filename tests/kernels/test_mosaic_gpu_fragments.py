"""Where the GPU kernels keep the elements of a product, against PTX's tables.

No interpreter runs ``mma`` and ``movmatrix``; here both are written down from the PTX
manual ("Matrix fragments for mma.m16n8k16", "movmatrix") and run on what the kernels'
layouts and orders of registers give them.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.mosaic_gpu import fragments

LANE = np.arange(32)
ROW, PAIR = LANE // 4, 2 * (LANE % 4)
ONE = np.arange(2)


def tiled(x, tiles):
    """An array cut up by a layout's tiles, the outermost first."""
    for tile in tiles:
        outer = x.ndim - len(tile)
        shape = list(x.shape[:outer])
        for size, step in zip(x.shape[outer:], tile, strict=True):
            shape += [size // step, step]
        order = [*range(outer)]
        order += [outer + 2 * n for n in range(len(tile))]
        order += [outer + 2 * n + 1 for n in range(len(tile))]
        x = x.reshape(shape).transpose(order)
    return x


def registers(x, layout):
    """Objects in C order, each ``[4 warps, 32 lanes, vector]``."""
    layout = layout.to_mgpu()
    x = tiled(x, layout.tiling.tiles)

    rank = x.ndim
    warp = [d % rank for d in layout.warp_dims if isinstance(d, int)]
    lane = [d % rank for d in layout.lane_dims if isinstance(d, int)]
    vector = layout.vector_dim % rank
    rest = [d for d in range(rank) if d not in (*warp, *lane, vector)]
    sizes = [
        int(np.prod([x.shape[d] for d in dims], dtype=int)) for dims in (warp, lane)
    ]
    x = x.transpose(*rest, *warp, *lane, vector)
    x = x.reshape(-1, *sizes, x.shape[-1])
    x = np.broadcast_to(x, (len(x), 4, *x.shape[2:]))
    out = np.empty(len(x), object)
    out[:] = list(x)
    return out


def movmatrix(register):
    """A warp's lane ``4 r + c`` has columns ``2 c`` and ``2 c + 1`` of row ``r``."""
    out = []
    for warp in register:
        matrix = np.empty((8, 8), warp.dtype)
        matrix[ROW[:, None], PAIR[:, None] + ONE] = warp
        out.append(matrix.T[ROW[:, None], PAIR[:, None] + ONE])
    return np.stack(out)


def mma(a, b):
    """``[64, 16] @ [16, 8]`` from registers, to registers: PTX's fragments."""
    out = []
    for warp in range(4):
        left, right = np.zeros((16, 16)), np.zeros((16, 8))
        for n, register in enumerate(a):
            row, column = ROW + 8 * (n % 2), PAIR + 8 * (n // 2)
            left[row[:, None], column[:, None] + ONE] = register[warp]
        for n, register in enumerate(b):
            right[PAIR[:, None] + 8 * n + ONE, ROW[:, None]] = register[warp]
        product = left @ right
        halves = [product[ROW[:, None] + 8 * n, PAIR[:, None] + ONE] for n in (0, 1)]
        out.append(halves)
    return np.array(out).transpose(1, 0, 2, 3)


def test_a_product_of_one_tile():
    random = np.random.default_rng(0)
    left = random.integers(-3, 4, (64, 16)).astype(float)
    right = random.integers(-3, 4, (16, 8)).astype(float)
    got = mma(registers(left, fragments.LEFT), registers(right, fragments.RIGHT))
    want = registers(left @ right, fragments.ACC)
    np.testing.assert_array_equal(got, np.stack(list(want)))


@pytest.mark.parametrize("shape", [(64, 64), (32, 128), (16, 64)])
def test_values_turn_into_a_left_operand(shape):
    x = np.arange(np.prod(shape)).reshape(shape)
    turned = [movmatrix(register) for register in registers(x, fragments.TURNED)]
    held = np.empty(len(turned), object)
    held[:] = turned
    got = fragments.left_registers(held, shape[::-1]).ravel()
    want = registers(x.T, fragments.LEFT)
    np.testing.assert_array_equal(np.stack(list(got)), np.stack(list(want)))


@pytest.mark.parametrize("shape", [(64, 8), (64, 32), (16, 16)])
def test_queries_and_weights_turn_into_a_right_operand(shape):
    x = np.arange(np.prod(shape)).reshape(shape)
    turned = [movmatrix(register) for register in registers(x, fragments.SHARED)]
    held = np.empty(len(turned), object)
    held[:] = turned
    got = fragments.right_registers(held, shape).ravel()
    want = registers(x, fragments.RIGHT)
    np.testing.assert_array_equal(np.stack(list(got)), np.stack(list(want)))


def test_three_parts_hold_a_float32():
    random = np.random.default_rng(1)
    x = (random.normal(size=4096) * 2.0 ** random.integers(-60, 60, 4096)).astype("f4")
    terms = fragments.parts(jnp.asarray(x))
    total = sum(np.asarray(term, np.float64) for term in terms)
    np.testing.assert_allclose(total, x, rtol=2.0**-23)
    assert len(fragments.parts(jnp.asarray(x, jnp.bfloat16))) == 1


def test_six_products_are_as_good_as_float32():
    random = np.random.default_rng(2)
    left = random.normal(size=(64, 256)).astype("f4")
    right = random.normal(size=(256, 8)).astype("f4")
    got = fragments.product(
        jnp.zeros((64, 8)),
        fragments.parts(jnp.asarray(left)),
        fragments.parts(jnp.asarray(right)),
        interpret=True,
    )
    want = left.astype(np.float64) @ right
    assert np.abs(got - want).max() < 1e-6 * np.abs(want).max()
