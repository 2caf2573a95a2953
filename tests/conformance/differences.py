"""Where we answer differently on purpose, and why; what lies outside; what waits.

A difference names one expectation of one scenario, our own answer, and why it is
right.  The tests see to it that each really differs and that nothing else does.
"""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Difference:
    """One expectation that we answer differently.

    Attributes:
      scenario: its id.
      step: number or name of the step, or number of the case.
      name: what is expected there.
      ours: what we give instead.
      why: why that is right.
    """

    scenario: str
    step: str
    name: str
    ours: Any
    why: str


_DRAFT = (
    "A draft model's forms have retention rules of their own; nothing that is proved "
    "is thrown away, or kept beside it, for the draft model's sake."
)
_CHUNK = (
    "A chunk may begin anywhere, not only where a block does, so it can touch one "
    "block more."
)
_EXACT = (
    "A query sees W keys, its own included, so resuming at p needs the W - 1 rows "
    "before p: an exact replay starts one token later."
)
_VALUES = (
    "The next step takes the value that the step before returns, so nothing is in "
    "flight when it begins: it lets go of the blocks at once."
)
_WHOLE = (
    "Blocks are shared whole and never copied; resume points lie on the grid. Smaller "
    "blocks reach the same point."
)

DIFFERENCES = (
    Difference("C11a", "4", "hit", 32, _DRAFT),
    Difference("C12", "4", "hit", 32, _DRAFT),
    Difference("C12", "7", "hit", 32, _DRAFT),
    Difference("C14", "4", "hit", 96, _DRAFT),
    Difference(
        "C14",
        "4",
        "blocks",
        [[True] * 6, [False] * 3 + [True] * 3, [False] * 3 + [True] * 3],
        _DRAFT,
    ),
    Difference("C14", "5", "new", [1, 1, 1], _DRAFT),
    Difference("C14", "11", "hit", 96, _DRAFT),
    Difference("C14", "21", "hit", 80, _DRAFT),
    Difference("C14", "25", "hit", 80, _DRAFT),
    Difference("C14", "29", "hit", 64, _DRAFT),
    Difference("C14", "33", "hit", 64, _DRAFT),
    Difference("C14", "39", "hit", 80, _DRAFT),
    Difference("C18", "3", "units", [3], _DRAFT),
    Difference(
        "C33",
        "7",
        "ok",
        True,
        "What is found was computed, so a state can be read as soon as it is found.",
    ),
    Difference("C35", "6", "hit", 0, _WHOLE),
    Difference("C35", "6", "lens", [0, 0], _WHOLE),
    Difference("C35", "8", "num_copies", 0, _WHOLE),
    Difference("T06", "0", "value", 129, _CHUNK),
    Difference("T06", "1", "value", 193, _CHUNK),
    Difference("F01", "", "resume_at", 65, _EXACT),
    Difference("F01", "", "scheduled", 35, _EXACT),
    Difference("F03", "", "resume_at", 1, _EXACT),
    Difference("F03", "", "scheduled", 99, _EXACT),
    Difference("F11", "", "nulls", [0, 5, 5, 5], _VALUES),
)

_TIER = "needs an outer tier"
_RETENTION = "needs a retention interval"

PENDING = {
    "C23": _RETENTION,
    "C25": _RETENTION,
    "C27": _RETENTION,
    "C29c": _RETENTION,
    "C29e": _RETENTION,
    "C30b": _RETENTION,
    "C39": _RETENTION,
    "T08": _RETENTION,
    "O02": _TIER,
    "O04": _TIER,
    "F05": _TIER,
    "F06b": _TIER,
    "F07": _TIER,
    "F09": _TIER,
    "F13": _TIER,
}

OUTSIDE = {
    "T12": "the order of a free list; any free block is as good as another",
    "T14": "digests of blocks; the index compares the tokens themselves",
}
