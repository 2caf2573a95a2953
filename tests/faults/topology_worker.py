"""A process of its own with four devices: moves blocks out of one mesh into another.

Reads one example per line from standard input and answers with one line, both JSON.
"""

import dataclasses
import json
import sys

import jax
import numpy as np

import hybridcache_jax as hc
from hybridcache_jax import append
from hybridcache_jax.lineage import OnFacts
from hybridcache_jax.offload.payload import digest

BLOCK, DIM, LENGTH, VOCAB = 4, 2, 16, 100
IDENTITY = hc.Identity(weights="w", config="c", layout="l")


def _facts_step(cache, inputs):
    cache, step = append.begin(cache, inputs, VOCAB)
    return append.end(cache, step)


_STEP = OnFacts(_facts_step)


def plan_for(heads: int) -> hc.CapacityPlan:
    """One full layer of so many heads."""
    entry = hc.Entry((hc.Plane("k", heads, DIM),))
    spec = hc.CacheSpec.from_layers([hc.LayerSpec(global_=hc.Entries(entry))])
    pools = (dataclasses.replace(spec.pools[0], block_tokens=BLOCK),)
    spec = dataclasses.replace(spec, pools=pools)
    return hc.CapacityPlan(spec, 1, LENGTH, LENGTH, (8,), "cpu", staging_blocks=4)


def spread(memory: np.ndarray, heads: int, devices: int) -> jax.Array:
    """A pool's plane on a mesh: whole heads per device, or a copy on each."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), ("heads",))
    axis = "heads" if heads % devices == 0 else None
    spec = jax.sharding.PartitionSpec(None, None, None, axis)
    return jax.device_put(memory, jax.sharding.NamedSharding(mesh, spec))


def on_mesh(cache, memory: np.ndarray, heads: int, devices: int):
    pools = ({"k": spread(memory, heads, devices)},)
    return dataclasses.replace(cache, pools=pools)


def by_head(block: np.ndarray, heads: int) -> list:
    """``[heads, tokens, dim]`` of a block or of what one device holds of it."""
    return np.moveaxis(block.reshape(BLOCK, heads, DIM), 1, 0).tolist()


def answer(example: dict) -> dict:
    """What lies in the payloads, and on each device after the load."""
    values = np.array(example["values"], np.float32)  # [tokens, heads, dim]
    tokens, heads, _ = values.shape
    before, after = example["before"], example["after"]
    plan = plan_for(heads)
    tier = hc.HostTier(plan, budget="1MiB")
    policy = hc.ReusePolicy("namespace")
    prefixes = hc.PrefixCache(plan, policy=policy, tier=tier)
    prompt = list(range(tokens))
    memory = np.zeros((1, 8, BLOCK, heads * DIM), np.float32)
    cache = on_mesh(hc.init(plan), memory, heads, before)
    cache, lease = prefixes.acquire(cache, prefixes.cold_plan(prompt, IDENTITY))
    inputs = hc.batch_inputs([(lease, prompt)], batch=1, width=LENGTH)
    cache = prefixes.release(_STEP(cache, inputs), lease)
    asked = [*prompt, VOCAB - 1]
    ids = prefixes.match(cache, asked, IDENTITY).claims.blocks[0]
    memory[0, ids] = values.reshape(len(ids), BLOCK, heads * DIM)
    cache = on_mesh(cache, memory, heads, before)
    cache = prefixes.evict(cache, hc.Form.FULL_KV)
    places = tier.places[0].first.argsort()[-len(ids) :]
    payloads = [tier.read(0, int(place)) for place in places]
    planes = [payload.planes["k"] for payload in payloads if payload is not None]
    # Another mesh, on which nothing lies yet.
    cache = on_mesh(cache, np.zeros_like(memory), heads, after)
    prefixes.load(cache, prefixes.match(cache, asked, IDENTITY))
    cache, (report,) = prefixes.poll(cache)
    found = prefixes.match(cache, asked, IDENTITY)
    cache, lease = prefixes.acquire(cache, found)
    pool, ids = cache.pools[0]["k"], found.claims.blocks[0]
    shards = sorted(pool.addressable_shards, key=lambda shard: shard.device.id)
    held = [
        [by_head(np.asarray(x.data)[0, i], x.data.shape[-1] // DIM) for i in ids]
        for x in shards
    ]
    return {
        "plain": all(type(plane) is np.ndarray for plane in planes),
        "sealed": [digest({"k": plane}) for plane in planes]
        == [payload.digest for payload in payloads if payload is not None],
        "outside": [by_head(plane[0], heads) for plane in planes],
        "ready": report.ready,
        "length": found.length,
        "whole": [by_head(np.asarray(pool)[0, i], heads) for i in ids],
        "devices": held,
    }


def main() -> None:
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
