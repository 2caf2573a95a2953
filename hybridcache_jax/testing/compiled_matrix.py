"""Every decode step of :mod:`compiled_step` for every accelerator, kept as a table.

``python -m hybridcache_jax.testing.compiled_matrix --write``, where the compilers are.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from pallas_kernels.compiled.accelerators import GPUS, TPUS
from pallas_kernels.compiled.environment import ENVIRONMENT

KEPT = Path(__file__).with_name("compiled_steps.json")
"""What ``--write`` found."""

WRITTEN = Path(__file__).with_name("COMPILED_STEPS.md")
"""Where the table of that lies."""

_HEAD = """# Decode steps compiled without the hardware

Whole decode steps but for the model (leases and validation, rows written into every \
pool, ranking, every read) of 8 rows over donated pools of some 6 GiB, compiled to \
machine code for accelerators that were not there. Beside the pools stands what the \
compiler takes: results that lie where a pool lay, as a share of all pools, scratch \
memory, and instructions that copy 256 MiB or more. Nothing here ran on an accelerator.

Made by `python -m hybridcache_jax.testing.compiled_matrix --write` from \
`compiled_steps.json`.

"""


@dataclasses.dataclass(frozen=True)
class StepOutcome:
    """What came of compiling one step for one target; sizes in bytes.

    Attributes:
      step: one of ``compiled_step.STEPS``.
      target: accelerator.
      wanted: kernels, as for ``plan_capacity``.
      kernels: implementation of each read of each pool.
      pools: all pools.
      aliased: results that lie where an argument lay.
      temporary: scratch memory.
      moves: instructions that copy 256 MiB or more.
      versions: of the packages that compiled it.
    """

    step: str
    target: str
    wanted: str
    kernels: tuple[str, ...]
    pools: int
    aliased: int
    temporary: int
    moves: tuple[str, ...]
    versions: Mapping[str, str]

    @property
    def good(self) -> bool:
        """Whether the pools stay where they are and little is taken beside them."""
        small = self.temporary < 64 * 2**20
        return not self.moves and self.aliased >= self.pools and small


def combinations(steps: Iterable[str]) -> list[tuple[str, str, str]]:
    """Steps, targets and kernels that are compiled.

    Args:
      steps: names.
    """
    # On GPUs ``auto`` takes XLA; where there are kernels, they are compiled, too.
    wanted = {
        **dict.fromkeys(TPUS, ("auto",)),
        **dict.fromkeys(GPUS, ("auto", "mosaic_gpu")),
        "a100": ("auto",),
    }
    return [
        (step, target, kernels)
        for target, every in wanted.items()
        for kernels in every
        for step in steps
    ]


def kept(path: Path = KEPT) -> tuple[StepOutcome, ...]:
    """Reads the file.

    Args:
      path: the file.
    """
    return tuple(
        StepOutcome(
            **{
                **each,
                "kernels": tuple(each["kernels"]),
                "moves": tuple(each["moves"]),
            }
        )
        for each in json.loads(path.read_text())
    )


def markdown(outcomes: Iterable[StepOutcome]) -> str:
    """The table.

    Args:
      outcomes: what it shows.
    """
    heads = ("step", "target", "pools, GiB", "in place", "scratch, MiB", "copies")
    lines = [[*heads, "read by", "compiled with"]]
    lines.append(["---"] * 2 + ["---:"] * 4 + ["---"] * 2)
    for each in outcomes:
        reads = [text.split(": ") for text in each.kernels]
        lines.append(
            [
                each.step,
                each.target,
                f"{each.pools / 2**30:.2f}",
                f"{min(each.aliased / each.pools, 1):.0%}",
                f"{each.temporary / 2**20:.1f}",
                "; ".join(each.moves) or "none",
                ", ".join(f"{read.split()[1]} {by}" for read, by in reads),
                ", ".join(f"{name} {text}" for name, text in each.versions.items()),
            ]
        )
    return _HEAD + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def main() -> int:
    """Compiles, prints, and returns 1 if a step does not compile as it should."""
    os.environ.update({**ENVIRONMENT, **os.environ})
    # JAX reads those variables when it is imported.
    from hybridcache_jax.testing.compiled_step import STEPS, compile_step
    from pallas_kernels.compiled.matrix import process
    from pallas_kernels.compiled.targets import missing, versions

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", action="append", help="default: all of them")
    parser.add_argument("--step", action="append", choices=STEPS)
    parser.add_argument("--write", action="store_true", help="keep what was found")
    options = parser.parse_args()
    known = {(each.step, each.target, each.wanted): each for each in kept()}
    every, good = combinations(STEPS), True
    for name in every:
        step, target, wanted = name
        if options.target and target not in options.target:
            continue
        if options.step and step not in options.step:
            continue
        if (reason := missing(target)) is not None:
            print(f"{target}: skipped, {reason}", file=sys.stderr)
            continue
        with process() as executor:
            made = executor.submit(compile_step, step, target, kernels=wanted).result()
        fields = dataclasses.asdict(made)
        fields.pop("seconds")
        known[name] = StepOutcome(
            step, target, wanted, versions=versions(target), **fields
        )
        good = good and known[name].good
        said = "ok" if known[name].good else "; ".join(made.moves) or "not in place"
        words = f"{target:5}{step:11}{wanted:11}{made.seconds:6.1f} s"
        print(f"{words}{made.temporary:>12,} B  {said}", flush=True)
        if options.write:
            found = [known[each] for each in every if each in known]
            rows = ",\n".join(" " + json.dumps(dataclasses.asdict(x)) for x in found)
            KEPT.write_text(f"[\n{rows}\n]\n")
            WRITTEN.write_text(markdown(found))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
