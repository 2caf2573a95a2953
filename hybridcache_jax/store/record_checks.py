"""What can be said of a manifest by itself: whether range, keys, name and layout agree.

Keys and name are computed again from the tokens; numbers are compared, never used to
allocate anything.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from hybridcache_jax.codes import Provenance
from hybridcache_jax.contents import ContentId, Contents
from hybridcache_jax.identity import Identity
from hybridcache_jax.offload.payload import DIGEST_BYTES
from hybridcache_jax.rollout import Key, Scope
from hybridcache_jax.store.inventory import record_name
from hybridcache_jax.store.keys import chain, root_key
from hybridcache_jax.store.logits import logits_problem
from hybridcache_jax.store.manifest import Manifest, PoolPart
from hybridcache_jax.store.pack import is_pack_name
from hybridcache_jax.store.sizes import block_size


def record_problems(name: str, manifest: Manifest) -> list[str]:
    """What is wrong with a manifest by itself, without what it names.

    Args:
      name: of its object.
      manifest: as it was decoded.

    Returns:
      One clause for each; none for a manifest that may be believed.
    """
    why = _range_problem(manifest) or _keys_problem(name, manifest)
    whys = filter(None, [why, logits_problem(manifest)])
    return [*whys, *_part_problems(manifest.every_part)]


def beginning(manifest: Manifest) -> tuple:
    """What the record that this one goes on from ends with, as :func:`ending` says."""
    return (manifest.parent, manifest.start, *_who(manifest))


def ending(manifest: Manifest) -> tuple:
    """Where a record leads, and for whom; equal to the next one's beginning."""
    return (manifest.key, manifest.stop, *_who(manifest))


def _who(manifest: Manifest) -> tuple:
    return (
        tuple(sorted(manifest.identity.items())),
        manifest.scope,
        manifest.owner,
        manifest.generation,
        manifest.provenance,
        manifest.grid,
    )


def _range_problem(manifest: Manifest) -> str | None:
    start, stop, grid = manifest.start, manifest.stop, manifest.grid
    if grid < 1 or not 0 <= start < stop or start % grid or stop % grid:
        return "its range is no whole grid units"
    if len(manifest.tokens) != 4 * (stop - start):
        return "its tokens are not those of its range"
    if manifest.age < 0:
        return "it was written before the first tick"
    return None


def _keys_problem(name: str, manifest: Manifest) -> str | None:
    """Whether keys and name are those of its tokens."""
    try:
        key = Key(
            Identity(**manifest.identity),  # type: ignore[arg-type]
            Scope(manifest.scope),
            manifest.owner,
            manifest.generation,
            Provenance(manifest.provenance),
        )
        root = root_key(key, manifest.grid)
    except (TypeError, ValueError, AttributeError) as error:
        return f"its producer or readers are none: {error}"
    if manifest.start == 0 and manifest.parent != root:
        return "the key that it begins at is not its producer's"
    tokens = np.frombuffer(manifest.tokens, "<i4")
    try:
        spans = [(a, b, _content(*named)) for a, b, *named in manifest.contents]
        contents = Contents.of(spans, len(tokens))
    except ValueError as error:
        return f"its contents are none: {error}"
    keys = chain(key.identity, manifest.parent, tokens, contents, manifest.grid)
    if keys[-1] != manifest.key:
        return "its key is not that of its tokens"
    said = record_name(name)
    if said is None or (said.parent, said.first, said.key) != (
        manifest.parent,
        keys[1],
        manifest.key,
    ):
        return "its name is not that of its tokens"
    return None


def _content(kind: str, text: str) -> ContentId:
    """A content id as it was before it became text."""
    if kind == "bytes":
        return bytes.fromhex(text)
    if kind == "int":
        return int(text)
    if kind == "str":
        return text
    raise ValueError(f"there are no content ids of type {kind!r}")


def _part_problems(parts: Sequence[PoolPart]) -> Iterable[str]:
    for part in parts:
        if part.block_tokens < 1 or block_size(part) is None:
            yield f"the layout of pool {part.pool} is none"
        numbers = [place.number for place in part.blocks]
        if numbers != sorted(set(numbers)) or min(numbers, default=0) < 0:
            yield f"the blocks of pool {part.pool} are not in ascending order"
        for place in part.blocks:
            if not is_pack_name(place.pack) or place.start < 0:
                yield f"block {place.number} of pool {part.pool} lies nowhere"
            elif len(place.digest) != DIGEST_BYTES:
                yield f"block {place.number} of pool {part.pool} has no digest"
