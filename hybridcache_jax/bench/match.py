"""Match and verdict for a prompt of a million tokens, host side."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from hybridcache_jax import lifecycle
from hybridcache_jax.bench.measure import Measurement, Report, median_seconds
from hybridcache_jax.capacity import plan_capacity
from hybridcache_jax.codes import Verdict
from hybridcache_jax.cost import CostModel
from hybridcache_jax.entry import Entry
from hybridcache_jax.host_facts import HostFacts
from hybridcache_jax.identity import Identity
from hybridcache_jax.layers import Entries, LayerSpec, Window
from hybridcache_jax.matching import make_plan
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.rollout import Key
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.state import init

_TOKENS = 1_000_000
_PREFIXES = 50
_BRANCH = 20_000
_BLOCK = 64


def run() -> Report:
    """Stores 50 prefixes that share parts and matches the longest prompt."""
    entry = Entry.kv(heads=1, dim=1)
    spec = CacheSpec.from_layers(
        [LayerSpec(local=Window(1024, entry)), LayerSpec(global_=Entries(entry))],
        block_tokens=_BLOCK,
    )
    plan = plan_capacity(
        spec,
        budget="8GiB",
        max_sequences=1,
        max_length=_TOKENS + _BLOCK,
        stored_tokens=_TOKENS + _PREFIXES * _BRANCH,
        backend="cpu",
    )
    key = Key(Identity(weights="w", config="c", layout=spec.fingerprint))
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 200_000, _TOKENS, dtype=np.int32)
    tables, index = list(init(plan).tables), PrefixIndex(spec)
    for number in range(_PREFIXES):
        tokens = prompt
        if number:
            # Leave the prompt at ever later points and go on alone for a while.
            fork = number * _TOKENS // _PREFIXES // _BLOCK * _BLOCK
            own = rng.integers(0, 200_000, _BRANCH, dtype=np.int32)
            tokens = np.concatenate([prompt[:fork], own])
        _store(spec, tables, index, key, tokens)
    facts = jax.tree.map(np.asarray, tuple(tables))

    # The same store after every window was evicted: reasons and a replay are sought.
    lost = (dataclasses.replace(facts[0], epoch=facts[0].epoch + 1), facts[1])

    def match(tables=facts):
        now = HostFacts(spec, tables)
        return make_plan(spec, now, index, prompt, key, 1, CostModel())

    found = match()
    if found.length != (_TOKENS - 1) // _BLOCK * _BLOCK:
        raise AssertionError(f"The bench's own prefix was not found: {found.explain()}")
    if match(lost).verdict != Verdict.NEEDS_PARTIAL_RECOMPUTE:
        raise AssertionError(f"The windows are not missed: {match(lost).explain()}")
    stored = prompt.copy()
    floor = median_seconds(lambda: np.array_equal(prompt, stored), repeat=20)
    return Report(
        "match",
        f"{_TOKENS} tokens, window and full group, blocks of {_BLOCK}, "
        f"{_PREFIXES} stored prefixes",
        tuple(
            Measurement(
                what,
                median_seconds(call, repeat=20),
                "comparing the tokens once",
                floor,
                goal,
            )
            for what, call, goal in (
                ("match and verdict", match, 3.0),
                ("the same, windows evicted", lambda: match(lost), None),
            )
        ),
    )


def _store(spec, tables, index, key, tokens) -> None:
    """Puts a prefix into tables and index as a run of its tokens would."""
    claims = index.lookup(key, tokens)
    whole = len(tokens) // spec.grid * spec.grid
    blocks, epochs = [], []
    for number, pool in enumerate(spec.pools):
        first = np.arange(claims.length, whole, pool.block_tokens, dtype=np.int32)
        table, ids = lifecycle.allocate(
            tables[number],
            jnp.ones(len(first), bool),
            form=pool.form,
            version=jnp.ones(len(first), jnp.int32),
            provenance=jnp.zeros(len(first), jnp.int32),
            first=jnp.asarray(first),
            clock=jnp.int32(0),
        )
        table = lifecycle.keep(lifecycle.seal(table, ids), ids)
        tables[number] = lifecycle.unpin(table, ids, jnp.int32(0))
        blocks.append(np.concatenate([claims.blocks[number], ids]))
        fresh = np.asarray(tables[number].epoch)[np.asarray(ids)]
        epochs.append(np.concatenate([claims.epochs[number], fresh]))
    index.insert(
        key,
        tokens[:whole],
        blocks,
        epochs,
        lambda number, ids, seen, first: np.ones(len(ids), bool),
    )
