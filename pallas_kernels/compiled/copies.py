"""What a compiled program moves that no read needs."""

import math
import re

import jax

_MOVES = "copy|copy-start|transpose|all-gather|all-gather-start"
_MOVE = re.compile(rf"= \(?(\w+)\[([\d,]*)\][^ ]* (?:\w+\[[^ ]* )*({_MOVES})\(")
_BITS = re.compile(r"(\d+)")


def large_moves(compiled: jax.stages.Compiled, nbytes: int) -> tuple[str, ...]:
    """Instructions of the optimised program that copy or lay out at least so much.

    Args:
      compiled: the program.
      nbytes: least bytes of a result that count.

    Returns:
      One text per instruction, ``"copy f32[2,256,64,8]"``.
    """
    found = []
    for dtype, shape, move in _MOVE.findall(compiled.as_text() or ""):
        count = math.prod(int(size) for size in shape.split(",") if size)
        bits = _BITS.search(dtype)
        if count * (int(bits[1]) if bits else 8) >= 8 * nbytes:
            found.append(f"{move} {dtype}[{shape}]")
    return tuple(found)
