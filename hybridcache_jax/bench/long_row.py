"""A row with a long history behind it, without running any of it."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from hybridcache_jax.codes import Stage
from hybridcache_jax.forms import required
from hybridcache_jax.state import HybridCache


def as_if_run(cache: HybridCache, row: int, length: int) -> HybridCache:
    """The row as ``length`` tokens would leave it; the entries are zeros.

    Args:
      cache: no block was ever freed; rows given before have theirs.
      row: a row that was acquired and has run nothing.
      length: tokens behind it.
    """
    tables, blocks, epochs = [], [], []
    for index, pool in enumerate(cache.plan.spec.pools):
        size, columns = pool.block_tokens, cache.plan.columns(index)
        lo, hi = required(pool.form, pool.geometry, length)
        numbers = np.arange(lo // size, -(-hi // size) if lo < hi else lo // size)
        table, count = cache.tables[index], len(numbers)
        # The stack of a fresh pool hands out 0, 1, 2, ...
        taken = cache.plan.blocks[index] - int(table.num_free)
        ids = np.arange(taken, taken + count, dtype=np.int32)
        own, seen = (
            np.array(part[index]) for part in (cache.rows.blocks, cache.rows.epochs)
        )
        own[row, numbers % columns], seen[row, numbers % columns] = ids, 1
        tables.append(
            dataclasses.replace(
                table,
                stage=table.stage.at[ids].set(int(Stage.SEALED)),
                form=table.form.at[ids].set(int(pool.form)),
                version=table.version.at[ids].set(cache.rows.version[row]),
                epoch=table.epoch.at[ids].set(1),
                pins=table.pins.at[ids].set(1),
                first=table.first.at[ids].set(numbers.astype(np.int32) * size),
                num_free=table.num_free - count,
            )
        )
        blocks.append(jnp.asarray(own))
        epochs.append(jnp.asarray(seen))
    rows = dataclasses.replace(
        cache.rows,
        length=cache.rows.length.at[row].set(length),
        blocks=tuple(blocks),
        epochs=tuple(epochs),
    )
    return dataclasses.replace(cache, tables=tuple(tables), rows=rows)
