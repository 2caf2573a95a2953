"""Amounts of memory as people write and read them."""

import re

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[_letter + "b"] = 1000**_power
    _UNITS[_letter + "ib"] = 1024**_power


def parse_bytes(text: int | str) -> int:
    """Bytes from a number or from text such as ``"8GiB"``.

    Raises:
      ValueError: if it is no positive amount.
    """
    if isinstance(text, int):
        size = text
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
        if match is None or match[2].lower() not in _UNITS:
            raise ValueError(
                f"Cannot read {text!r} as an amount of memory; write for example "
                f"'8GiB', '500MB' or a number of bytes."
            )
        size = int(float(match[1]) * _UNITS[match[2].lower()])
    if size < 1:
        raise ValueError(f"An amount of memory must be positive, got {text!r}.")
    return size


def format_bytes(size: float) -> str:
    """Bytes for people, for example ``"1.5 GiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
