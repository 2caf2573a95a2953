"""How each kernel was verified, from what the commands of this package kept.

Imports no JAX.
"""

import dataclasses
import functools

from pallas_kernels.compiled.accelerators import GPUS, TPUS
from pallas_kernels.compiled.outcomes import kept as kept_outcomes
from pallas_kernels.device.results import INTERPRETER
from pallas_kernels.device.results import kept as kept_runs


@dataclasses.dataclass(frozen=True)
class Evidence:
    """How an implementation of a read was verified, for pools of one dtype.

    Attributes:
      hardware: devices on which it ran and was right, in every layout that was tried
        (``python -m pallas_kernels.device``).
      compiled: accelerators for which it compiles, in every layout that was tried, and
        copies no pool; they were not there (``python -m pallas_kernels.compiled``).
      interpreted: whether it was right in Pallas' interpreter.
      layouts: that were compiled; a pool's own need not be among them.
    """

    hardware: tuple[str, ...]
    compiled: tuple[str, ...]
    interpreted: bool
    layouts: tuple[str, ...]

    @property
    def words(self) -> str:
        """For people."""
        parts = [f"run on {name}" for name in self.hardware]
        if self.compiled:
            layouts = "; ".join(self.layouts)
            parts.append(f"compiled for {', '.join(self.compiled)} (of {layouts})")
        if self.interpreted:
            parts.append("interpreted")
        return "; ".join(parts) or "by the library's tests on a CPU"


def evidence(implementation: str, read: str, dtype: str, *, backend: str) -> Evidence:
    """What is known of an implementation.

    Args:
      implementation: ``"xla"`` or a kernel.
      read: the operation.
      dtype: of the pool's keys.
      backend: whose accelerators count.
    """
    asked = (implementation, read, dtype)
    targets = {"tpu": TPUS, "gpu": GPUS}.get(backend, ())
    runs = [run for run in _runs() if run.right(*asked)]
    return Evidence(
        hardware=tuple(run.device for run in runs if run.backend == backend != "cpu"),
        compiled=tuple(
            target for target in _outcomes().compiled_for(*asked) if target in targets
        ),
        interpreted=any(run.device == INTERPRETER for run in runs),
        layouts=_outcomes().layouts(*asked, targets),
    )


_outcomes = functools.cache(kept_outcomes)
_runs = functools.cache(kept_runs)
