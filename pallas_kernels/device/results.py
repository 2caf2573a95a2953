"""What running the kernels gave, as data that is kept and as a table.  No JAX."""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

KEPT = Path(__file__).with_name("results.json")
"""What ``python -m pallas_kernels.device --write`` found."""

WRITTEN = Path(__file__).parents[1] / "RESULTS.md"
"""Where the table of that lies."""

INTERPRETER, REHEARSAL = "interpreter", "rehearsal (interpreted)"
"""The device of a run where there was none, and of one that is never kept."""

_HEAD = """# Kernels that ran

Every read, run and compared with float64. The error is the largest of any output, \
relative to the largest value of its row; for rankings, of the score of what was \
chosen. Bandwidth is bytes that the read must move over the time it took, in \
parentheses over what the device's memory can; the goal is 0.85. XLA's time is for the \
same read, and so is that of the nearest kernel that JAX ships, over ours; or it says \
why none is near. Accelerators that no run is kept of: {missing}.

Made by `python -m pallas_kernels.device --write` from `device/results.json`.
"""

_RESULTS = ("by", "error", "GB/s", "XLA / kernel", "JAX's / kernel")


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of running one case.

    Attributes:
      operation: read.
      layout: of the pool.
      dtype: of the pool.
      width: queries of a row in a step.
      implementation: which kernel.
      error: largest relative error.
      tolerance: most that is right.
      nbytes: bytes that the read must move.
      seconds: of one call; None where it was interpreted.
      xla_seconds: of the same read by XLA; None where it was interpreted.
      public: name of the nearest kernel that JAX ships, or why none is; None where it
        was interpreted.
      public_error: largest relative error of that one.
      public_seconds: of one call of that one.
    """

    operation: str
    layout: str
    dtype: str
    width: int
    implementation: str
    error: float
    tolerance: float
    nbytes: int
    seconds: float | None = None
    xla_seconds: float | None = None
    public: str | None = None
    public_error: float | None = None
    public_seconds: float | None = None

    @property
    def good(self) -> bool:
        """Whether the error is within the tolerance."""
        return self.error <= self.tolerance


@dataclasses.dataclass(frozen=True)
class Run:
    """All cases on one device.

    Attributes:
      device: its name, :data:`INTERPRETER` for none.
      backend: ``"tpu"``, ``"gpu"``, or ``"cpu"`` for the interpreter.
      date: of the run.
      versions: of the packages.
      results: one per case.
      bandwidth: of the device's memory, bytes per second; None if it is not known.
    """

    device: str
    backend: str
    date: str
    versions: dict[str, str]
    results: tuple[Result, ...]
    bandwidth: float | None = None

    def right(self, implementation: str, operation: str, dtype: str) -> bool:
        """Whether a kernel ran, and was right in every layout.

        Args:
          implementation: kernel.
          operation: read.
          dtype: of the pool.
        """
        asked = (implementation, operation, dtype)
        found = [
            each.good
            for each in self.results
            if (each.implementation, each.operation, each.dtype) == asked
        ]
        return bool(found) and all(found)


def kept(path: Path = KEPT) -> tuple[Run, ...]:
    """Reads the file.

    Args:
      path: the file.
    """
    return tuple(
        Run(**{**run, "results": tuple(Result(**each) for each in run["results"])})
        for run in json.loads(path.read_text())
    )


def keep(run: Run, path: Path = KEPT) -> None:
    """Writes a run in place of an earlier one on the same device.

    Args:
      run: the run.
      path: the file.

    Raises:
      ValueError: for a rehearsal.
    """
    if run.device == REHEARSAL:
        raise ValueError("A rehearsal is not kept: run it without --rehearse.")
    runs = [each for each in kept(path) if each.device != run.device]
    data = [dataclasses.asdict(each) for each in (*runs, run)]
    path.write_text(json.dumps(data, indent=1) + "\n")


def markdown(runs: Iterable[Run]) -> str:
    """A table for each run.

    Args:
      runs: all of them.
    """
    runs = tuple(runs)
    present = {run.backend for run in runs}
    missing = [name.upper() for name in ("tpu", "gpu") if name not in present]
    text = _HEAD.format(missing=", ".join(f"{x} (not run)" for x in missing) or "none")
    return text + "".join(_table(run) for run in runs)


def _table(run: Run) -> str:
    versions = ", ".join(f"{name} {text}" for name, text in run.versions.items())
    lines = [
        ["read", "layout", "dtype", "queries", *_RESULTS],
        ["---"] * 5 + ["---:"] * 3 + ["---"],
        *(_row(each, run.bandwidth) for each in run.results),
    ]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"\n## {run.device}\n\n{run.date}, {versions}\n\n{table}\n"


def _row(each: Result, peak: float | None) -> list[str]:
    bandwidth = ratio = "-"
    near = each.public or "-"
    if each.seconds is not None:
        speed = each.nbytes / each.seconds
        bandwidth = f"{speed / 1e9:.0f}" + (f" ({speed / peak:.2f})" if peak else "")
        if each.xla_seconds is not None:
            ratio = f"{each.xla_seconds / each.seconds:.2f}"
        if each.public_seconds is not None:
            near = f"{each.public_seconds / each.seconds:.2f} {each.public}"
            near += f", error {each.public_error:.1e}"
    return [
        each.operation,
        each.layout,
        each.dtype,
        str(each.width),
        each.implementation,
        f"{each.error:.1e}" + ("" if each.good else " **wrong**"),
        bandwidth,
        ratio,
        near,
    ]
