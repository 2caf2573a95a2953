"""Toys that together have every kind of layer, small enough to try everything."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hybridcache_jax.forms import Form
from hybridcache_jax.retention import Retention
from hybridcache_jax.testing.toy import Kind, Model, model

_WINDOW_2, _WINDOW_3, _WINDOW_4 = (Kind("window", size) for size in (2, 3, 4))
_POOLED: dict[str, Any] = {"index_overlap": 1, "pooled": True, "top": 2}

FINE = (_WINDOW_3, _WINDOW_4, Kind(ratio=1))
# The index keys of the full layer need the deepest replay: their own tail of 2, and
# below it what windows of 4 and 3 reach.
CSA = (
    Kind("window", 3, ratio=4, overlap=1, **_POOLED, index_ratio=4, unit=4),
    Kind("window", 4, ratio=8),
    Kind(ratio=1, **_POOLED, index_ratio=2, unit=2),
    Kind(kv_owner=1),
    _WINDOW_2,
)
SPARSE = (
    Kind("chunk", 6),
    Kind(ratio=1, index_ratio=1, top=2, unit=2, near=1, open_tail=True),
    Kind(ratio=2, index_ratio=2, top=2, unit=4),
    Kind(kv_owner=1, select_owner=1),
    Kind(kv_owner=2, index_owner=1, top=1, unit=2),
    Kind(ratio=1, index_ratio=4, pooled=True, top=2, unit=4, heads=2, per_head=True),
)
RECURRENT = (
    Kind(recurrent=True),
    Kind(recurrent=True),
    _WINDOW_3,
    Kind(ratio=4, overlap=1),
    _WINDOW_2,
)


def fine() -> Model:
    """Two windows and the full history; every position is a resume point."""
    return model(FINE, blocks=1)


def csa() -> Model:
    """Windows beside compressed entries, pooled index keys, selections, an owner."""
    blocks = {
        Form.SWA_WINDOW: 2,
        Form.UNCOMPRESSED_TAIL: 4,
        Form.INDEXER_STATE: 4,
        Form.COMPRESSED_KV: 8,
        Form.FULL_KV: 8,
    }
    return model(CSA, blocks=blocks, style="chain", max_length=40, stored=80)


def sparse() -> Model:
    """A chunk layer, and every other way to rank and to select."""
    return model(SPARSE, style="chain")


def recurrent() -> Model:
    """Recurrent layers below windows and overlapping entries."""
    return model(RECURRENT, style="chain")


EVERY_KIND: Mapping[str, Callable[[], Model]] = MappingProxyType(
    {"fine": fine, "csa": csa, "sparse": sparse, "recurrent": recurrent}
)
"""By name; together they have every kind of layer."""


def ends() -> Model:
    """``fine``, with windows kept at the end of prompt and output only."""
    return model(FINE, blocks=1, retention=Retention.ends())


def thrifty() -> Model:
    """``recurrent``, with checkpoints at every other grid point and tails nowhere."""
    policies = {
        Form.RECURRENT_STATE: Retention.every(8),
        Form.UNCOMPRESSED_TAIL: Retention.none(),
    }
    return model(RECURRENT, style="chain", retention=policies)


SOAKED: Mapping[str, Callable[[], Model]] = MappingProxyType(
    {**EVERY_KIND, "ends": ends, "thrifty": thrifty}
)
"""Those that a soak runs: every kind of layer, and retention policies."""
