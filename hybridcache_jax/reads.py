"""Which reads of ``pallas_kernels`` each pool serves."""

from hybridcache_jax.forms import RULES, Read
from hybridcache_jax.spec import CacheSpec, Part


def reads(spec: CacheSpec, pool: int) -> tuple[str, ...]:
    """The operations that read a pool, by their folder.

    Args:
      spec: what is cached.
      pool: index of the pool.

    Returns:
      None for tails and states; two for a history of which some layers read all they
      see, and others what was selected of it.
    """
    kind = RULES[spec.pools[pool].form].read
    if kind is Read.LOCAL:
        return ("window_decode",)
    if kind is Read.INDEX:
        return ("indexer_scores",)
    if kind is Read.NONE:
        return ()
    selecting = {
        _selects(spec, number)
        for number in range(len(spec.layers))
        if (found := spec.find(number, Part.ENTRIES)) and found[0] == pool
    }
    names = {False: "paged_decode", True: "indexed_decode"}
    return tuple(name for selects, name in names.items() if selects in selecting)


def _selects(spec: CacheSpec, layer: int) -> bool:
    owner = spec.layers[layer].select_owner
    return spec.layers[layer if owner is None else owner].select is not None
