"""Saves a prefix from a cache on some devices, loads it into one on others.

As a program it is a process of its own with four devices: it reads one request per line
from standard input and answers with one line, both JSON.  Imported it does the same on
the devices there are.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Sequence

import jax
import numpy as np

import hybridcache_jax as hc
from hybridcache_jax.offload.transfer import Transfer
from hybridcache_jax.testing import toy
from hybridcache_jax.testing.stores import Inline

# Two windows and two layers of history, so that every axis of a pool can be divided:
# [2 layers, 12 or 16 blocks, 2 or 4 slots, 1 or 24 numbers].
WINDOW, FULL = toy.Kind("window", 3), toy.Kind(ratio=1)
BLOCKS = {hc.Form.SWA_WINDOW: 2, hc.Form.FULL_KV: 4}
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
DECODED = 4

# By name, the axis of a pool and the devices over which it is divided where their
# number divides it; else, and without an axis, each of them has a copy.
LAYOUTS: dict[str, tuple[tuple[int | None, int], ...]] = {
    "one device": (),
    "width over 2": ((3, 2),),
    "width over 4": ((3, 4),),
    "slots over 2": ((2, 2),),
    "blocks over 4": ((1, 4),),
    "blocks over 2, width over 2": ((1, 2), (3, 2)),
    "layers over 2": ((0, 2),),
    "copies on 4": ((None, 4),),
}


def model() -> toy.Model:
    """What a layer keeps depends on what those below it read, as in a real model."""
    kinds = (WINDOW, WINDOW, FULL, FULL)
    sizes = {"max_length": 23, "rows": 1, "stored": 24}
    return toy.model(kinds, blocks=BLOCKS, style="chain", **sizes)


def shardings(cache: hc.HybridCache, layout: str) -> hc.HybridCache:
    """Where each leaf goes; the facts are on every device of the mesh."""
    parts = LAYOUTS[layout]
    sizes = [size for _, size in parts]
    devices = np.array(jax.devices()[: math.prod(sizes)]).reshape(sizes)
    mesh = jax.sharding.Mesh(devices, tuple(f"part{n}" for n in range(len(parts))))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def of(plane: jax.Array) -> jax.sharding.NamedSharding:
        names: list[str | None] = [None] * plane.ndim
        for name, (axis, size) in zip(mesh.axis_names, parts, strict=True):
            if axis is not None and plane.shape[axis] % size == 0:
                names[axis] = name
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*names))

    others = jax.tree.map(lambda _: everywhere, cache)
    return dataclasses.replace(others, pools=jax.tree.map(of, cache.pools))


class Serving:
    """A cache with a layout of its own over a store in a folder."""

    def __init__(self, folder: str, layout: str):
        self.model = model()
        self.cache = hc.init(self.model.plan)
        if LAYOUTS[layout]:
            self.cache = jax.device_put(self.cache, shardings(self.cache, layout))
        plan = self.model.plan
        self.prefixes = hc.PrefixCache(
            plan,
            policy=hc.ReusePolicy("namespace"),
            tier=hc.HostTier(plan, budget="1MiB", known_tokens=24),
            store=hc.ObjectStore(folder),
            executor=Inline(),
        )

    def match(self, prompt: Sequence[int]) -> hc.ResumePlan:
        return self.prefixes.match(self.cache, prompt, self.model.identity)

    def run(self, lease: hc.Lease, tokens: Sequence[int]) -> np.ndarray:
        """What the last token read, ``[layers, width]``."""
        reads = np.zeros(0)
        for start in range(0, len(tokens), 8):
            part = list(tokens[start : start + 8])
            inputs = hc.batch_inputs([(lease, part)], batch=1, width=8)
            self.cache, status, read = self.model.step(self.cache, inputs)
            assert status[0] == hc.Status.OK
            reads = np.asarray(read)[:, 0, len(part) - 1]
        return reads

    def decode(self, prompt: Sequence[int], plan: hc.ResumePlan) -> dict:
        """The next tokens behind a prompt, and what the row holds of all of them."""
        self.cache, lease = self.prefixes.acquire(self.cache, plan)
        tokens, reads = list(prompt), self.run(lease, prompt[plan.start :])
        for _ in range(DECODED):
            tokens.append(following(reads))
            reads = self.run(lease, tokens[-1:])
        held = toy.held(self.model, self.cache, lease.row)
        differs = toy.differences(held, toy.cold(self.model, tokens))
        self.cache = self.prefixes.release(self.cache, lease)
        return {"tokens": tokens, "differs": differs}

    def stored(self) -> dict[str, str]:
        """Bytes of every stored block, by its pool and the first of its tokens."""
        found = {}
        for table, planes, pool in zip(
            self.cache.tables, self.cache.pools, self.model.plan.spec.pools, strict=True
        ):
            for block in np.flatnonzero(np.asarray(table.kept)).tolist():
                name = f"{pool.name}, {int(table.first[block])}"
                parts = (np.asarray(planes[key])[:, block] for key in sorted(planes))
                found[name] = b"".join(part.tobytes() for part in parts).hex()
        return found

    def spread(self) -> list:
        """Per plane, what every device has of it: the shape of its part."""
        return [
            sorted(
                (shard.device.id, *shard.data.shape)
                for shard in plane.addressable_shards
            )
            for planes in self.cache.pools
            for _, plane in sorted(planes.items())
        ]


def following(reads: np.ndarray) -> int:
    """The toy's next token: a digit of what the last one read."""
    return int(np.rint(np.float64(8) * reads.sum(dtype=np.float64))) % toy.VOCAB


