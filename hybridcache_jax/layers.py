"""What a model is: one record per layer, made of orthogonal parts.

A :class:`LayerSpec` says how a layer attends: which keys it sees nearby
(``local``), what it keeps of the whole history (``global_``), how it selects
from that history (``select``, ``index``), whether it carries recurrent state,
and whose entries it reads when it owns none (``kv_owner``, ``index_owner``,
``select_owner``).

Sinks, norms, rope and projections are the model's business; window, ratio, overlap
and position are the cache's.
"""

import dataclasses

from hybridcache_jax._whole import whole
from hybridcache_jax.entry import Entry


@dataclasses.dataclass(frozen=True)
class Window:
    """Sliding window: query ``t`` sees keys ``t - size + 1 .. t``.

    ``size`` counts the query's own key.  Conventions that count only the keys
    before it must add one; :meth:`from_lookback` does.
    """

    size: int
    entry: Entry

    def __post_init__(self):
        # It counts the query's own key.
        whole("Window size", self.size, least=1)

    @classmethod
    def from_lookback(cls, previous: int, entry: Entry) -> "Window":
        """A window given as the number of keys *before* the query's own."""
        return cls(previous + 1, entry)

    def first_visible(self, position):
        """First key position that the query at ``position`` sees.

        Args:
          position: int or int array ``[...]``; positions are non-negative.

        Returns:
          Same shape; never negative.
        """
        start = position - (self.size - 1)
        return start * (start > 0)

    @property
    def reach(self) -> int:
        """Most keys before its own that a query sees."""
        return self.size - 1


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Chunked local attention: query ``t`` sees keys ``size*(t//size) .. t``."""

    size: int
    entry: Entry

    def __post_init__(self):
        whole("Chunk size", self.size, least=1)

    def first_visible(self, position):
        """First key position that the query at ``position`` sees."""
        return (position // self.size) * self.size

    @property
    def reach(self) -> int:
        """Most keys before its own that a query sees."""
        return self.size - 1


@dataclasses.dataclass(frozen=True)
class Entries:
    """Entries over the whole history: one per ``ratio`` tokens.

    Attributes:
      entry: layout of one entry.
      ratio: tokens per entry.  1 is full attention (or a per-token latent).
      overlap: 1 if an entry also pools the block before its own, else 0.
      raw: layout of one *uncompressed* token behind the compression boundary;
        required exactly when ``ratio > 1``.
    """

    entry: Entry
    ratio: int = 1
    overlap: int = 0
    raw: Entry | None = None

    def __post_init__(self):
        _check_pooling("Entries", self.ratio, self.overlap, self.raw)


@dataclasses.dataclass(frozen=True)
class TopK:
    """Selection of the ``k`` best units per query; ties go to the earlier unit.

    A unit is the run of entries that stand for ``unit`` tokens.  Its score is the
    best of its index keys that the query sees.

    Attributes:
      k: units selected; all that are visible where there are fewer.
      unit: tokens per unit: a multiple of the ratios of entries and index keys.
      local_units: units nearest the query, its own included, that are selected
        whatever their score; they count among the ``k``.
      open_tail: whether the unit that holds the query is selected beside the ``k``
        while it is not complete, so that its keys need no index key yet.
      per: ``"query"``: one selection for all heads; ``"kv_group"``: one for each
        KV head, ranked by the index heads of its group.
    """

    k: int
    unit: int = 1
    local_units: int = 0
    open_tail: bool = False
    per: str = "query"

    def __post_init__(self):
        if self.k < 1 or self.unit < 1 or self.local_units < 0:
            raise ValueError(
                f"TopK needs k >= 1, unit >= 1, local_units >= 0, got {self}."
            )
        if self.local_units > self.k:
            raise ValueError(
                f"TopK: {self.local_units} local units do not fit among k={self.k}."
            )
        if self.per not in ("query", "kv_group"):
            raise ValueError(
                f"TopK.per must be 'query' or 'kv_group', got {self.per!r}."
            )


@dataclasses.dataclass(frozen=True)
class IndexKeys:
    """Keys by which a sparse indexer ranks entries: one per ``ratio`` tokens.

    Attributes:
      entry: layout of one key.
      ratio: tokens per key.
      overlap: 1 if a key also pools the block before its own, else 0.
      raw: layout of one raw token waiting to be pooled; None if keys are made
        per token (ratio 1) or projected from a finished entry (the ratio of the
        layer's entries), so that nothing waits.
    """

    entry: Entry
    ratio: int = 1
    overlap: int = 0
    raw: Entry | None = None

    def __post_init__(self):
        if sum(plane.heads for plane in self.entry.key_planes[:1]) > 1:
            raise ValueError(
                f"An index key has one head, got {self.entry.key_planes[0].heads}; the "
                "query heads of the indexer all rank the same key."
            )
        if self.raw is not None:
            _check_pooling("IndexKeys", self.ratio, self.overlap, self.raw)
        elif self.overlap or self.ratio < 1:
            raise ValueError(
                f"IndexKeys without raw rows needs ratio >= 1 and overlap 0, "
                f"got ratio={self.ratio}, overlap={self.overlap}."
            )


@dataclasses.dataclass(frozen=True)
class RecurrentState:
    """State folded over the whole prefix: valid at one exact position only.

    Attributes:
      state: layout of the state (and of convolution inputs, as further planes).
    """

    state: Entry


@dataclasses.dataclass(frozen=True)
class LayerSpec:
    """How one layer attends and what it keeps.

    Attributes:
      local: keys near the query, or None.
      global_: entries over the whole history, or None.
      select: how entries are selected; None means all visible ones.
      index: index keys this layer owns, or None.
      recurrent: recurrent state, or None.
      kv_owner: index of the layer whose local and global entries this layer
        reads instead of owning any; None means its own.
      index_owner: index of the layer whose index keys it ranks.
      select_owner: index of the layer whose selection it reuses.
    """

    local: Window | Chunk | None = None
    global_: Entries | None = None
    select: TopK | None = None
    index: IndexKeys | None = None
    recurrent: RecurrentState | None = None
    kv_owner: int | None = None
    index_owner: int | None = None
    select_owner: int | None = None

    def __post_init__(self):
        owns = self.local or self.global_ or self.recurrent
        if self.kv_owner is None and not owns:
            raise ValueError(
                "A layer keeps something (local, global_ or recurrent) or names "
                "the layer it reads (kv_owner); this one does neither."
            )
        if self.kv_owner is not None and (self.local or self.global_):
            raise ValueError(
                "A layer with kv_owner reads another layer's entries and must not "
                "declare local or global_ of its own."
            )
        for own, owner in (("index", "index_owner"), ("select", "select_owner")):
            mine, other = getattr(self, own), getattr(self, owner)
            if mine is not None and other is not None:
                raise ValueError(
                    f"A layer has either {own} of its own or {owner}={other}, not both."
                )
        if self.local is not None and self.global_ is not None:
            _check_joint_read(self.local.entry, self.global_.entry)


def _check_joint_read(local: Entry, entries: Entry) -> None:
    """One softmax over both needs keys and values of equal length."""
    for what in ("key_planes", "value_planes"):
        dims = [sum(p.dim for p in getattr(part, what)) for part in (local, entries)]
        if dims[0] != dims[1]:
            raise ValueError(
                f"Local keys and entries share one softmax, but their {what[:-7]}s "
                f"have {dims[0]} and {dims[1]} elements per head."
            )


def _check_pooling(what: str, ratio: int, overlap: int, raw: Entry | None) -> None:
    if ratio < 1 or overlap not in (0, 1):
        raise ValueError(
            f"{what} needs ratio >= 1 and overlap 0 or 1, got "
            f"ratio={ratio}, overlap={overlap}."
        )
    if (ratio > 1) != (raw is not None):
        raise ValueError(
            f"{what} with ratio {ratio} "
            + ("needs the layout of its raw rows." if ratio > 1 else "has no raw rows.")
        )
