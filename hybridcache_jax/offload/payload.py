"""What one block looks like outside of device memory: bytes and their digest."""

import dataclasses
import math

import numpy as np
from blake3 import blake3

from hybridcache_jax.planes import storage_dtype, storage_width
from hybridcache_jax.spec import PoolSpec

DIGEST_BYTES = 16
"""Of a block's digest: 128 bits, so that no damage goes unseen by chance."""


@dataclasses.dataclass(frozen=True)
class Payload:
    """One block of one pool, over all layers of the pool.

    Attributes:
      planes: plane to ``[L, S, width]`` in the storage dtype.
      digest: BLAKE3 of the bytes of all planes, in the order of their names.  What
        planes there are, their dtypes and shapes is the pool's to say: see
        :func:`layout_refusal`.
      proved: whether what read it compared its bytes with the digest; else they are
        compared before they are registered.
    """

    planes: dict[str, np.ndarray]
    digest: bytes
    proved: bool = False

    @classmethod
    def sealed(cls, planes: dict[str, np.ndarray]) -> "Payload":
        """A payload of its own memory, with the digest of what it holds now."""
        own = {name: np.array(plane, order="C") for name, plane in planes.items()}
        return cls(own, digest(own))

    @classmethod
    def of_bytes(
        cls, pool: PoolSpec, backend: str, data: bytes | memoryview, digest: bytes
    ) -> "Payload":
        """A payload as it was stored, and proved; its planes are views of ``data``.

        Args:
          pool: the pool it is meant for.
          backend: decides the storage dtypes.
          data: ``pool.block_bytes`` bytes, as :meth:`data` gave them.
          digest: of ``data``, with which the caller compared it.
        """
        planes, start = {}, 0
        for plane in sorted(pool.entry.planes, key=lambda plane: plane.name):
            shape = (len(pool.layers), pool.block_entries, storage_width(plane))
            dtype, count = storage_dtype(plane.dtype, backend), math.prod(shape)
            flat = np.frombuffer(data, dtype, count, start)
            planes[plane.name] = flat.reshape(shape)
            start += flat.nbytes
        return cls(planes, digest, proved=True)

    @property
    def nbytes(self) -> int:
        """Bytes of all planes."""
        return sum(plane.nbytes for plane in self.planes.values())

    def holds_what_it_says(self) -> bool:
        """Validation layer 3: whether the bytes are those that were sealed."""
        return self.proved or digest(self.planes) == self.digest

    def data(self) -> memoryview:
        """A copy of the bytes of all planes, in the order of their names."""
        return joined(self.planes)


def joined(planes: dict[str, np.ndarray]) -> memoryview:
    """The bytes of planes in the order of their names, copied once."""
    data, start = np.empty(sum(plane.nbytes for plane in planes.values()), np.uint8), 0
    for _, plane in sorted(planes.items()):
        part = data[start : start + plane.nbytes]
        part.view(plane.dtype).reshape(plane.shape)[...] = plane
        start += plane.nbytes
    return data.data


def digest(planes: dict[str, np.ndarray]) -> bytes:
    """What :attr:`Payload.digest` must be for these planes."""
    state = blake3()
    for _, plane in sorted(planes.items()):
        state.update(np.ascontiguousarray(plane).view(np.uint8).reshape(-1).data)
    return state.digest(length=DIGEST_BYTES)


def layout_refusal(pool: PoolSpec, backend: str, payload: Payload) -> str | None:
    """Validation layer 2 for a block that comes back: why it does not fit the pool.

    Args:
      pool: the pool it is meant for.
      backend: decides the storage dtypes.
      payload: what came.

    Returns:
      One clause, or None if names, dtypes and shapes are the pool's own.
    """
    declared = {plane.name: plane for plane in pool.entry.planes}
    if payload.planes.keys() != declared.keys():
        return f"it has planes {sorted(payload.planes)}, expected {sorted(declared)}"
    for name, plane in declared.items():
        got = payload.planes[name]
        shape = (len(pool.layers), pool.block_entries, storage_width(plane))
        dtype = storage_dtype(plane.dtype, backend)
        if got.dtype != dtype or got.shape != shape:
            return (
                f"plane {name} is {got.dtype}{list(got.shape)}, expected "
                f"{dtype}{list(shape)}"
            )
    return None
