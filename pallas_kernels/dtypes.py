"""Dtypes by name."""

import functools

import ml_dtypes  # also teaches NumPy the names of bfloat16 and float8
import numpy as np


@functools.lru_cache(maxsize=64)
def element_bits(name: str) -> int:
    """Bits of one element of the dtype called ``name``.

    Raises:
      ValueError: if there is no such dtype, or its elements are of an odd size.
    """
    dtype = named_dtype(name)
    if dtype.kind in "biuf":
        return 8 * dtype.itemsize
    try:
        bits = ml_dtypes.finfo(dtype).bits
    except ValueError:
        bits = 0
    if bits not in (4, 8, 16):
        raise ValueError(
            f"Elements of dtype {name!r} cannot be stored; use floats of 4, 8, 16 or "
            "32 bits, or integers of whole bytes."
        )
    return bits


def named_dtype(name: str) -> np.dtype:
    """The dtype called ``name``, including bfloat16 and the 8-bit floats.

    Raises:
      ValueError: if there is no such dtype.
    """
    try:
        return np.dtype(name)
    except TypeError as error:
        raise ValueError(
            f"Unknown dtype {name!r}; expected a name such as 'float32' or 'bfloat16'."
        ) from error
