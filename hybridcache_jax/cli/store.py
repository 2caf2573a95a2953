"""``hybridcache store``: looking after stored prefixes."""

import argparse
import dataclasses
import enum
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from hybridcache_jax.byte_sizes import parse_bytes
from hybridcache_jax.cli import store_tables as tables
from hybridcache_jax.cli.progress import progress_bar
from hybridcache_jax.codes import Provenance
from hybridcache_jax.rollout import Scope
from hybridcache_jax.store.collection import collect
from hybridcache_jax.store.exports import export_records
from hybridcache_jax.store.imports import import_records
from hybridcache_jax.store.inventory import (
    Inventory,
    StoredRecord,
    read_manifests,
    take_inventory,
)
from hybridcache_jax.store.manifest import Manifest
from hybridcache_jax.store.orbax_store import OrbaxPrefixStore
from hybridcache_jax.store.prefix_store import PrefixStore
from hybridcache_jax.store.usage import measure
from hybridcache_jax.store.verification import verify

# Token ids that are shown of each end.
_SHOWN = 8
# Requests to a bucket at once; a folder is no quicker for it.
_REQUESTS = 8


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; see ``hybridcache store --help``.

    Returns:
      0, or 1 for what ``--help`` of the action says.
    """
    action = {
        "ls": _ls,
        "show": _show,
        "verify": _verify,
        "gc": _gc,
        "du": _du,
        "export": _export,
        "import": _import,
    }[arguments.action]
    store = _open(arguments)
    with progress_bar(Console(stderr=True), arguments.action) as update:

        def report(what: str, done: int, total: int) -> None:
            update(done, total, what)

        threads = _REQUESTS if "://" in arguments.store else 1
        how = {"on_progress": report, "threads": threads}
        data, table, code = action(store, arguments, how)
    if arguments.json:
        print(json.dumps(data))
    else:
        tables.show(table)
    return code


# The last arguments of what an action calls.
_How = dict[str, Any]
# What an action gives back: what --json prints, what is shown otherwise, the exit code.
_Answer = tuple[dict[str, Any], tables.Table, int]


def _open(arguments: argparse.Namespace) -> OrbaxPrefixStore:
    # A store is made by its first write; a misspelt path is no empty store.
    path, makes = arguments.store, arguments.action == "import"
    if "://" not in path and not makes and not Path(path).is_dir():
        raise ValueError(f"{path} is no folder; give the path of a store.")
    return OrbaxPrefixStore(path, endpoint=arguments.endpoint, region=arguments.region)


def _ls(store: PrefixStore, arguments, how: _How) -> _Answer:
    found = take_inventory(store, **how)
    data = {
        "tick": found.tick,
        "records": [_as_data(record) for record in found.records],
        "unread": [dataclasses.asdict(each) for each in found.unread],
        "foreign": found.foreign,
        "quarantined": found.quarantined,
    }
    return data, tables.listing(found), 0


def _show(store: PrefixStore, arguments, how: _How) -> _Answer:
    names = [r.name for r in _chosen(take_inventory(store, **how), arguments.key)]
    manifests = {
        name: found
        for name, _, found in read_manifests(store, names)
        if isinstance(found, Manifest)
    }
    records = [_described(name, manifest) for name, manifest in manifests.items()]
    return {"records": records}, tables.described(records), 0


def _verify(store: PrefixStore, arguments, how: _How) -> _Answer:
    found = verify(store, quarantine=arguments.quarantine, **how)
    data = {**dataclasses.asdict(found), "sound": found.sound}
    return data, tables.verification(found), int(not found.sound)


def _gc(store: OrbaxPrefixStore, arguments, how: _How) -> _Answer:
    removed = 0 if arguments.dry_run else store.sweep()
    done = collect(
        store,
        keep_ticks=arguments.keep_ticks,
        quota=None if arguments.quota is None else parse_bytes(arguments.quota),
        dry_run=arguments.dry_run,
        **how,
    )
    data = {
        **dataclasses.asdict(done),
        "half_written": removed,
        "dry_run": arguments.dry_run,
    }
    table = tables.collection(done, removed, arguments.dry_run)
    return data, table, int(bool(done.unread) or not done.fits)


def _du(store: PrefixStore, arguments, how: _How) -> _Answer:
    usage = measure(store, **how)
    data = {**dataclasses.asdict(usage), "total_bytes": usage.total_bytes}
    for name in ("unread", "leftovers", "quarantined", "foreign", "snapshots"):
        objects, nbytes = data[name]
        data[name] = {"objects": objects, "bytes": nbytes}
    return data, tables.usage(usage), 0


def _export(store: PrefixStore, arguments, how: _How) -> _Answer:
    keys = None
    if arguments.key is not None:
        chosen = _chosen(take_inventory(store, **how), arguments.key)
        keys = [record.key for record in chosen]
    done = export_records(store, arguments.file, keys, **how)
    table = tables.exported(done, arguments.file)
    return dataclasses.asdict(done), table, int(bool(done.unread) and keys is None)


def _import(store: PrefixStore, arguments, how: _How) -> _Answer:
    done = import_records(
        store,
        arguments.file,
        largest=parse_bytes(arguments.largest),
        on_progress=how["on_progress"],
    )
    return dataclasses.asdict(done), tables.imported(done), int(bool(done.refused))


def _chosen(found: Inventory, begins: str) -> list[StoredRecord]:
    """Records of the one key that begins so."""
    chosen = [r for r in found.records if r.key.hex().startswith(begins.lower())]
    keys = {record.key.hex() for record in chosen}
    if not keys:
        raise ValueError(f"No record's key begins with {begins!r}; see ls.")
    if len(keys) > 1:
        raise ValueError(f"{len(keys)} keys begin with {begins!r}; give more of it.")
    return chosen


def _as_data(record: StoredRecord) -> dict[str, Any]:
    data = dataclasses.asdict(record)
    for name in ("key", "parent"):
        data[name] = data[name].hex()
    data["scope"] = _called(Scope, record.scope)
    data["provenance"] = _called(Provenance, record.provenance)
    data["packs"] = sorted(data["packs"])
    data["bytes"] = sum(record.form_bytes.values())
    return data


def _called(codes: type[enum.IntEnum], number: int) -> str:
    """The name of a code; a manifest may have one that is none."""
    return codes(number).name.lower() if number in list(codes) else str(number)


def _described(name: str, manifest: Manifest) -> dict[str, Any]:
    """Everything a manifest says, tokens and blocks summarised."""
    whole = len(manifest.tokens) // 4
    ids = np.frombuffer(manifest.tokens, "<i4", count=whole)
    return {
        "name": name,
        "library": manifest.library,
        "identity": manifest.identity,
        "scope": _called(Scope, manifest.scope),
        "owner": manifest.owner,
        "generation": manifest.generation,
        "provenance": _called(Provenance, manifest.provenance),
        "grid": manifest.grid,
        "key": manifest.key.hex(),
        "parent": manifest.parent.hex(),
        "start": manifest.start,
        "stop": manifest.stop,
        "age": manifest.age,
        "tokens": {
            "count": whole,
            "first": ids[:_SHOWN].tolist(),
            "last": ids[-_SHOWN:].tolist(),
        },
        "contents": [
            {"start": manifest.start + first, "stop": manifest.start + last}
            | {"type": kind, "id": content}
            for first, last, kind, content in manifest.contents
        ],
        "pools": [
            {
                "pool": part.pool,
                "form": part.form,
                "block_tokens": part.block_tokens,
                "planes": [
                    {"name": p.name, "dtype": p.dtype, "shape": p.shape}
                    for p in part.planes
                ],
                "blocks": [place.number for place in part.blocks],
                "packs": sorted({place.pack for place in part.blocks}),
            }
            for part in manifest.every_part
        ],
    }
