"""Products on the tensor cores that Hopper and Blackwell share.

Warp-level ``mma`` reads its operands from registers, so one source serves both cards;
``wgmma`` (Hopper only) and ``tcgen05`` (Blackwell only) would need one each.  A product
is ``[M, K] @ [K, N]`` with ``M`` a multiple of 64 (16 rows a warp), ``K`` of 16 and
``N`` of 8.  Keys and values stand on the left, queries on the right: a decode step has
few queries, and ``N`` pads them to 8 only.

Three things here are machine code that no interpreter runs: the ``mma`` itself and the
two ``transposed``/``right`` moves between lanes.  Each says what it stands for in plain
JAX, and that is what an interpreted kernel runs instead.
"""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import llvm

ROWS = 64
COLUMNS = 8
DEPTH = 16

# What JAX 0.10 and later versions name, or call, in different ways.
_versioned: Any = plgpu

# Places in a warpgroup of 4 warps of 32 lanes, as PTX lays out ``mma.m16n8k16``.
_Tiling, _Replicated = plgpu.Tiling, plgpu.Replicated
if hasattr(plgpu.Layout, "MMA_ACC"):
    ACC = _versioned.Layout.MMA_ACC(jnp.bfloat16)
    LEFT = _versioned.Layout.MMA_LHS(jnp.bfloat16)
    RIGHT = _versioned.Layout.MMA_RHS(jnp.bfloat16)
else:
    ACC = plgpu.Layout.TILED(
        _Tiling(((64, 8), (16, 8), (8, 8), (2,))), (-7,), (-3, -2), -1
    )
    LEFT = plgpu.Layout.TILED(
        _Tiling(((64, 16), (16, 8), (8, 8), (2,))), (-7,), (-3, -2), -1
    )
    RIGHT = plgpu.Layout.TILED(
        _Tiling(((16, 8), (8, 8), (2, 1))), (_Replicated(4),), (-3, -4), -2
    )
# ``[K, M]`` whose transpose is a left operand, once pairs have changed lanes.
TURNED = plgpu.Layout.TILED(
    _Tiling(((8, 64), (8, 16), (8, 8), (2,))), (-6,), (-3, -2), -1
)
# ``[K, N]`` that every warp holds, and that is a right operand once pairs have.
SHARED = plgpu.Layout.TILED(_Tiling(((8, 8), (2,))), (_Replicated(4),), (-3, -2), -1)
QUERIES = ACC.reduce(0)
KEYS = ACC.reduce(1)


def load(ref, layout) -> jax.Array:
    """What ``ref`` holds, in a layout."""
    if "idx" in inspect.signature(plgpu.load).parameters:  # JAX 0.10
        return _versioned.load(ref, (), layout=layout, optimized=False)
    return _versioned.load(ref, layout=layout, optimized=False)


def store(ref, x) -> None:
    """Puts ``x`` into ``ref``."""
    if hasattr(plgpu, "store"):
        _versioned.store(ref, x, optimized=False)
    else:  # JAX 0.10
        ref[...] = x


def zeros(shape: tuple[int, ...], layout) -> jax.Array:
    """Float32 zeros of a layout."""
    return plgpu.layout_cast(jnp.zeros(shape, jnp.float32), layout)


def down(x: jax.Array, rows: int) -> jax.Array:
    """``[N]`` of layout ``QUERIES`` to ``[rows, N]``."""
    wide = jax.lax.broadcast_in_dim(x, (rows, x.shape[0]), (1,))
    return plgpu.layout_cast(wide, ACC)


def along(x: jax.Array, columns: int) -> jax.Array:
    """``[M]`` of layout ``KEYS`` to ``[M, columns]``."""
    wide = jax.lax.broadcast_in_dim(x, (x.shape[0], columns), (0,))
    return plgpu.layout_cast(wide, ACC)


