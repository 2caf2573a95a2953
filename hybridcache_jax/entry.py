"""What is stored for one token or one block of tokens: entries made of planes.

The library stores *entries*: opaque rows that the model has already normed and
rotated.  A plane is one array of an entry; a plane may scale another one, and both
are then one object.
"""

import dataclasses

from pallas_kernels.dtypes import element_bits


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
