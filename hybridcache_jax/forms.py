"""What layers leave behind, and what of it must be held to resume.

A *form* is a label and one pure function: which raw token positions must be
covered by held entries so that decoding can resume at position ``p``.  Adding a
form means adding one row to :data:`RULES`; nothing outside this file asks which
form something is in order to decide whether it is enough.

Every form depends on the whole prefix, windows and tails too, so all of them are
keyed by the whole prefix.
"""

import dataclasses
import enum
import types
from collections.abc import Callable, Mapping

from hybridcache_jax.layers import Chunk, Window


class Form(enum.IntEnum):
    """The kinds of cache object; ``NONE`` labels a block that is free."""

    NONE = 0
    COMPRESSED_KV = 1
    UNCOMPRESSED_TAIL = 2
    SWA_WINDOW = 3
    INDEXER_STATE = 4
    ON_DISK_PREFIX = 5
    FULL_KV = 6
    RECURRENT_STATE = 7


class Read(enum.Enum):
    """What reads a form during a step."""

    LOCAL = "attention over the keys near the query"
    HISTORY = "attention over the history, or over what is selected of it"
    INDEX = "the ranking of the history"
    NONE = "no attention: the compressor, the recurrence"


class Remedy(enum.Enum):
    """How a lost form comes back."""

    RECOMPUTE = "recompute from the first hole"
    REPLAY = "replay: run the last tokens again, reading the forms that are held"
    LOAD = "load it from the outer tier, verify it, register it"


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The numbers a retention rule needs.

    Attributes:
      ratio: tokens per entry, >= 1.
      halo: raw tokens before the compression boundary that an overlapping
        compressor still needs (``overlap * ratio``).
      local: the window or chunk of a local form, else None.
    """

    ratio: int = 1
    halo: int = 0
    local: Window | Chunk | None = None

    @property
    def window(self) -> Window | Chunk:
        """The window or chunk of a local form.

        Raises:
          ValueError: if the form is not local.
        """
        if self.local is None:
            raise ValueError("This form has no window; its geometry's local is None.")
        return self.local


@dataclasses.dataclass(frozen=True)
class RetentionRule:
    """One row of the table of forms.

    Attributes:
      required: ``(geometry, p) -> (lo, hi)``: token positions ``[lo, hi)`` must be
        covered to resume at ``p``.  ``p`` is an int or an int array ``[...]``; the
        results have its shape.  Nothing is required where ``lo >= hi``.
      grows: it grows with the history; the others have a bounded size.
      exact: the form is a checkpoint, of use only at the position it was taken.
      resident: a holding of this form can be read on the device as it lies.
      remedy: how it comes back when it is lost.
      reach: ``geometry -> tokens``: most token positions before ``p`` that a bounded
        form requires; unused by forms that grow.
      read: what reads it.
      priority: what is evicted first when bytes are short, lowest first: what is
        cheapest to get back.
    """

    required: Callable
    remedy: Remedy
    read: Read
    priority: int = 2
    reach: Callable[[Geometry], int] = lambda geometry: 0
    grows: bool = False
    exact: bool = False
    resident: bool = True


def _history(geometry: Geometry, p):
    return p * 0, p - p % geometry.ratio


def _window(geometry: Geometry, p):
    return geometry.window.first_visible(p), p


def _tail(geometry: Geometry, p):
    start = p - p % geometry.ratio - geometry.halo
    return start * (start > 0), p


def _checkpoint(geometry: Geometry, p):
    del geometry
    before = p - 1
    return before * (before > 0), p


# The table.  Sources: the general resume law for full, window, chunked, compressed,
# pooled-index and recurrent layers.  A recurrent state stands at the position of the
# last token folded into it.  ON_DISK_PREFIX stands for any other form that was moved
# out: it asks for the same history, and cannot be read as it lies.
#
# Priorities: a window or a tail costs a replay of a few tokens; a checkpoint the tokens
# from the one before, and without any the whole prefix; an entry or an index key all
# that lies behind it, the other forms included.
RULES: Mapping[Form, RetentionRule] = types.MappingProxyType(
    {
        Form.FULL_KV: RetentionRule(
            _history, Remedy.RECOMPUTE, Read.HISTORY, grows=True
        ),
        Form.COMPRESSED_KV: RetentionRule(
            _history, Remedy.RECOMPUTE, Read.HISTORY, grows=True
        ),
        Form.INDEXER_STATE: RetentionRule(
            _history, Remedy.RECOMPUTE, Read.INDEX, grows=True
        ),
        Form.UNCOMPRESSED_TAIL: RetentionRule(
            _tail,
            Remedy.REPLAY,
            Read.NONE,
            priority=0,
            reach=lambda geometry: geometry.halo + geometry.ratio - 1,
        ),
        Form.SWA_WINDOW: RetentionRule(
            _window,
            Remedy.REPLAY,
            Read.LOCAL,
            priority=0,
            reach=lambda geometry: geometry.window.reach,
        ),
        Form.RECURRENT_STATE: RetentionRule(
            _checkpoint,
            Remedy.REPLAY,
            Read.NONE,
            priority=1,
            reach=lambda geometry: 1,
            exact=True,
        ),
        Form.ON_DISK_PREFIX: RetentionRule(
            _history, Remedy.LOAD, Read.NONE, grows=True, resident=False
        ),
    }
)


def required(form: Form, geometry: Geometry, p):
    """Token positions ``[lo, hi)`` that must be covered to resume at ``p``.

    Args:
      form: the form asked about.
      geometry: its ratio, halo and window.
      p: int or int array ``[...]``, the resume point.

    Returns:
      ``(lo, hi)``, each of the shape of ``p``.
    """
    return RULES[form].required(geometry, p)
