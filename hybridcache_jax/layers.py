"""What a model is: one record per layer, made of orthogonal parts.

A :class:`LayerSpec` says how a layer attends: which keys it sees nearby
(``local``), what it keeps of the whole history (``global_``), how it selects
from that history (``select``, ``index``), whether it carries recurrent state,
and whose entries it reads when it owns none (``kv_owner``, ``index_owner``,
``select_owner``).

The library stores *entries*: opaque rows that the model has already normed and
rotated.  Sinks, norms, rope and projections are the model's business; window,
ratio, overlap and position are the cache's.
"""

import dataclasses

import ml_dtypes  # also teaches NumPy the names of bfloat16 and float8
import numpy as np


@dataclasses.dataclass(frozen=True)
class Plane:
    """One named array of an entry, for example the keys of a token.

    Attributes:
      name: the keyword under which the layer appends it (``"k"``, ``"v"``).
      heads: number of heads stored per entry; 1 for a latent or a shared row.
      dim: elements per head.
      dtype: name of the *logical* dtype, for example ``"bfloat16"``.  How a
        backend stores it is decided in ``planes.storage_dtype``.
      scale: name of the plane of the same entry that scales this one, or None.  A
        scaled plane is quantised when it is written and multiplied back when it is
        read; values and scales are one object.
      run: elements that share one scale; 0 without a scale.
    """

    name: str
    heads: int
    dim: int
    dtype: str = "float32"
    scale: str | None = None
    run: int = 0

    def __post_init__(self):
        if not self.name.isidentifier():
            raise ValueError(f"Plane name {self.name!r} must be an identifier.")
        if self.heads < 1 or self.dim < 1:
            raise ValueError(
                f"Plane {self.name!r} needs heads >= 1 and dim >= 1, got "
                f"heads={self.heads}, dim={self.dim}."
            )
        element_bits(self.dtype)
        if (self.scale is None) != (self.run == 0) or self.run < 0:
            raise ValueError(
                f"Plane {self.name!r} needs scale and run together, got "
                f"scale={self.scale!r}, run={self.run}."
            )
        if element_bits(self.dtype) < 8 and self.width % 2:
            raise ValueError(
                f"Plane {self.name!r}: {self.dtype} is packed in pairs and needs an "
                f"even width, got heads={self.heads}, dim={self.dim}."
            )
        if self.scale is not None and self.dim % self.run:
            raise ValueError(
                f"Plane {self.name!r}: run={self.run} must divide dim={self.dim}."
            )

    @property
    def width(self) -> int:
        """Elements of one entry: ``heads * dim``, heads folded into lanes."""
        return self.heads * self.dim

    @property
    def nbytes(self) -> int:
        """Bytes of one entry; elements of less than a byte are packed."""
        return -(-self.width * element_bits(self.dtype) // 8)


@dataclasses.dataclass(frozen=True)
class Entry:
    """What one layer stores for one token, or for one block of tokens.

    Attributes:
      planes: the arrays of the entry, names distinct.
      key: planes that, joined along the last axis, are the key that attention reads;
        by default ``"k"`` if there is one.
      value: planes that are the value; by default ``"v"`` if there is one, else the
        key (shared keys and values).
      convention: what the numbers mean beyond shape and dtype, where two conventions
        exist (``"gate without position bias"``).  Entries of different conventions
        are different layouts and never taken for each other.
    """

    planes: tuple[Plane, ...]
    key: tuple[str, ...] = ()
    value: tuple[str, ...] = ()
    convention: str = ""

    def __post_init__(self):
        names = [plane.name for plane in self.planes]
        if not names or len(set(names)) != len(names):
            raise ValueError(
                f"An Entry needs at least one plane and distinct names, got {names}."
            )
        for wanted in (*self.key, *self.value):
            if wanted not in names:
                raise ValueError(
                    f"An Entry names {wanted!r} as key or value, but has only {names}."
                )
        scales = [plane.scale for plane in self.planes if plane.scale is not None]
        if len(set(scales)) != len(scales):
            raise ValueError(
                f"Each scaled plane of an Entry needs scales of its own, got {scales}."
            )
        for plane in self.planes:
            if plane.scale is not None:
                self._check_scale(plane)
        for joined in (self.key_planes, self.value_planes):
            if len({plane.heads for plane in joined}) > 1:
                raise ValueError(
                    f"Planes that are joined need equal heads, got {joined}."
                )

    def __getitem__(self, name: str) -> Plane:
        """The plane called ``name``."""
        return next(plane for plane in self.planes if plane.name == name)

    @property
    def nbytes(self) -> int:
        """Bytes of one entry over all planes."""
        return sum(plane.nbytes for plane in self.planes)

    @property
    def key_planes(self) -> tuple[Plane, ...]:
        """Planes that make up the key; empty for entries that are no keys."""
        names = self.key or tuple(p.name for p in self.planes if p.name == "k")
        return tuple(self[name] for name in names)

    @property
    def value_planes(self) -> tuple[Plane, ...]:
        """Planes that make up the value."""
        names = self.value or tuple(p.name for p in self.planes if p.name == "v")
        return tuple(self[name] for name in names) or self.key_planes

    @property
    def scale_planes(self) -> frozenset[str]:
        """Names of the planes that scale others."""
        return frozenset(p.scale for p in self.planes if p.scale is not None)

    @classmethod
    def kv(cls, heads: int, dim: int, dtype: str = "float32") -> "Entry":
        """Keys and values of ``heads`` heads of ``dim`` elements each."""
        return cls((Plane("k", heads, dim, dtype), Plane("v", heads, dim, dtype)))

    def _check_scale(self, plane: Plane) -> None:
        scales = [p for p in self.planes if p.name == plane.scale]
        if not scales or scales[0].heads != plane.heads:
            raise ValueError(
                f"Plane {plane.name!r} is scaled by {plane.scale!r}, which must be a "
                f"plane of the same entry with {plane.heads} heads."
            )
        if scales[0].scale is not None or scales[0].dim * plane.run < plane.dim:
            raise ValueError(
                f"Plane {plane.scale!r} must be unscaled and hold one element per "
                f"{plane.run} of {plane.name!r}: at least {plane.dim // plane.run}, "
                f"got {scales[0].dim}."
            )


@dataclasses.dataclass(frozen=True)
class Window:
    """Sliding window: query ``t`` sees keys ``t - size + 1 .. t``.

    ``size`` counts the query's own key.  Conventions that count only the keys
    before it must add one; :meth:`from_lookback` does.
    """

    size: int
    entry: Entry

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(
                f"Window size must be >= 1 (it counts the query's own key), "
                f"got {self.size}."
            )

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
        if self.size < 1:
            raise ValueError(f"Chunk size must be >= 1, got {self.size}.")

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


def element_bits(name: str) -> int:
    """Bits of one element of the dtype called ``name``.

    Raises:
      ValueError: if there is no such dtype, or its elements are of an odd size.
    """
    dtype = named_dtype(name)
    if dtype.kind in "biuf":
        return 8 * dtype.itemsize
    try:
        bits = ml_dtypes.finfo(dtype).bits
    except ValueError:
        bits = 0
    if bits not in (4, 8, 16):
        raise ValueError(
            f"Elements of dtype {name!r} cannot be stored; use floats of 4, 8, 16 or "
            "32 bits, or integers of whole bytes."
        )
    return bits


def named_dtype(name: str) -> np.dtype:
    """The dtype called ``name``, including bfloat16 and the 8-bit floats.

    Raises:
      ValueError: if there is no such dtype.
    """
    try:
        return np.dtype(name)
    except TypeError as error:
        raise ValueError(
            f"Unknown dtype {name!r}; expected a name such as 'float32' or 'bfloat16'."
        ) from error
