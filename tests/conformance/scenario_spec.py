"""From the groups of a scenario to a spec and a plan of ours.

A group of an engine is one layer, so that its blocks are one pool; an indexer belongs
to the layer of the history before it.
"""

import dataclasses
import functools
import json

import hybridcache_jax as hc
from hybridcache_jax.retention import Retention, policies
from hybridcache_jax.spec import CacheSpec, Part

_PARTS = {
    "full": Part.ENTRIES,
    "indexer": Part.INDEX,
    "sliding_window": Part.LOCAL,
    "swa": Part.LOCAL,
    "tail": Part.LOCAL,
    "chunked_local": Part.LOCAL,
    "recurrent_state": Part.STATE,
    "recurrent": Part.STATE,
}

_LENGTHS = (16, 256, 2560)
_BLOCKS = 160


@dataclasses.dataclass(frozen=True)
class Layout:
    """A spec and, per group of the scenario, the pool that keeps it."""

    spec: CacheSpec
    pools: tuple[int, ...]


def layout(groups: list[dict]) -> Layout:
    """The spec of a scenario's groups; equal groups give the same object."""
    return _layout(json.dumps(groups, sort_keys=True))


def plan(
    groups: list[dict],
    *,
    length: int,
    rows: int = 4,
    chunk: int | None = None,
    blocks: tuple[int, ...] | None = None,
    retention: Retention = Retention.every_block(),
) -> hc.CapacityPlan:
    """A plan with room for what a scenario stores, or with the blocks it names.

    Lengths and pools are of few sizes, so that what is compiled once serves many.
    """
    spec = layout(groups).spec
    if blocks is None:
        length = next(size for size in _LENGTHS if size >= length)
        smallest = min(pool.block_tokens for pool in spec.pools)
        ample = max(_BLOCKS, (rows + 1) * -(-length // smallest))
        blocks = (ample,) * len(spec.pools)
    return hc.CapacityPlan(
        spec,
        rows,
        length,
        length if chunk is None else chunk,
        blocks,
        "cpu",
        retention=policies(spec, retention),
        staging_blocks=16,
    )


@functools.cache
def _layout(groups: str) -> Layout:
    layers: list[hc.LayerSpec] = []
    places: list[tuple[int, Part]] = []
    sizes: dict[tuple[int, Part], int] = {}
    for number, group in enumerate(json.loads(groups)):
        part = _PARTS[group["kind"]]
        # Entries of another length, or equal groups would share a pool.
        entry = hc.Entry.kv(1, number + 1)
        layer = len(layers)
        if part is Part.INDEX:
            layer = max(n for n, below in enumerate(layers) if below.global_)
            index = hc.IndexKeys(hc.Entry((hc.Plane("k", 1, 1),)))
            changes = {"index": index, "select": hc.TopK(1)}
            layers[layer] = dataclasses.replace(layers[layer], **changes)
        else:
            layers.append(_layer(group, entry))
        places.append((layer, part))
        sizes[layer, part] = group["block_size"]
        sizes[layer, Part.ENTRIES_RAW] = group["block_size"]
    spec = CacheSpec.from_layers(layers)
    pools = []
    for pool in spec.pools:
        size = sizes[pool.layers[0], pool.part]
        entry_tokens = size if pool.part is Part.STATE else pool.entry_tokens
        pools.append(
            dataclasses.replace(pool, block_tokens=size, entry_tokens=entry_tokens)
        )
    spec = dataclasses.replace(spec, pools=tuple(pools))
    found = [spec.find(layer, part) for layer, part in places]
    return Layout(spec, tuple(place[0] for place in found if place is not None))


def _layer(group: dict, entry: hc.Entry) -> hc.LayerSpec:
    kind, window = group["kind"], group.get("window")
    if kind in ("sliding_window", "swa", "tail"):
        return hc.LayerSpec(local=hc.Window(window, entry))
    if kind == "chunked_local":
        return hc.LayerSpec(local=hc.Chunk(window, entry))
    if kind == "full":
        ratio = group.get("tokens_per_state", 1)
        raw = entry if ratio > 1 else None
        return hc.LayerSpec(global_=hc.Entries(entry, ratio=ratio, raw=raw))
    return hc.LayerSpec(recurrent=hc.RecurrentState(entry))
