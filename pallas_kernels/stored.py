"""How entries lie in a pool, as kernels need to know it."""

import dataclasses

import jax


@dataclasses.dataclass(frozen=True)
class StoredPlane:
    """One array ``[L, P, S, heads * dim]`` of a pool.

    Attributes:
      name: of the plane.
      heads: heads per entry, folded into the last axis.
      dim: elements per head.
      dtype: name of the logical dtype.
      scale: name of the plane whose elements scale this one; None for none.
      run: elements that share one scale; 0 without a scale.
    """

    name: str
    heads: int
    dim: int
    dtype: str
    scale: str | None = None
    run: int = 0


@dataclasses.dataclass(frozen=True)
class Stored:
    """The layout of a pool: static, hashable.

    Attributes:
      planes: every plane that a read needs, scales among them.
      key: names of the planes that make up the key, in order.
      value: names of the planes that make up the value.
      block_tokens: tokens of a block.
      entry_tokens: tokens that one entry stands for.
    """

    planes: tuple[StoredPlane, ...]
    key: tuple[str, ...]
    value: tuple[str, ...]
    block_tokens: int
    entry_tokens: int = 1

    def __getitem__(self, name: str) -> StoredPlane:
        """The plane called ``name``."""
        return next(plane for plane in self.planes if plane.name == name)

    @property
    def heads(self) -> int:
        """KV heads."""
        return self[self.key[0]].heads

    @property
    def key_dim(self) -> int:
        """Elements of one head's key."""
        return sum(self[name].dim for name in self.key)

    @property
    def value_dim(self) -> int:
        """Elements of one head's value."""
        return sum(self[name].dim for name in self.value)

    @property
    def block_entries(self) -> int:
        """``S``, entries of a block."""
        return self.block_tokens // self.entry_tokens

    def read(self) -> tuple[StoredPlane, ...]:
        """The planes that a read of keys and values touches, each once."""
        wanted = {*self.key, *self.value}
        wanted |= {self[name].scale for name in wanted if self[name].scale}
        return tuple(plane for plane in self.planes if plane.name in wanted)


Planes = dict[str, jax.Array]
"""The arrays of a pool, by plane: ``[L, P, S, heads * dim]``."""
