"""Named points at which host code can be interrupted between two changes.

A ``PrefixCache`` calls its ``at`` with each point it passes.  What that raises leaves
the call there: the caller goes on with the cache value it had, and everything must
still be right.  ``testing.faults`` has such callables.
"""

import enum
from collections.abc import Callable


class Point(enum.StrEnum):
    """Where a call can be cut short."""

    ACQUIRE_MATCHED = "acquire: before the blocks are pinned"
    PUBLISH_CLAIMED = "publish: claimed by the index, not yet marked as kept"
    EVICTION_BEGUN = "eviction: out of sight, not yet copied or given away"
    EVICTION_COPIED = "eviction: copied to the outer tier, claims lead there"
    EVICTION_FORGOTTEN = "eviction: dead weight dropped, blocks not yet given away"
    LOAD_READ = "load: a block was read, not yet verified"
    LOAD_VERIFIED = "load: all blocks verified, none registered"
    LOAD_RECEIVED = "load: blocks made ready, no memory written"
    RELEASE_PUBLISHED = "release: published, the row not yet given back"


At = Callable[[Point], None]


def pass_by(point: Point) -> None:
    """Goes on: what a ``PrefixCache`` does unless it is told otherwise."""
    del point
