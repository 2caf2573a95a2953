"""Codes that live in the graph as int32 and get their names on the host."""

import enum


class Stage(enum.IntEnum):
    """Where a block is in its life.

    ``FREE -> WRITING -> SEALED -> (OFFLOADING -> ON_DISK -> LOADING -> SEALED) ->
    EVICTING -> FREE``; ``QUARANTINED`` holds what failed verification.  Blocks are
    copied out while they are ``EVICTING``, and a load is one update: ``OFFLOADING`` and
    ``LOADING`` are for tiers that take longer, and outlast no call today.
    """

    FREE = 0
    WRITING = 1
    SEALED = 2
    OFFLOADING = 3
    ON_DISK = 4
    LOADING = 5
    EVICTING = 6
    QUARANTINED = 7


class Status(enum.IntEnum):
    """What a compiled step did with one row of its batch.

    Only an ``OK`` row wrote entries, moved on, and has values.
    """

    OK = 0
    IDLE = 1
    STALE = 2
    BAD_ROW = 3
    BAD_COUNT = 4
    BAD_TOKEN = 5
    TOO_LONG = 6
    NO_ROOM = 7
    OTHER_TOKEN = 8
    NOT_HELD = 9

    @property
    def explanation(self) -> str:
        """What it means and how to mend it."""
        return _STATUS_TEXT[self]


class Provenance(enum.IntEnum):
    """Whether what a block or a row holds is what a cold run would have made.

    A higher code is worth less: a reader accepts its own and those below.
    """

    EXACT = 0
    APPROXIMATE = 1


class Verdict(enum.IntEnum):
    """Whether a prefix can be resumed now."""

    RESUMABLE = 0
    NEEDS_IO = 1
    NEEDS_PARTIAL_RECOMPUTE = 2
    NEEDS_FULL_RECOMPUTE = 3


class Reason(enum.IntEnum):
    """Why a form, or a whole prefix, does not count.  From the layers, in order."""

    OK = 0
    # Before any layer: nothing to check.
    EMPTY_PROMPT = 1
    NOT_STORED = 2
    SHORTER_THAN_GRID = 3
    IDENTITY_UNKNOWN = 4
    PRODUCER_CHANGED = 5
    REUSE_OFF = 6
    SCOPE_UNKNOWN = 7
    # Layer 1, boundary.
    NOT_A_RESUME_POINT = 10
    # Layer 2, kernel interface and layout.
    LAYOUT_MISMATCH = 20
    # Layer 3, intersection over forms.
    EVICTED = 30
    VERSION_CHANGED = 31
    WRONG_FORM = 32
    NOT_SEALED = 33
    IN_OUTER_TIER = 34
    NOT_RETAINED = 35
    APPROXIMATE = 36
    QUARANTINED = 37
    # Layer 4, alignment.
    MISALIGNED = 40

    @property
    def explanation(self) -> str:
        """One clause for people."""
        return _REASON_TEXT[self]


_STATUS_TEXT = {
    Status.OK: "ran",
    Status.IDLE: "padding row, nothing to run",
    Status.STALE: (
        "the lease no longer holds: the row or one of its blocks changed hands; "
        "release it, then match and acquire again"
    ),
    Status.BAD_ROW: (
        "the row does not exist or stands twice in the batch; give each lease once"
    ),
    Status.BAD_COUNT: "the token count is negative or exceeds the chunk's width",
    Status.BAD_TOKEN: "a token id lies outside the vocabulary",
    Status.TOO_LONG: "the row would exceed the plan's max_length; plan it larger",
    Status.OTHER_TOKEN: (
        "a replay was given another token than the one it is to run again; run the "
        "prompt from the plan's start, not from its length"
    ),
    Status.NOT_HELD: (
        "the row no longer holds what resuming there requires; ask can_rewind first, "
        "or plan a larger rollback"
    ),
    Status.NO_ROOM: (
        "no free block in a pool; make room (evict stored prefixes) and step again"
    ),
}

_REASON_TEXT = {
    Reason.OK: "held",
    Reason.EMPTY_PROMPT: "the prompt is empty, there is nothing to match",
    Reason.NOT_STORED: "no stored prefix starts with these tokens",
    Reason.SHORTER_THAN_GRID: "too short: no resume point lies below the last token",
    Reason.IDENTITY_UNKNOWN: "the producer's identity is incomplete, nothing is shared",
    Reason.PRODUCER_CHANGED: "the same tokens were stored by a different producer",
    Reason.REUSE_OFF: "reuse is off: a cold run was asked for, or the scope is off",
    Reason.SCOPE_UNKNOWN: (
        "the reuse scope asks for a request or session id and none was given"
    ),
    Reason.NOT_A_RESUME_POINT: "the position is neither on the grid nor a checkpoint",
    Reason.LAYOUT_MISMATCH: "the read kernel does not accept the stored layout",
    Reason.EVICTED: "the block was evicted or handed to someone else",
    Reason.VERSION_CHANGED: "the block was written by another producer",
    Reason.WRONG_FORM: "the block holds another form or another position",
    Reason.NOT_SEALED: "the block is not finished",
    Reason.IN_OUTER_TIER: "the block lies in an outer tier and must be loaded",
    Reason.NOT_RETAINED: "no block was kept for these positions",
    Reason.APPROXIMATE: "the block comes from an approximate replay",
    Reason.QUARANTINED: "the block failed verification and is set aside",
    Reason.MISALIGNED: "the block's address or length breaks the backend's rules",
}
