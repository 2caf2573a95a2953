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

_VICTIM = (
    "Which block goes first is a policy; what is left is found, and no more. "
    "sgl-rec-01b and sgl-swa-09 have the same rules without it."
)
_PAGES = (
    "Resuming at p reads the W - 1 rows before p, not W: a lock that pinned the whole "
    "window would hold a page that nobody reads."
)
_PASSING = (
    "A finished page is published as it is passed and keeps its window from then on; "
    "a row itself keeps what its next token and the plan's rollback require."
)
_ROWS = "A row gets all it needs or nothing; rows that fit run although others do not."
_FINE = "With blocks that end at the checkpoint it stays a resume point of its own."
_REPLAY = "The history is whole, so a replay of the window alone is proved and cheaper."

_REPLAYED = (
    "Nobody names the forms to share: one window is gone, and the replay that rebuilds "
    "it begins where the other one has to be rebuilt, too, in blocks of the row."
)

_EVERY = (
    "Retention.every keeps multiples of its distance and nothing else; the repeated "
    "prompt replays its last window."
)
_JUNCTION = (
    "Retention.ends keeps ends alone; where prompts part the window is replayed from "
    "the history, at the price of its length."
)
_ENDS = (
    "A prompt that ends on the grid keeps that end too: conversations go on from it."
)
_STEP = (
    "Of states only those at ends are kept, and a step has to end there, which "
    "Retention.step_end says; in this scenario none does."
)