def save(folder: str, layout: str, prompt: Sequence[int]) -> dict:
    """Serves a prompt and saves it."""
    some = Serving(folder, layout)
    before = some.spread()
    answer = some.decode(prompt, some.match(prompt))
    some.cache = some.prefixes.flush(some.cache)
    moved = some.spread() != before
    return answer | {"blocks": some.stored(), "spread": before, "moved": moved}


def load(folder: str, layout: str, prompt: Sequence[int]) -> dict:
    """Serves a prompt that begins with what is saved."""
    some = Serving(folder, layout)
    before, waits = some.spread(), some.match(prompt)
    some.prefixes.load(some.cache, waits)
    some.cache, (report,) = some.prefixes.poll(some.cache)
    blocks, found = some.stored(), some.match(prompt)
    answer = some.decode(prompt, found)
    return answer | {
        "waits": [waits.verdict.name, waits.length],
        "ready": report.ready,
        "found": [found.verdict.name, found.length],
        "blocks": blocks,
        "spread": before,
        "moved": some.spread() != before,
    }


def copies(layout: str) -> list:
    """Of a pool with many blocks: memory of one device, and what copies take besides.

    Returns:
      Per direction, bytes of the pool on one device, bytes that the compiled copy needs
      beyond its arguments and results, and bytes of arguments that it overwrites.
    """
    plan = model().plan
    empty = hc.init(plan)
    shape = (2, 4096, 4, 24)
    plane = jax.ShapeDtypeStruct(shape, np.float32)
    many = dataclasses.replace(empty, pools=({"v": plane},))
    where = shardings(many, layout).pools[0]["v"]
    memory = {"v": jax.ShapeDtypeStruct(shape, np.float32, sharding=where)}
    ids, count = np.zeros(plan.staging_blocks, np.int32), np.int32(2)
    batch = {"v": np.zeros((2, plan.staging_blocks, 4, 24), np.float32)}
    here = 4 * math.prod(where.shard_shape(shape))
    found = []
    transfer = Transfer(plan)
    for compiled in (
        transfer._take.lower(0, memory, ids, count).compile(),
        transfer._place.lower(0, memory, ids, count, batch).compile(),
    ):
        needs = compiled.memory_analysis()
        assert needs is not None
        found.append([here, needs.temp_size_in_bytes, needs.alias_size_in_bytes])
    return found


def main() -> None:
    for line in sys.stdin:
        what, *given = json.loads(line)
        answer = {"save": save, "load": load, "copies": copies}[what](*given)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
