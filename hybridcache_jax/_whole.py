"""Whole numbers as callers give them."""

import operator
from typing import Any


def whole(name: str, value: Any, *, least: int = 0, most: int = 2**31 - 1) -> int:
    """A number as a caller gave it, if it is whole and in range.

    Args:
      name: what the caller calls it.
      value: an integer of Python or NumPy; a truth value is none.
      least: smallest that is taken.
      most: largest that is taken.

    Raises:
      ValueError: if it is none.
    """
    number = _index(value)
    if number is None or not least <= number <= most:
        raise ValueError(
            f"{name} must be a whole number from {least} to {most}, got {value!r}."
        )
    return number


def integer(name: str, value: Any) -> int:
    """A number as a caller gave it, if it is whole, of any size.

    Args:
      name: what the caller calls it.
      value: an integer of Python or NumPy; a truth value is none.

    Raises:
      ValueError: if it is none.
    """
    number = _index(value)
    if number is None:
        raise ValueError(f"{name} must be a whole number, got {value!r}.")
    return number


def _index(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
