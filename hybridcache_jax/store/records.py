"""Records: what is stored of one prefix, written whole and found again by its tokens.

A record lies under the key of the prefix that it goes on from, then the key of its own
first grid unit, then its own key.  So a reader who knows the tokens walks from record
to record, lists only those that share a grid unit more, and needs no server that knows
them all.  Names find; manifests are compared, token by token and field by field.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from hybridcache_jax.contents import Contents
from hybridcache_jax.offload.payload import Payload
from hybridcache_jax.planes import storage_width
from hybridcache_jax.rollout import Key
from hybridcache_jax.spec import PoolSpec
from hybridcache_jax.store.keys import (
    Hash,
    chain,
    contents_between,
    keyed_blake3,
    root_key,
)
from hybridcache_jax.store.logits import write_logits
from hybridcache_jax.store.manifest import (
    BlockPlace,
    Manifest,
    ManifestError,
    PlaneLayout,
    PoolPart,
    decode,
    encode,
)
from hybridcache_jax.store.pack import check_lasting, write_blocks
from hybridcache_jax.store.prefix_store import PrefixStore

FOLDER = "records"


@dataclasses.dataclass(frozen=True)
class Prefix:
    """Tokens, and who wrote what they left.

    Attributes:
      key: producer and namespace, who may read, and the provenance of everything that
        is stored.
      tokens: ``[n]`` int32.
      contents: what some of them stand for.
      grid: tokens of a grid unit.
      hash: of the keys.
    """

    key: Key
    tokens: np.ndarray
    contents: Contents
    grid: int
    hash: Hash = keyed_blake3

    def keys(self) -> list[bytes]:
        """Keys of all prefixes that end on the grid, the empty one first."""
        root = root_key(self.key, self.grid, self.hash)
        return chain(
            self.key.identity, root, self.tokens, self.contents, self.grid, self.hash
        )


@dataclasses.dataclass(frozen=True)
class PoolBlocks:
    """What a record has of one pool.

    Attributes:
      pool: which.
      blocks: numbers, ascending, each with the block or with the place where it lies
        already.
    """

    pool: PoolSpec
    blocks: Sequence[tuple[int, Payload | BlockPlace]]


def layout_of(pool: PoolSpec) -> tuple[PlaneLayout, ...]:
    """How the planes of a pool's blocks are laid out, in the order of their bytes."""
    return tuple(
        PlaneLayout(
            plane.name,
            plane.dtype,
            (len(pool.layers), pool.block_entries, storage_width(plane)),
        )
        for plane in sorted(pool.entry.planes, key=lambda plane: plane.name)
    )


def write_record(
    store: PrefixStore,
    prefix: Prefix,
    start: int,
    parts: Sequence[PoolBlocks],
    *,
    library: str,
    age: int,
    logits: np.ndarray | None = None,
) -> Manifest:
    """Writes a record: its blocks first, its manifest last.

    Cut short at any moment it leaves blocks that nothing names, and no record.

    Args:
      store: where to.
      prefix: all tokens up to the resume point, whole grid units.
      start: where the record goes on from another one; 0 for none.
      parts: of each pool what the resume point requires, of what grows with the history
        only what lies behind ``start``.
      library: version of the library.
      age: logical time of the store.
      logits: of the token that follows, by ``logits.checked_logits``; None to store
        none.

    Raises:
      ValueError: if ``start`` and the tokens are no whole grid units, or nothing lies
        between them; or if the manifest would be too large to be read again.
      GonePackError: if a block lies in the store no more, or not for long.
      StoreError: if the store fails.
    """
    keys, stop, grid = prefix.keys(), len(prefix.tokens), prefix.grid
    if start % grid or stop % grid or not 0 <= start < stop:
        raise ValueError(
            f"A record covers whole grid units of {grid} tokens, got positions {start} "
            f"to {stop}."
        )
    layouts = [layout_of(part.pool) for part in parts]
    blocks = [block for part in parts for _, block in part.blocks]
    check_lasting(store, [block for block in blocks if isinstance(block, BlockPlace)])
    fresh = [
        (number, block.data())
        for part in parts
        for number, block in part.blocks
        if isinstance(block, Payload)
    ]
    written = iter(write_blocks(store, fresh))
    manifest = Manifest(
        library=library,
        identity=dataclasses.asdict(prefix.key.identity),
        scope=int(prefix.key.scope),
        owner=prefix.key.owner,
        generation=prefix.key.generation,
        provenance=int(prefix.key.provenance),
        grid=grid,
        key=keys[stop // grid],
        parent=keys[start // grid],
        start=start,
        stop=stop,
        tokens=_token_bytes(prefix.tokens[start:]),
        contents=contents_between(prefix.contents, start, stop),
        parts=tuple(
            PoolPart(
                pool=part.pool.name,
                form=part.pool.form.name,
                block_tokens=part.pool.block_tokens,
                planes=layout,
                blocks=tuple(
                    next(written) if isinstance(block, Payload) else block
                    for _, block in part.blocks
                ),
            )
            for part, layout in zip(parts, layouts, strict=True)
        ),
        age=age,
        logits=None if logits is None else write_logits(store, logits, stop),
    )
    data = encode(manifest)
    try:
        decode(data)
    except ManifestError as error:
        raise ValueError(
            f"The manifest could not be read again, for {error}; write records that go "
            "on from each other."
        ) from error
    store.put(folder_of(keys, start // grid) + manifest.key.hex(), data)
    return manifest


def folder_of(keys: Sequence[bytes], unit: int) -> str:
    """Where the records lie that go on from a key with the prompt's next grid unit."""
    return f"{FOLDER}/{keys[unit].hex()}/{keys[unit + 1].hex()}/"


def _token_bytes(tokens: np.ndarray) -> bytes:
    return np.ascontiguousarray(tokens, "<i4").tobytes()
