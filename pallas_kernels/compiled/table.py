"""What came of compiling, as a table for people.  Imports no JAX."""

from pathlib import Path

from pallas_kernels.compiled.outcomes import Outcome, Outcomes

WRITTEN = Path(__file__).parents[1] / "COMPILED.md"
"""Where the table lies that goes with ``outcomes.KEPT``."""

_HEAD = """# Compiled without the hardware

Every read, compiled to machine code for accelerators that were not there. A cell has \
the program's temporary memory in MiB, after XLA where plain XLA reads and no kernel; \
"copies" stands where a layer of the pool is copied or converted, "refused" where it \
does not compile. Nothing here ran on an accelerator.

Made by `python -m pallas_kernels.compiled --write` from `compiled/outcomes.json`.

"""


def markdown(outcomes: Outcomes) -> str:
    """The table.

    Args:
      outcomes: what it shows.
    """
    targets = list(dict.fromkeys(each.target for each in outcomes.outcomes))
    rows: dict[tuple, dict[str, str]] = {}
    for each in outcomes.outcomes:
        rows.setdefault(each.case, {})[each.target] = _cell(each)
    lines = [
        ["read", "layout", "dtype", "queries", *targets],
        ["---"] * 4 + ["---:"] * len(targets),
    ]
    lines += [
        [*map(str, case), *(cells.get(target, "") for target in targets)]
        for case, cells in rows.items()
    ]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    versions = "\n".join(
        f"- {target}: " + ", ".join(f"{name} {text}" for name, text in found.items())
        for target, found in sorted(outcomes.versions.items())
    )
    return f"{_HEAD}{table}\n\nCompiled with\n\n{versions}\n"


def _cell(outcome: Outcome) -> str:
    if outcome.refusal is not None:
        return "refused"
    words = ["XLA"] if outcome.implementation == "xla" else []
    words.append(f"{outcome.temporary_bytes / 2**20:.1f}")
    return " ".join([*words, "copies"] if outcome.moves else words)
