"""Next-token logits in a record: who has them runs no position of an exact repeat.

They are of the position that ends the record, and lie in a pack of their own: damage to
them costs no block.  Whose they are the record says, of which every token is compared.
"""

import numpy as np
from jax.typing import ArrayLike

from hybridcache_jax.store.manifest import Manifest, PlaneLayout, PoolPart
from hybridcache_jax.store.pack import write_blocks
from hybridcache_jax.store.prefix_store import PrefixStore
from hybridcache_jax.store.sizes import block_size
from pallas_kernels.dtypes import named_dtype

FORM = "LOGITS"

DTYPES = ("float32", "bfloat16", "float16")

MOST = 2**24
"""Entries of a vocabulary; more is not read, whatever a manifest says."""


def checked_logits(logits: ArrayLike) -> np.ndarray:
    """Logits as they are stored, in memory of their own.

    Args:
      logits: ``[vocab]`` of one of ``DTYPES``.

    Raises:
      ValueError: for another shape or dtype, or for NaN, which rows have that are not
        OK.
    """
    own = np.array(logits, order="C")
    if own.ndim != 1 or not 0 < len(own) <= MOST or own.dtype.name not in DTYPES:
        raise ValueError(
            f"Next-token logits are [vocab] of {', '.join(DTYPES)}, got "
            f"{own.dtype.name}{list(own.shape)}; give those of one position."
        )
    if np.isnan(own).any():
        raise ValueError(
            "These next-token logits have NaN, as those of a row have whose status is "
            "not OK; store none of such a row."
        )
    return own


def write_logits(store: PrefixStore, logits: np.ndarray, stop: int) -> PoolPart:
    """Writes logits, and says where they lie.

    Args:
      store: where to.
      logits: as :func:`checked_logits` gives them.
      stop: where the record ends whose last position they are of.

    Raises:
      StoreError: if the store fails.
    """
    data = logits.view(np.uint8).data
    layout = PlaneLayout("logits", logits.dtype.name, (1, 1, len(logits)))
    places = write_blocks(store, [(stop - 1, data)])
    return PoolPart("logits", FORM, 1, (layout,), tuple(places))


def logits_problem(record: Manifest) -> str | None:
    """What is wrong with a record's logits by what it says; None if nothing is."""
    part = record.logits
    if part is None:
        return None
    numbers = [place.number for place in part.blocks]
    if numbers != [record.stop - 1] or len(part.planes) != 1:
        return "its logits are not those of its last position"
    plane, size = part.planes[0], block_size(part)
    if plane.dtype not in DTYPES or size is None or plane.shape[:2] != (1, 1):
        return "the layout of its logits is none"
    return None if plane.shape[2] <= MOST else "it has logits of too many tokens"


def logits_of_bytes(part: PoolPart, data: memoryview) -> np.ndarray:
    """``[vocab]`` logits as they were stored; a view of bytes that were compared.

    Args:
      part: of a record without problems.
      data: of its block.
    """
    return np.frombuffer(data, named_dtype(part.planes[0].dtype))
