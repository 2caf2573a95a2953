"""How each kernel was verified, from what the commands of this package kept.

Imports no JAX.
"""

import dataclasses
import functools

from pallas_kernels.compiled.accelerators import GPUS, TPUS
from pallas_kernels.compiled.outcomes import kept as kept_outcomes


@dataclasses.dataclass(frozen=True)
class Evidence:
    """How an implementation of a read was verified, for pools of one dtype.

    Attributes:
      compiled: accelerators for which it compiles, in every layout that was tried, and
        copies no pool; they were not there (``python -m pallas_kernels.compiled``).
    """

    compiled: tuple[str, ...]

    @property
    def words(self) -> str:
        """For people."""
        if not self.compiled:
            return "by its tests on a CPU only"
        return "compiled for " + ", ".join(self.compiled)


def evidence(implementation: str, read: str, dtype: str, *, backend: str) -> Evidence:
    """What is known of an implementation.

    Args:
      implementation: ``"xla"`` or a kernel.
      read: the operation.
      dtype: of the pool's keys.
      backend: whose accelerators count.
    """
    compiled = _outcomes().compiled_for(implementation, read, dtype)
    names = {"tpu": TPUS, "gpu": GPUS}.get(backend, ())
    return Evidence(tuple(target for target in compiled if target in names))


_outcomes = functools.cache(kept_outcomes)