_VERIFIED = (
    "Nothing is shared before it has been verified: whoever waits for the bad block "
    "plans again."
)
_SAVED = "What is evicted moves out first, so a parent follows its child to the tier."
_READ = (
    "A load brings what resuming there reads: W - 1 rows of a window, all of a prefix "
    "shorter than that."
)
_LATER = "A load for which there is no room waits until there is, and has taken none."
_AGAIN = (
    "The copy in the tier is whole still: the next try may go well, and whoever does "
    "not wait runs cold."
)
_LEFT = "What is left is a resume point: only what follows it is run."
_SINGLY = (
    "Blocks move out one by one, and the tier keeps those it has room for in place of "
    "the longest unused; what a pending load needs stays."
)
_AGE = (
    "A checkpoint that is proved goes by age, or was never kept by its retention rule; "
    "not because a request ends that could still be repeated."
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
    Difference("C23", "3", "units", [7, 15], _EVERY),
    Difference("C25", "3", "units", [11], _DRAFT),
    Difference("C25", "6", "hit", 96, _DRAFT),
    Difference("C25", "6", "lens", [3, 12], _DRAFT),
    Difference("C27", "3", "units", [14, 15], _ENDS),
    Difference("C29c", "7", "hit", 0, _JUNCTION),
    Difference("C29e", "7", "hit", 0, _JUNCTION),
    Difference("C39", "10", "hit", 0, _STEP),
    Difference("T08", "0", "value", [14], _JUNCTION),
    Difference("T08", "1", "value", [3, 7, 11, 15], _EVERY),
    Difference("T06", "0", "value", 129, _CHUNK),
    Difference("T06", "1", "value", 193, _CHUNK),
    Difference("F01", "", "resume_at", 65, _EXACT),
    Difference("F01", "", "scheduled", 35, _EXACT),
    Difference("F03", "", "resume_at", 1, _EXACT),
    Difference("F03", "", "scheduled", 99, _EXACT),
    Difference("F11", "", "nulls", [0, 5, 5, 5], _VALUES),
    Difference("F05", "", "resume_at", 33, _EXACT),
    Difference("F05", "", "scheduled", 67, _EXACT),
    Difference("F07", "", "computed", [400, 400], _VERIFIED),
    Difference("O04", "3", "fail", False, _SINGLY),
    Difference("O04", "4", "result", "MISS", _SINGLY),
    Difference("O04", "5", "result", "MISS", _SINGLY),
    Difference("sgl-tier-09", "0", "kept", True, _SAVED),
    Difference("sgl-tier-11", "0", "reserved", 3, _READ),
    Difference("sgl-tier-11", "1", "reserved", 3, _READ),
    Difference("sgl-tier-11", "x", "tokens_asked", 3, _READ),
    Difference("sgl-tier-11", "x", "aborted", False, _LATER),
    Difference("sgl-tier-15", "0", "verdict", "io_wait", _AGAIN),
    Difference("sgl-tier-15", "1", "verdict", "io_wait", _AGAIN),
    Difference("sgl-file-05", "3", "verdict", "resumable", _LEFT),
    Difference("lmc-fault-01", "l", "verdict", "resumable", _LEFT),
    Difference("trt-ssm-05", "1", "hit", 64, _AGE),
    Difference("trt-ssm-05", "2", "hit", 32, _AGE),
    Difference("sgl-swa-01", "m5", "hit", 5, _VICTIM),
    Difference("sgl-swa-01", "m5", "verdict", "resumable", _VICTIM),
    Difference("sgl-swa-01", "m5", "miss_group", None, _VICTIM),
    Difference("sgl-swa-03", "0", "protected.swa", 3, _PAGES),
    Difference("sgl-swa-03", "1", "protected.swa", 3, _PAGES),
    Difference("sgl-swa-03", "2", "protected.swa", 0, _PAGES),
    Difference("sgl-swa-03", "6", "protected.swa", 2, _PAGES),
    Difference("sgl-swa-03", "7", "protected.swa", 4, _PAGES),
    Difference("sgl-swa-03", "9", "protected.swa", 3, _PAGES),
    Difference("sgl-swa-03", "12", "protected.swa", 2, _PAGES),
    Difference("sgl-swa-05", "f", "frontier", False, _PASSING),
    *(
        Difference(
            "sgl-swa-17", row, "no_partial_allocation_when_refused", False, _ROWS
        )
        for row in ("2", "3", "5")
    ),
    Difference("sgl-rec-01", "a", "hit", 3, _VICTIM),
    Difference("sgl-rec-01", "a", "verdict", "resumable", _VICTIM),
    Difference("sgl-rec-01", "c", "hit", 3, _VICTIM),
    Difference("sgl-rec-01", "d", "hit", 3, _VICTIM),
    Difference("sgl-rec-01", "e", "hit", 3, _VICTIM),
    Difference("trt-ssm-01", "a", "attention_only_hit", 32, _WHOLE),
    Difference("trt-ssm-01", "a", "miss_group", None, _WHOLE),
    Difference("trt-ssm-03", "0", "hit", 10, _FINE),
    Difference("trt-ssm-03", "4", "hit", 48, _FINE),
    Difference(
        "trt-swa-02",
        "p",
        "blocks",
        [False, True, True],
        "The last resume point is 96, where two blocks of the window are read.",
    ),
    Difference("trt-swa-02", "a", "hit", 96, _WHOLE),
    Difference("trt-het-01", "p", "hit", 256, _WHOLE),
    Difference("trt1-01", "a", "hit", 4, _WHOLE),
    Difference("trt-grp-01", "r", "shared_pages", ["full"], _REPLAYED),
    Difference("trt-grp-01", "r", "private_pages", ["g1", "g2"], _REPLAYED),
    Difference("idx-03", "a", "verdict", "partial_recompute", _REPLAY),
)

PENDING: dict[str, str] = {}

OUTSIDE = {
    "T12": "the order of a free list; any free block is as good as another",
    "T14": "digests of blocks; the index compares the tokens themselves",
    "sgl-file-01": "a file cache with a policy of its own; bytes, not prefixes",
    "sgl-file-03": "a file cache with a policy of its own; bytes, not prefixes",
    "trt-grp-03": "serving blocks to another machine",
    "trt1-03": "priorities that a request gives its blocks, with a wall-clock life",
}


def summary(total: int) -> str:
    """Counts in one clause, as the README has them."""
    listed = len(PENDING) + len(OUTSIDE)
    different = len({difference.scenario for difference in DIFFERENCES})
    return (
        f"{total} scenarios of other engines' tests: {total - listed} run, "
        f"{different} of them with a stated difference, {len(PENDING)} wait for a "
        f"feature, {len(OUTSIDE)} lie outside"
    )
