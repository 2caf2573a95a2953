"""Token ids on the host: taken from callers, and compared."""

import numpy as np

from hybridcache_jax._typing import TokenIds

_INT32_MAX = np.iinfo(np.int32).max


def token_array(tokens: TokenIds) -> np.ndarray:
    """Token ids as a flat int32 array; an int32 array is not copied.

    Raises:
      ValueError: if they are no flat sequence of integers that fit int32.
    """
    try:
        ids = np.asarray(tokens)
    except ValueError:
        raise ValueError(
            "Tokens must be a flat sequence of integers, got parts of several lengths; "
            "give one prompt at a time."
        ) from None
    if ids.size == 0:
        return np.zeros(0, np.int32)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(
            f"Tokens must be a flat sequence of integers, got shape {ids.shape} and "
            f"dtype {ids.dtype}."
        )
    if ids.dtype == np.int32:
        return np.ascontiguousarray(ids)
    if abs(int(ids.min())) > _INT32_MAX or int(ids.max()) > _INT32_MAX:
        raise ValueError(f"Token ids must fit int32, got {ids.min()}..{ids.max()}.")
    return np.ascontiguousarray(ids, np.int32)


def common_length(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading ids two arrays share.

    Args:
      a: ``[n]`` int32.
      b: ``[m]`` int32.
    """
    length = min(len(a), len(b))
    if length == 0:
        return 0
    different = a[:length] != b[:length]
    place = int(different.argmax())
    return place if different[place] else length
