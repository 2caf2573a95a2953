"""Which blocks a chain of records offers: believed only where it says what it must."""

import itertools
from collections.abc import Collection

from hybridcache_jax.forms import RULES, required
from hybridcache_jax.spec import CacheSpec, PoolSpec
from hybridcache_jax.store.finding import Found
from hybridcache_jax.store.manifest import BlockPlace, Manifest, PoolPart
from hybridcache_jax.store.records import layout_of

# A block of a prefix: index of its pool, and its number there.
Block = tuple[int, int]


def required_blocks(pool: PoolSpec, point: int) -> range:
    """Numbers of the blocks that a form requires to resume at a grid point."""
    lo, hi = required(pool.form, pool.geometry, point)
    size = pool.block_tokens
    return range(lo // size, -(-hi // size)) if lo < hi else range(0)


def offered(
    spec: CacheSpec, found: Found, refused: Collection[str] = ()
) -> tuple[int, dict[Block, BlockPlace]]:
    """Where the blocks of a prompt lie, as far as the records go along with it.

    Args:
      spec: of the reader; a record of another layout ends the chain.
      found: the records.
      refused: names of packs that offer nothing.

    Returns:
      Where the last whole record stops before which nothing is refused, 0 for none; and
      the blocks of which every token is one of the prompt's.
    """
    stop, sound, blocks = 0, True, {}
    for record in found.records:
        if refusal(spec, record) is not None:
            break
        for number, part in enumerate(record.parts):
            for place in part.blocks:
                sound = sound and place.pack not in refused
                inside = (place.number + 1) * part.block_tokens <= found.length
                if inside and place.pack not in refused:
                    blocks[number, place.number] = place
        if sound and record.stop <= found.length:
            stop = record.stop
    return stop, blocks


def refusal(spec: CacheSpec, record: Manifest) -> str | None:
    """Why a record's blocks are not those that this spec needs.

    Args:
      spec: of the reader.
      record: a manifest whose tokens and producer were compared.

    Returns:
      One clause, or None if form by form it has what a record must have: the whole
      history of its own range, and of bounded forms blocks that lie before its end.
    """
    if len(record.parts) != len(spec.pools):
        return f"it has {len(record.parts)} pools, expected {len(spec.pools)}"
    for pool, part in zip(spec.pools, record.parts, strict=True):
        expected = pool.name, pool.form.name, pool.block_tokens, layout_of(pool)
        for what, own, given in zip(
            ("pool", "form", "block_tokens", "planes"),
            expected,
            (part.pool, part.form, part.block_tokens, part.planes),
            strict=True,
        ):
            if own != given:
                return f"{what} of {pool.name} is {given}, expected {own}"
        if not _numbers_fit(pool, part, record):
            return f"its blocks of {pool.name} are not those of its range"
    return None


def _numbers_fit(pool: PoolSpec, part: PoolPart, record: Manifest) -> bool:
    numbers = [place.number for place in part.blocks]
    stop = record.stop // pool.block_tokens
    if RULES[pool.form].grows:
        return numbers == list(range(record.start // pool.block_tokens, stop))
    # Of the others there is what the retention policy kept.
    inside = not numbers or (numbers[0] >= 0 and numbers[-1] < stop)
    return inside and all(a < b for a, b in itertools.pairwise(numbers))
