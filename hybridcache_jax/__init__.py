"""A KV cache for hybrid-attention models that proves a prefix can be resumed.

Names are loaded when they are first used, so that ``import hybridcache_jax`` is
quick and pulls in neither Flax, Orbax, TensorStore nor Pallas.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridcache_jax.append import StepInputs as StepInputs
    from hybridcache_jax.budget import plan_capacity as plan_capacity
    from hybridcache_jax.capacity import CapacityPlan as CapacityPlan
    from hybridcache_jax.codes import Provenance as Provenance
    from hybridcache_jax.codes import Reason as Reason
    from hybridcache_jax.codes import Status as Status
    from hybridcache_jax.codes import Verdict as Verdict
    from hybridcache_jax.cost import CostModel as CostModel
    from hybridcache_jax.deadlines import Overdue as Overdue
    from hybridcache_jax.entry import Entry as Entry
    from hybridcache_jax.entry import Plane as Plane
    from hybridcache_jax.errors import HybridCacheError as HybridCacheError
    from hybridcache_jax.errors import LeaseError as LeaseError
    from hybridcache_jax.errors import NoRoomError as NoRoomError
    from hybridcache_jax.errors import StaleCacheError as StaleCacheError
    from hybridcache_jax.forms import Form as Form
    from hybridcache_jax.identity import Identity as Identity
    from hybridcache_jax.layers import Chunk as Chunk
    from hybridcache_jax.layers import Entries as Entries
    from hybridcache_jax.layers import IndexKeys as IndexKeys
    from hybridcache_jax.layers import LayerSpec as LayerSpec
    from hybridcache_jax.layers import RecurrentState as RecurrentState
    from hybridcache_jax.layers import TopK as TopK
    from hybridcache_jax.layers import Window as Window
    from hybridcache_jax.lease import Lease as Lease
    from hybridcache_jax.lease import Receipt as Receipt
    from hybridcache_jax.lease import batch_inputs as batch_inputs
    from hybridcache_jax.observe import Hooks as Hooks
    from hybridcache_jax.observe import MemoryRegistry as MemoryRegistry
    from hybridcache_jax.observe import Metrics as Metrics
    from hybridcache_jax.observe import PrometheusRegistry as PrometheusRegistry
    from hybridcache_jax.offload.host_tier import HostTier as HostTier
    from hybridcache_jax.offload.loads import Load as Load
    from hybridcache_jax.offload.loads import LoadReport as LoadReport
    from hybridcache_jax.prefix_cache import PrefixCache as PrefixCache
    from hybridcache_jax.resume_plan import ResumePlan as ResumePlan
    from hybridcache_jax.retention import Retention as Retention
    from hybridcache_jax.rollout import ReusePolicy as ReusePolicy
    from hybridcache_jax.rollout import Scope as Scope
    from hybridcache_jax.shadow import ShadowReport as ShadowReport
    from hybridcache_jax.spec import CacheSpec as CacheSpec
    from hybridcache_jax.state import HybridCache as HybridCache
    from hybridcache_jax.state import init as init
    from hybridcache_jax.store.objects import ObjectStore as ObjectStore
    from hybridcache_jax.store.orbax_store import OrbaxPrefixStore as OrbaxPrefixStore
    from hybridcache_jax.store.prefix_store import PrefixStore as PrefixStore
    from hybridcache_jax.store.prefix_store import StoreError as StoreError
    from hybridcache_jax.view import StepView as StepView
    from hybridcache_jax.view import begin_step as begin_step
    from hybridcache_jax.view import end_step as end_step

from hybridcache_jax._version import __version__ as __version__

_HOME = {
    "CacheSpec": "spec",
    "CapacityPlan": "capacity",
    "Chunk": "layers",
    "CostModel": "cost",
    "Entries": "layers",
    "Entry": "entry",
    "Form": "forms",
    "HostTier": "offload.host_tier",
    "HybridCache": "state",
    "HybridCacheError": "errors",
    "Identity": "identity",
    "IndexKeys": "layers",
    "LayerSpec": "layers",
    "Lease": "lease",
    "LeaseError": "errors",
    "Hooks": "observe",
    "MemoryRegistry": "observe",
    "ObjectStore": "store.objects",
    "PrefixStore": "store.prefix_store",
    "StoreError": "store.prefix_store",
    "Metrics": "observe",
    "Load": "offload.loads",
    "LoadReport": "offload.loads",
    "NoRoomError": "errors",
    "OrbaxPrefixStore": "store.orbax_store",
    "Overdue": "deadlines",
    "Plane": "entry",
    "PrefixCache": "prefix_cache",
    "Provenance": "codes",
    "PrometheusRegistry": "observe",
    "Reason": "codes",
    "RecurrentState": "layers",
    "Receipt": "lease",
    "ResumePlan": "resume_plan",
    "Retention": "retention",
    "ReusePolicy": "rollout",
    "Scope": "rollout",
    "ShadowReport": "shadow",
    "StaleCacheError": "errors",
    "Status": "codes",
    "StepInputs": "append",
    "StepView": "view",
    "TopK": "layers",
    "Verdict": "codes",
    "Window": "layers",
    "batch_inputs": "lease",
    "begin_step": "view",
    "end_step": "view",
    "init": "state",
    "plan_capacity": "budget",
}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__():
    return sorted([*globals(), *_HOME])
