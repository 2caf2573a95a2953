"""A process of its own: saves or restores one cache of eight heads on its devices.

``save PATH``, ``restore PATH``, ``save-on PATH`` (one step after the other until it
is killed) or ``race-N PATH`` (saves step 5 with values of its own, once it is told to).
Answers with one line of JSON.
"""

import dataclasses
import json
import sys

import jax
import numpy as np

import hybridcache_jax as hc
from hybridcache_jax import append
from hybridcache_jax.lineage import OnFacts
from hybridcache_jax.store.snapshot_manifest import SnapshotError

HEADS, DIM, BLOCK, LENGTH, VOCAB = 8, 2, 4, 16, 100
IDENTITY = hc.Identity(weights="w", config="c", layout="l")
PROMPT = list(range(8))


def _facts_step(cache, inputs):
    cache, step = append.begin(cache, inputs, VOCAB)
    return append.end(cache, step)


def plan():
    entry = hc.Entry((hc.Plane("k", HEADS, DIM),))
    spec = hc.CacheSpec.from_layers([hc.LayerSpec(global_=hc.Entries(entry))])
    pools = (dataclasses.replace(spec.pools[0], block_tokens=BLOCK),)
    spec = dataclasses.replace(spec, pools=pools)
    return hc.CapacityPlan(spec, 1, LENGTH, LENGTH, (8,), "cpu")


def shardings(some):
    """Heads over all devices, everything else on each of them."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("heads",))
    parts = jax.sharding.PartitionSpec
    everywhere = jax.sharding.NamedSharding(mesh, parts())
    spread = jax.sharding.NamedSharding(mesh, parts(None, None, None, "heads"))
    shape = jax.eval_shape(lambda: hc.init(some))
    others = jax.tree.map(lambda _: everywhere, shape)
    pools = jax.tree.map(lambda _: spread, shape.pools)
    return dataclasses.replace(others, pools=pools)


def heads_of(cache):
    """Which heads lie on each device, by what their values say."""
    shards = sorted(
        cache.pools[0]["k"].addressable_shards, key=lambda shard: shard.device.id
    )
    return [
        np.unique(np.asarray(shard.data) // 1000).astype(int).tolist()
        for shard in shards
    ]


def served(some):
    prefixes = hc.PrefixCache(some, policy=hc.ReusePolicy("namespace"))
    cache = hc.init(some)
    cache, lease = prefixes.acquire(cache, prefixes.cold_plan(PROMPT, IDENTITY))
    inputs = hc.batch_inputs([(lease, PROMPT)], batch=1, width=LENGTH)
    cache = prefixes.release(OnFacts(_facts_step)(cache, inputs), lease)
    # Head h has the values 1000 h + place.
    blocks = np.arange(8 * BLOCK * HEADS * DIM).reshape(1, 8, BLOCK, HEADS, DIM) % 1000
    values = blocks + 1000 * np.arange(HEADS)[:, None]
    memory = values.reshape(1, 8, BLOCK, HEADS * DIM).astype(np.float32)
    cache = dataclasses.replace(cache, pools=({"k": memory},))
    return jax.device_put(cache, shardings(some)), prefixes


def said(cache, prefixes):
    plan = prefixes.match(cache, [*PROMPT, 9], IDENTITY)
    return {
        "devices": heads_of(cache),
        "values": np.asarray(cache.pools[0]["k"]).ravel().tolist(),
        "verdict": plan.verdict.name,
    }


def race(store, own):
    """Saves one step beside another process; whether it was told so, and what."""
    cache, prefixes = served(plan())
    memory = {"k": cache.pools[0]["k"] + own}
    cache = dataclasses.replace(cache, pools=(memory,))
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        store.save_snapshot(5, cache, prefixes)
    except SnapshotError:
        return {"saved": False}
    return {"saved": True, "values": np.asarray(memory["k"]).ravel().tolist()}


def main():
    """Does what the command line says."""
    what, path = sys.argv[1:]
    some, store = plan(), hc.OrbaxPrefixStore(path, max_to_keep=3)
    if what.startswith("race-"):
        print(json.dumps(race(store, int(what[-1]))), flush=True)
        return
    if what == "restore":
        cache, claims = store.restore_snapshot(some, sharding=shardings(some))
        prefixes = hc.PrefixCache(some, policy=hc.ReusePolicy("namespace"))
        cache = prefixes.adopt(cache, claims)
    else:
        cache, prefixes = served(some)
        step = (store.latest_step() or 0) + 1
        store.save_snapshot(step, cache, prefixes)
    print(json.dumps(said(cache, prefixes)), flush=True)
    while what == "save-on":
        step += 1
        store.save_snapshot(step, cache, prefixes)


if __name__ == "__main__":
    main()
