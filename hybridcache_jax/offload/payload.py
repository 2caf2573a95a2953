"""What one block looks like outside of device memory: bytes and their digest."""

import dataclasses
import hashlib

import numpy as np

from hybridcache_jax.planes import storage_dtype, storage_width
from hybridcache_jax.spec import PoolSpec

_DIGEST_BYTES = 16


@dataclasses.dataclass(frozen=True)
class Payload:
    """One block of one pool, over all layers of the pool.

    Attributes:
      planes: plane to ``[L, S, width]`` in the storage dtype.
      digest: BLAKE2b of names, dtypes, shapes and bytes of all planes.
    """

    planes: dict[str, np.ndarray]
    digest: bytes

    @classmethod
    def sealed(cls, planes: dict[str, np.ndarray]) -> "Payload":
        """A payload of its own memory, with the digest of what it holds now."""
        own = {name: np.array(plane, order="C") for name, plane in planes.items()}
        return cls(own, digest(own))

    @property
    def nbytes(self) -> int:
        """Bytes of all planes."""
        return sum(plane.nbytes for plane in self.planes.values())


def digest(planes: dict[str, np.ndarray]) -> bytes:
    """16 bytes of BLAKE2b over everything that makes planes what they are."""
    state = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name, plane in sorted(planes.items()):
        state.update(f"{name}:{plane.dtype}:{plane.shape};".encode())
        state.update(np.ascontiguousarray(plane).view(np.uint8).reshape(-1).data)
    return state.digest()


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
