"""Every difference between JAX versions, and every use of JAX beyond its public API.

Supported: JAX 0.10.2 to 0.12.
"""

from typing import Any

import jax


def compiled_variants(function) -> int:
    """How many traces a jitted function holds; grows with each unplanned retrace."""
    return function._cache_size()


def temporary_bytes(compiled: jax.stages.Compiled) -> int:
    """Scratch memory that a compiled function needs besides inputs and outputs."""
    return _memory(compiled).temp_size_in_bytes


def aliased_bytes(compiled: jax.stages.Compiled) -> int:
    """Bytes of donated inputs whose memory the outputs take over."""
    return _memory(compiled).alias_size_in_bytes


def matmul_precision() -> str:
    """The default precision of matrix products, as set by the caller."""
    return jax.config.jax_default_matmul_precision or "default"  # pyright: ignore[reportAttributeAccessIssue]


def _memory(compiled: jax.stages.Compiled) -> Any:
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise NotImplementedError("This backend does not tell a function's memory.")
    return analysis