def product(acc: jax.Array, left: list, right: list, *, interpret: bool) -> jax.Array:
    """``acc + left @ right`` of operands in parts, see :func:`parts`."""
    # Small terms first; those below 2**-24 of the result are left out.
    count = len(left)
    for order in reversed(range(count)):
        for i in range(order + 1):
            acc = _mma(acc, left[i], right[order - i], interpret)
    return acc


def parts(x: jax.Array) -> list[jax.Array]:
    """Bfloat16 terms that sum up to ``x``: one, or three for float32.

    Three terms hold all 24 bits of a float32, and six products of them give a float32
    product (Henry, Tang and Heinecke 2019): tensor cores have no other as exact.
    """
    if x.dtype == jnp.bfloat16:
        return [x]
    if x.dtype != jnp.float32:
        # There is no shorter way from 8 bits that every card has.
        return [x.astype(jnp.float32).astype(jnp.bfloat16)]
    terms = []
    for _ in range(3):
        term = x.astype(jnp.bfloat16)
        terms.append(term)
        x = x - term.astype(jnp.float32)
    return terms


def transposed(x: jax.Array, *, interpret: bool) -> jax.Array:
    """``[K, M]`` of layout ``TURNED`` to its transpose, a left operand."""
    return x.T if interpret else _moved(x, TURNED, LEFT, x.shape[::-1], left_registers)


def right(x: jax.Array, *, interpret: bool) -> jax.Array:
    """``[K, N]`` of layout ``SHARED`` as a right operand."""
    return x if interpret else _moved(x, SHARED, RIGHT, x.shape, right_registers)


def left_registers(registers: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Registers of ``[K, M]`` in ``TURNED``, each turned, in the order of ``LEFT``.

    Args:
      registers: objects, in C order.
      shape: ``(M, K)``.
    """
    rows, depth = shape
    halves = registers.reshape(depth // DEPTH, 2, rows // ROWS, 2)
    return halves.transpose(2, 0, 1, 3)


def right_registers(registers: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Registers of ``[K, N]`` in ``SHARED``, each turned, in the order of ``RIGHT``.

    Args:
      registers: objects, in C order.
      shape: ``(K, N)``.
    """
    depth, columns = shape
    halves = registers.reshape(depth // DEPTH, 2, columns // COLUMNS)
    return halves.transpose(0, 2, 1)


def _moved(x, before, after, shape, ordered):
    """Transposes each 8 x 8 block across the lanes of a warp, and reorders them."""

    @_versioned.inline_mgpu(
        arg_types=(before,),
        return_type=plgpu.ShapeDtypeStruct(shape, jnp.bfloat16, layout=after),
    )
    def move(_, x):
        layout = after.to_mgpu()
        turned = np.vectorize(_turned, otypes=[object])(x.registers)
        return mgpu.FragmentedArray(
            _registers=ordered(turned, shape).reshape(layout.registers_shape(shape)),
            _layout=layout,
            _is_signed=None,
        )

    return move(x)


def _turned(register):
    """Lane ``4 r + c`` has columns ``2 c`` and ``2 c + 1`` of row ``r``; of column."""
    i32 = ir.IntegerType.get_signless(32)
    out: Any = llvm.inline_asm(
        i32,
        [llvm.bitcast(i32, register)],
        "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;",
        "=r,r",
        has_side_effects=False,
    )
    return llvm.bitcast(register.type, out)


def _mma(acc, left, right, interpret):
    if interpret:
        return acc + jnp.dot(
            left.astype(jnp.float32),
            right.astype(jnp.float32),
            precision=jax.lax.Precision.HIGHEST,
        )

    @_versioned.inline_mgpu(
        arg_types=(ACC, LEFT, RIGHT),
        return_type=plgpu.ShapeDtypeStruct(acc.shape, jnp.float32, layout=ACC),
    )
    def multiply(_, acc, left, right):
        return mgpu.mma(acc, left, right)

    return multiply(acc, left, right)
