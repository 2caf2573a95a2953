"""Pallas' interpreter for GPU kernels, which newer versions of JAX have."""

from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu

_PARAMS = "InterpretGPUParams"


def missing() -> str | None:
    """Why nothing can be interpreted here; None if it can."""
    if hasattr(plgpu, _PARAMS):
        return None
    return f"JAX {jax.__version__} has no interpreter for Mosaic GPU"


def interpreter(wanted: bool) -> Any:
    """What a kernel takes as ``interpret``.

    Args:
      wanted: whether it is to be interpreted.

    Raises:
      ValueError: if it is, and cannot be.
    """
    if not wanted:
        return False
    reason = missing()
    if reason is not None:
        raise ValueError(f"{reason}; take JAX 0.12 or newer, or kernels='xla'.")
    return getattr(plgpu, _PARAMS)()
