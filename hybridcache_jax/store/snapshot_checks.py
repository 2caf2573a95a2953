"""Leaves of a snapshot on their way to Orbax and back: copied, laid out, proved."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hybridcache_jax.store.sizes import OnProgress
from hybridcache_jax.store.snapshot_arrays import (
    Leaves,
    Record,
    digest,
    layout_difference,
    nested,
    record,
)
from hybridcache_jax.store.snapshot_manifest import SnapshotError
from pallas_kernels.dtypes import named_dtype

# Orbax saves no empty item, and no empty array.
_FILLER, _FILLING = "edges", np.zeros(1, np.int32)


def copied(leaves: Leaves, on_progress: OnProgress | None) -> Leaves:
    """Leaves in host memory of their own: a step may take the cache's at once."""
    total = sum(leaf.nbytes for leaf in leaves.values())
    copies: Leaves = {}
    done = 0
    for name, leaf in leaves.items():
        if not getattr(leaf, "is_fully_addressable", True):
            raise SnapshotError(
                f"Snapshot refused: {name} is spread over several processes; a "
                "snapshot is saved by one process that reaches every array."
            )
        copies[name] = np.array(leaf, copy=True)
        done += copies[name].nbytes
        if on_progress is not None:
            on_progress("copying", done, total)
    return copies


def storable(leaves: Leaves) -> dict[str, Any]:
    """What Orbax is given: nothing empty."""
    filled = {name: array for name, array in leaves.items() if array.size}
    return nested(filled) or {_FILLER: _FILLING}


def check_names(item: str, found: Leaves, said: Mapping[str, Record]) -> None:
    """Refuses leaves of an item that are too many or too few."""
    for name in sorted(found.keys() ^ said.keys()):
        there = "is not expected" if name in found else "is missing"
        raise SnapshotError(f"leaf {item}/{name} {there}")


def check_layouts(item: str, found: Leaves, said: Mapping[str, Record]) -> None:
    """Refuses leaves of other names, dtypes or shapes; empty ones are not stored."""
    filled = {name: each for name, each in said.items() if 0 not in each["shape"]}
    if not filled:
        filled = {_FILLER: record(_FILLING)}
    check_names(item, found, filled)
    for name, each in filled.items():
        refuse(item, name, layout_difference(found[name], each))


def verified(
    found: Mapping[str, Leaves],
    said: Mapping[str, Mapping[str, Record]],
    on_progress: OnProgress | None,
) -> dict[str, dict[str, np.ndarray]]:
    """The leaves as arrays, if every one is what was saved."""
    arrays: dict[str, dict[str, np.ndarray]] = {}
    total = sum(leaf.nbytes for of in found.values() for leaf in of.values())
    done = 0
    for item, records in said.items():
        check_layouts(item, found[item], records)
        arrays[item] = {}
        for name, each in records.items():
            if 0 in each["shape"]:
                array = np.zeros(each["shape"], named_dtype(each["dtype"]))
            else:
                array = np.asarray(found[item][name])
            if digest(array) != each["blake3"]:
                refuse(item, name, "its bytes are not those that were saved")
            arrays[item][name] = array
            done += array.nbytes
            if on_progress is not None:
                on_progress("verifying", done, total)
    return arrays


def refuse(item: str, name: str, problem: str) -> None:
    """Raises for a leaf that has a problem."""
    if problem:
        raise SnapshotError(f"leaf {item}/{name}: {problem}")
