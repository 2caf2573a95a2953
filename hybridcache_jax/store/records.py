"""Records: what is stored of one prefix, written whole and found again by its tokens.

A record lies under the key of the prefix that it goes on from, then the key of its own
first grid unit, then its own key.  So a reader who knows the tokens walks from record
to record, lists only those that share a grid unit more, and needs no server that knows
them all.  Names find; manifests are compared, token by token and field by field.
"""

import dataclasses
from collections.abc import Iterable, Sequence

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
from hybridcache_jax.store.logits import logits_problem, write_logits
from hybridcache_jax.store.manifest import (
    MOST_BYTES,
    BlockPlace,
    Manifest,
    ManifestError,
    PlaneLayout,
    PoolPart,
    decode,
    encode,
)
from hybridcache_jax.store.pack import check_lasting, write_blocks
from hybridcache_jax.store.prefix_store import (
    LargeObjectError,
    PrefixStore,
    read_at_most,
)

FOLDER = "records"

# Records beside each other that are opened to see how far they go along.
_MOST_OPENED = 16


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


@dataclasses.dataclass(frozen=True)
class Found:
    """The records that lead along a prompt.

    Attributes:
      records: each goes on where the one before stops.
      length: tokens that they and the prompt have in common, whole grid units; less
        than where the last one stops if the prompt leaves it before.
      problems: names of records that were passed by, and what is wrong with each.
      leading: those that lead furthest of all of which the prompt has every token: a
        record of the rest of it goes on where they stop.
    """

    records: tuple[Manifest, ...]
    length: int
    problems: tuple[tuple[str, str], ...]
    leading: tuple[Manifest, ...]


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
    store.put(_folder(keys, start // grid) + manifest.key.hex(), data)
    return manifest


def find_records(store: PrefixStore, prompt: Prefix) -> Found:
    """The records that lead furthest along a prompt.

    Args:
      store: where from.
      prompt: what is asked for; its provenance is the one looked for.

    Raises:
      StoreError: if the store fails.
    """
    keys, problems = prompt.keys(), []
    ends = {key.hex(): unit for unit, key in enumerate(keys)}
    # Per unit that whole records lead to: the last of them, and where it goes on from.
    reached: dict[int, tuple[Manifest, int] | None] = {0: None}
    # Units in common with the prompt, whether the record has no more, and the record.
    best: tuple[int, bool, tuple[Manifest, int] | None] = 0, True, None
    pending = [0]
    while pending:
        at = pending.pop()
        for name in _beside(store, keys, ends, at):
            start = at * prompt.grid
            record, why = _opened(store, name, prompt, keys[at], start)
            if record is None:
                problems.append((name, why))
                continue
            along = _along(record, prompt) // prompt.grid
            whole = along * prompt.grid == record.stop
            if (along, whole) > best[:2]:
                best = along, whole, (record, at)
            if whole and along not in reached:
                reached[along] = record, at
                pending.append(along)

    def leading_to(step: tuple[Manifest, int] | None) -> tuple[Manifest, ...]:
        chain = []
        while step is not None:
            chain.append(step[0])
            step = reached[step[1]]
        return tuple(reversed(chain))

    return Found(
        records=leading_to(best[2]),
        length=best[0] * prompt.grid,
        problems=tuple(problems),
        leading=leading_to(reached[max(reached)]),
    )


def _beside(
    store: PrefixStore, keys: Sequence[bytes], ends: dict[str, int], at: int
) -> list[str]:
    """Records that go on from a unit with the prompt's next one, the likeliest first.

    Those come first that the prompt runs through, the furthest before the others.
    """
    if at + 1 >= len(keys):
        return []
    names = [name for name in store.names(_folder(keys, at)) if name.count("/") == 3]
    names.sort(key=lambda name: -ends.get(name.rpartition("/")[2], 0))
    return names[:_MOST_OPENED]


def _opened(
    store: PrefixStore, name: str, prompt: Prefix, parent: bytes, start: int
) -> tuple[Manifest | None, str]:
    """A record that goes on from ``parent``; or None and what is wrong with it."""
    try:
        data = read_at_most(store, name, MOST_BYTES)
    except LargeObjectError as error:
        return None, str(error)
    if data is None:
        return None, "it is gone"
    try:
        record = decode(data)
    except ManifestError as error:
        return None, str(error)
    if record.key.hex() != name.rpartition("/")[2]:
        return None, "it lies under the name of another record"
    identity = dataclasses.asdict(prompt.key.identity)
    changed = [
        field
        for field, value in identity.items()
        if record.identity.get(field) != value
    ]
    if changed or record.identity.keys() != identity.keys():
        return None, f"another producer wrote it: {', '.join(changed) or 'fields'}"
    key = prompt.key
    readers = int(key.scope), key.owner, key.generation, int(key.provenance)
    written = record.scope, record.owner, record.generation, record.provenance
    if written != readers:
        return None, "it was written for other readers"
    wanted = prompt.grid, parent, start
    if (record.grid, record.parent, record.start) != wanted:
        return None, "it does not go on from the record before"
    whole = record.stop - record.start
    if whole <= 0 or whole % record.grid or len(record.tokens) != 4 * whole:
        return None, "its tokens are not those of its range"
    ends = [edge for span in record.contents for edge in span[:2]]
    if ends != sorted(ends) or any(not 0 <= edge <= whole for edge in ends):
        return None, "its contents lie outside of its range"
    why = logits_problem(record)
    return (record, "") if why is None else (None, why)


def _along(record: Manifest, prompt: Prefix) -> int:
    """Up to where prompt and record have the same tokens and contents."""
    stop = min(record.stop, len(prompt.tokens))
    own = np.frombuffer(record.tokens, "<i4")[: stop - record.start]
    asked = prompt.tokens[record.start : stop]
    different = np.flatnonzero(own != asked)
    same = record.start + (int(different[0]) if len(different) else len(own))
    # Content ids are few: the first position at which they part.
    size = stop - record.start
    first = _at_positions(
        (begin, min(end, size), kind, name)
        for begin, end, kind, name in record.contents
    )
    other = _at_positions(contents_between(prompt.contents, record.start, stop))
    for position in sorted(first.keys() | other.keys()):
        if first.get(position) != other.get(position):
            return min(same, record.start + position)
    return same


def _at_positions(
    contents: Iterable[tuple[int, int, str, str]],
) -> dict[int, tuple[str, str]]:
    return {
        position: (kind, name)
        for start, stop, kind, name in contents
        for position in range(start, stop)
    }


def _folder(keys: Sequence[bytes], unit: int) -> str:
    """Where the records lie that go on from a key with the prompt's next grid unit."""
    return f"{FOLDER}/{keys[unit].hex()}/{keys[unit + 1].hex()}/"


def _token_bytes(tokens: np.ndarray) -> bytes:
    return np.ascontiguousarray(tokens, "<i4").tobytes()
