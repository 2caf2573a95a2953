"""Prefixes stored as a run of their tokens would leave them, without running any."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridcache_jax.codes import Provenance, Stage
from hybridcache_jax.entry import Entry, Plane
from hybridcache_jax.layers import (
    Entries,
    IndexKeys,
    LayerSpec,
    RecurrentState,
    TopK,
    Window,
)
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.rollout import Key
from hybridcache_jax.spec import CacheSpec, PoolSpec
from hybridcache_jax.state import StateTable

VERSION = 1


class Store:
    """An index and the facts it claims, on the host; memory holds no entries."""

    def __init__(self, spec: CacheSpec, key: Key, tokens: int):
        """Room for so many tokens.

        Args:
          spec: pools and grid.
          key: whose prefixes they are.
          tokens: most that :meth:`put` stores in all, shared parts counted once.
        """
        self.spec, self.key, self.index = spec, key, PrefixIndex(spec)
        self.tables = tuple(
            _sealed(pool, tokens // pool.block_tokens) for pool in spec.pools
        )
        self._used = [0] * len(spec.pools)

    def facts(self, lost: tuple[int, ...] = ()) -> tuple[StateTable, ...]:
        """The facts as a cache has them, with all blocks of some pools evicted."""
        tables = tuple(
            dataclasses.replace(table, epoch=table.epoch + 1)
            if number in lost
            else table
            for number, table in enumerate(self.tables)
        )
        return jax.tree.map(jnp.asarray, tables)

    def put(self, tokens: np.ndarray) -> None:
        """Stores a prompt; what it shares with an earlier one is not stored again.

        Args:
          tokens: ``[n]`` int32, cut to whole grid units.
        """
        claims = self.index.lookup(self.key, tokens)
        whole = len(tokens) // self.spec.grid * self.spec.grid
        blocks, epochs = [], []
        for number, pool in enumerate(self.spec.pools):
            first = np.arange(claims.length, whole, pool.block_tokens, dtype=np.int32)
            start = self._used[number]
            self._used[number] += len(first)
            ids = np.arange(start, self._used[number], dtype=np.int32)
            np.asarray(self.tables[number].first)[ids] = first
            blocks.append(np.concatenate([claims.blocks[number], ids]))
            fresh = self.tables[number].epoch[ids]
            epochs.append(np.concatenate([claims.epochs[number], fresh]))

        def all_hold(pool, ids, seen, first):
            return np.ones(len(ids), bool)

        self.index.insert(self.key, tokens[:whole], blocks, epochs, all_hold)


def _sealed(pool: PoolSpec, count: int) -> StateTable:
    """Facts of blocks that a prefix holds; only their positions are still open."""

    def full(value):
        return np.full(count, int(value), np.int32)

    # NumPy leaves, to be written to.
    columns: dict[str, Any] = {
        "stage": full(Stage.SEALED),
        "form": full(pool.form),
        "version": full(VERSION),
        "provenance": full(Provenance.EXACT),
        "epoch": full(1),
        "pins": full(0),
        "kept": np.ones(count, bool),
        "first": full(-1),
        "used": full(0),
        "free": full(0),
        "num_free": np.int32(0),
    }
    return StateTable(**columns)


def five_groups(block_tokens: int = 64) -> CacheSpec:
    """A hybrid of five kinds of layer: every form that a group can leave.

    A window, full attention, compressed entries with their tail, attention over
    selected entries with index keys, and a recurrent layer.

    Args:
      block_tokens: tokens per block, of every form; a multiple of 4.
    """
    entry = Entry.kv(heads=1, dim=1)
    row = Entry((Plane("k", 1, 1),))
    raw = Entry((Plane("value", 1, 1), Plane("gate", 1, 1)))
    layers = [
        LayerSpec(recurrent=RecurrentState(row)),
        LayerSpec(local=Window(1024, entry)),
        LayerSpec(global_=Entries(entry)),
        LayerSpec(global_=Entries(row, 4, overlap=1, raw=raw)),
        LayerSpec(global_=Entries(entry), index=IndexKeys(row), select=TopK(2048)),
    ]
    return CacheSpec.from_layers(layers, block_tokens=block_tokens)
