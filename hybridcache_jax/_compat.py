"""Every difference between JAX versions, and every use of JAX beyond its public API.

Supported: JAX 0.10.2 to 0.12.
"""

import jax


def compiled_variants(function) -> int:
    """How many traces a jitted function holds; grows with each unplanned retrace."""
    return function._cache_size()


def temporary_bytes(compiled: jax.stages.Compiled) -> int:
    """Scratch memory that a compiled function needs besides inputs and outputs."""
    return compiled.memory_analysis().temp_size_in_bytes


def aliased_bytes(compiled: jax.stages.Compiled) -> int:
    """Bytes of donated inputs whose memory the outputs take over."""
    return compiled.memory_analysis().alias_size_in_bytes
