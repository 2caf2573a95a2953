"""How large things are: a block by its layout, an object by what the store has."""

import math
from collections.abc import Callable, Iterable, Mapping

from hybridcache_jax.store.manifest import PoolPart
from hybridcache_jax.store.parallel import in_order
from hybridcache_jax.store.prefix_store import PrefixStore, ShortObjectError
from pallas_kernels.dtypes import element_bits

# (what is being done, done, total) for progress.
OnProgress = Callable[[str, int, int], None]

_LARGEST = 2**48


def block_size(part: PoolPart) -> int | None:
    """Bytes of a block by the layout that a manifest states; None if it is none."""
    total = 0
    for plane in part.planes:
        # NumPy reads more than names, and runs a parser over it.
        if not plane.dtype.isidentifier():
            return None
        try:
            bits = element_bits(plane.dtype)
        except ValueError:
            return None
        if min(plane.shape) < 1:
            return None
        # Elements of less than a byte are packed: the shape counts bytes.
        total += math.prod(plane.shape) * max(bits // 8, 1)
    return total if 0 < total < _LARGEST else None


def object_size(store: PrefixStore, name: str, hint: int = 0) -> int | None:
    """Bytes of an object, without reading it: by asking for single bytes of it.

    Args:
      store: where it is.
      name: of the object.
      hint: what it probably is; then it takes two reads.

    Returns:
      Its size; None if there is none.
    """

    def reaches(size: int) -> bool | None:
        try:
            return None if store.get(name, max(size - 1, 0), size) is None else True
        except ShortObjectError:
            return False

    first = hint if 0 < hint < _LARGEST else 0
    begins = reaches(first)
    if begins is None:
        return None
    least, step = (first if begins else 0), 1
    while least + step < _LARGEST and reaches(least + step):
        least, step = least + step, 2 * step
    # It has ``least`` bytes and fewer than ``least + step``.
    over = least + step
    while over - least > 1:
        middle = (least + over) // 2
        if reaches(middle):
            least = middle
        else:
            over = middle
    return least


def pack_sizes(
    store: PrefixStore,
    least: Iterable[Mapping[str, int]],
    on_progress: OnProgress | None = None,
    threads: int = 1,
) -> dict[str, int]:
    """Bytes of the packs that records name, by what the store says, not a manifest.

    Args:
      store: where they are.
      least: packs that a record names, each with the least size it must have.
      on_progress: told ``("measuring packs", done, total)``.
      threads: how many are measured at once.
    """
    hints: dict[str, int] = {}
    for packs in least:
        for pack, size in packs.items():
            hints[pack] = max(size, hints.get(pack, 0))
    sizes = {}
    found = in_order(lambda each: object_size(store, *each), hints.items(), threads)
    for done, (pack, size) in enumerate(zip(hints, found, strict=True)):
        if on_progress is not None:
            on_progress("measuring packs", done, len(hints))
        sizes[pack] = size or 0
    return sizes
