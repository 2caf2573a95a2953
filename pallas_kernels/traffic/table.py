"""What is moved, as a table for people.  Imports no JAX."""

from collections.abc import Iterable
from pathlib import Path

from pallas_kernels.traffic.amounts import GOAL, Amounts

WRITTEN = Path(__file__).parents[1] / "TRAFFIC.md"
"""Where the table lies that goes with ``amounts.KEPT``."""

_HEAD = f"""# Traffic of the kernels

Bytes of the pool that a read must move, over those that a kernel moves, counted from \
the blocks that the grid of a TPU kernel fetches and the copies that a GPU kernel \
starts, for 4 rows; nothing was run. The floor is every entry that a query of its row \
reads, once, without padding. Rows are as many tokens long as a column says, but for a \
few; windows are, in rows of 1,024 more, and selections are 2,048 entries drawn at \
random from the whole row, which is the worst there is for strips. Beside the pool \
stands, at the longest, what queries, tables and partial results add, in parts of what \
is moved of the pool.

The goal is {GOAL}. Below it, for one or more of:

- padding: the pool holds planes padded to rows of 128 lanes (TPU);
- edges: whole blocks come, or on a GPU parts of 64 entries, and not all of the first \
and the last are needed;
- strips: for a selected entry comes the whole strip of 8 to 32 that it lies in (TPU), \
once for all that is selected of it;
- again: more queries than fit a thread block or a tile go over the same entries one \
after the other; a row of fewer blocks than a step has places brings its first block \
to each of the others (TPU); each KV head brings the scales of all of them (GPU). A \
GPU's thread blocks do so side by side, where the second-level cache can serve all but \
the first; the part in parentheses is the ratio if it does.

Made by `python -m pallas_kernels.traffic --write` from `traffic/amounts.json`.

"""


def markdown(amounts: Iterable[Amounts]) -> str:
    """The table.

    Args:
      amounts: what it shows.
    """
    amounts = tuple(amounts)
    lengths = sorted({each.tokens for each in amounts})
    rows: dict[tuple[str, ...], dict[int, Amounts]] = {}
    for each in amounts:
        rows.setdefault(_case(each), {})[each.tokens] = each
    lines = [
        ["by", "read", "layout", "dtype", "queries"]
        + [f"{length:,}" for length in lengths]
        + ["beside", "below the goal for"],
        ["---"] * 5 + ["---:"] * (len(lengths) + 1) + ["---"],
    ]
    for case, found in rows.items():
        last = found[max(found)]
        reasons = dict.fromkeys(
            word for each in found.values() for word in each.reasons
        )
        lines.append(
            [*case]
            + [_ratio(found[n]) if n in found else "" for n in lengths]
            + [f"{last.besides / last.moved:.2f}", ", ".join(reasons)]
        )
    return _HEAD + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _case(each: Amounts) -> tuple[str, ...]:
    return (
        each.implementation,
        each.operation,
        each.layout,
        each.dtype,
        str(each.width),
    )


def _ratio(each: Amounts) -> str:
    words = f"{each.ratio:.2f}"
    if each.implementation == "mosaic_gpu" and each.again < 1:
        words += f" ({each.needed / each.distinct:.2f})"
    return words
