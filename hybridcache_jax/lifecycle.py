"""Pure transitions of blocks: from state table to state table.

Every function takes a table and returns a new one; an interrupted transition
leaves the old value whole.  Vectors of ids may be padded with any id outside
``[0, P)``; masked or padded places change nothing.  What leaves the cache again is
in :mod:`hybridcache_jax.eviction`.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

import jax
import jax.numpy as jnp

from hybridcache_jax._indexing import add, get, put
from hybridcache_jax._typing import AnyArray
from hybridcache_jax.codes import Provenance, Stage
from hybridcache_jax.forms import Form
from hybridcache_jax.state import StateTable

LEGAL: Mapping[Stage, frozenset[Stage]] = MappingProxyType(
    {
        # A place of an outer tier takes in what is whole already.
        Stage.FREE: frozenset({Stage.WRITING, Stage.LOADING, Stage.ON_DISK}),
        # A block that nobody stores goes with its last row.
        Stage.WRITING: frozenset({Stage.SEALED, Stage.FREE}),
        Stage.SEALED: frozenset(
            {Stage.OFFLOADING, Stage.EVICTING, Stage.QUARANTINED, Stage.FREE}
            # Written again by the only row that has it.
            | {Stage.WRITING}
        ),
        Stage.OFFLOADING: frozenset({Stage.ON_DISK, Stage.SEALED}),
        Stage.ON_DISK: frozenset(
            {Stage.LOADING, Stage.EVICTING, Stage.QUARANTINED, Stage.FREE}
        ),
        Stage.LOADING: frozenset({Stage.SEALED, Stage.QUARANTINED, Stage.FREE}),
        Stage.EVICTING: frozenset({Stage.FREE, Stage.SEALED}),
        Stage.QUARANTINED: frozenset({Stage.FREE}),
    }
)
"""Where a block may go from each stage in one transition."""


def allocate(
    table: StateTable,
    want: jax.Array,
    *,
    form: Form,
    version: jax.Array,
    provenance: jax.Array,
    first: jax.Array,
    clock: jax.Array,
) -> tuple[StateTable, jax.Array]:
    """Hands out free blocks: ``FREE -> WRITING``, one pin, new epoch, new label.

    Args:
      table: facts of the pool.
      want: ``[K]`` bool, places that want a block.  The caller has made sure that
        ``num_free`` suffices; places beyond it get none.
      form: label of the pool.
      version: ``[K]`` int32, identity that will write.
      provenance: ``[K]`` int32, ``codes.Provenance`` of the row that will write.
      first: ``[K]`` int32, first token position of the block.
      clock: ``[]`` int32.

    Returns:
      The table, and ``[K]`` int32 ids (``P`` where nothing was handed out).
    """
    labels = {
        "form": form,
        "version": version,
        "provenance": provenance,
        "first": first,
    }
    return _hand_out(table, want, Stage.WRITING, 1, clock, **labels)


def receive(
    table: StateTable,
    want: jax.Array,
    *,
    form: Form,
    version: jax.Array,
    provenance: jax.Array,
    first: jax.Array,
    clock: jax.Array,
) -> tuple[StateTable, jax.Array]:
    """Hands out blocks for what comes back from an outer tier: ``FREE -> LOADING``.

    Args and returns: as :func:`allocate`; nobody has pinned them.
    """
    labels = {
        "form": form,
        "version": version,
        "provenance": provenance,
        "first": first,
    }
    return _hand_out(table, want, Stage.LOADING, 0, clock, **labels)


def register(table: StateTable, ids: jax.Array) -> StateTable:
    """``LOADING -> SEALED``, held by a stored prefix; other stages stay as they are."""
    loading = get(table.stage, ids, Stage.FREE) == Stage.LOADING
    ids = _masked(table, ids, loading)
    return dataclasses.replace(
        table,
        stage=put(table.stage, ids, Stage.SEALED),
        kept=put(table.kept, ids, True),
    )


def seal(table: StateTable, ids: jax.Array) -> StateTable:
    """``WRITING -> SEALED`` for finished blocks; other stages stay as they are."""
    writing = get(table.stage, ids, Stage.FREE) == Stage.WRITING
    return dataclasses.replace(
        table, stage=put(table.stage, _masked(table, ids, writing), Stage.SEALED)
    )


def reopen(
    table: StateTable, ids: jax.Array, provenance: jax.Array, clock: jax.Array
) -> StateTable:
    """``SEALED -> WRITING``, new epoch, for a row that writes its own block again.

    Args:
      table: facts of the pool.
      ids: ``[K]`` int32, blocks with one pin that no stored prefix holds.
      provenance: ``[K]`` int32, ``codes.Provenance`` of the row that will write.
      clock: ``[]`` int32.
    """
    return dataclasses.replace(
        table,
        stage=put(table.stage, ids, Stage.WRITING),
        provenance=put(table.provenance, ids, provenance),
        epoch=add(table.epoch, ids, 1),
        used=put(table.used, ids, clock),
    )


def pin(table: StateTable, ids: AnyArray, clock: jax.Array) -> StateTable:
    """Adds one pin per mention; a pinned block is never evicted or overwritten."""
    return dataclasses.replace(
        table,
        pins=add(table.pins, ids, 1),
        used=put(table.used, ids, clock),
    )


def unpin(table: StateTable, ids: jax.Array, clock: jax.Array) -> StateTable:
    """Takes one pin per mention; blocks that nobody holds any more become free.

    A block without pins stays when a stored prefix holds it and it is sealed.
    """
    table = dataclasses.replace(
        table, pins=add(table.pins, ids, -1), used=put(table.used, ids, clock)
    )
    stored = get(table.kept, ids, True) & (
        get(table.stage, ids, Stage.SEALED) == Stage.SEALED
    )
    gone = (get(table.pins, ids, 1) == 0) & ~stored
    return free(table, _first_mentions(_masked(table, ids, gone)))


def keep(table: StateTable, ids: jax.Array) -> StateTable:
    """Marks sealed blocks as held by a stored prefix."""
    sealed = get(table.stage, ids, Stage.FREE) == Stage.SEALED
    return dataclasses.replace(
        table, kept=put(table.kept, _masked(table, ids, sealed), True)
    )


def free(table: StateTable, ids: jax.Array) -> StateTable:
    """``-> FREE``: clears label and keep mark, bumps the epoch, pushes the id.

    Args:
      table: facts of the pool.
      ids: ``[K]`` int32, none of them free, none mentioned twice.
    """
    size = table.stage.shape[0]
    valid = ids < size
    rank = jnp.cumsum(valid) - valid
    place = jnp.where(valid, table.num_free + rank, size)
    return dataclasses.replace(
        table,
        stage=put(table.stage, ids, Stage.FREE),
        form=put(table.form, ids, Form.NONE),
        provenance=put(table.provenance, ids, Provenance.EXACT),
        epoch=add(table.epoch, ids, 1),
        pins=put(table.pins, ids, 0),
        kept=put(table.kept, ids, False),
        first=put(table.first, ids, -1),
        free=put(table.free, place, ids),
        num_free=table.num_free + jnp.sum(valid, dtype=jnp.int32),
    )


def evictable(table: StateTable) -> jax.Array:
    """``[P]`` bool: sealed, held by a stored prefix, and pinned by nobody."""
    return (table.stage == Stage.SEALED) & table.kept & (table.pins == 0)


def account(table: StateTable) -> dict[str, jax.Array]:
    """Counts blocks by what they are: the parts add up to the pool's size.

    Runs in the namespace of its argument: on a snapshot nothing is compiled.

    Returns:
      ``[]`` int32 each: ``free``, ``evictable``, ``pinned`` (sealed), ``writing``,
      ``quarantined``, ``moving`` (all other stages), ``total``.
    """
    xp = table.stage.__array_namespace__()
    sealed = table.stage == Stage.SEALED
    aside = table.stage == Stage.QUARANTINED
    stored = evictable(table)
    counts = {
        "free": table.stage == Stage.FREE,
        "evictable": stored,
        "pinned": sealed & ~stored,
        "writing": table.stage == Stage.WRITING,
        "quarantined": aside,
        "moving": (table.stage > Stage.SEALED) & ~aside,
        "total": xp.ones_like(sealed),
    }
    return {name: xp.sum(part, dtype=xp.int32) for name, part in counts.items()}


def _hand_out(
    table, want, stage: Stage, pins: int, clock, *, form, version, provenance, first
):
    size = table.stage.shape[0]
    rank = jnp.cumsum(want) - want
    place = table.num_free - 1 - rank
    ids = jnp.where(want, get(table.free, place, size), size)
    return dataclasses.replace(
        table,
        stage=put(table.stage, ids, stage),
        form=put(table.form, ids, form),
        version=put(table.version, ids, version),
        provenance=put(table.provenance, ids, provenance),
        epoch=add(table.epoch, ids, 1),
        pins=put(table.pins, ids, pins),
        first=put(table.first, ids, first),
        used=put(table.used, ids, clock),
        num_free=table.num_free - jnp.sum(ids < size, dtype=jnp.int32),
    ), ids


def _first_mentions(ids: jax.Array) -> jax.Array:
    """``ids`` sorted, with repeated ids replaced by one past any id."""
    ordered = jnp.sort(ids)
    repeated = jnp.concatenate([jnp.zeros(1, bool), ordered[1:] == ordered[:-1]])
    return jnp.where(repeated, jnp.iinfo(jnp.int32).max, ordered)


def _masked(table: StateTable, ids: jax.Array, mask: jax.Array) -> jax.Array:
    return jnp.where(mask, ids, table.stage.shape[0])
