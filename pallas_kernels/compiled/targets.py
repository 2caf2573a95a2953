"""Compiling for accelerators that are not here."""

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding

from pallas_kernels.compiled.accelerators import GPUS, TPUS, platform_of

try:
    from jax.sharding import use_abstract_mesh
except ImportError:  # JAX 0.10
    from jax._src.mesh import use_abstract_mesh


_PACKAGES = {"tpu": "libtpu", "cuda": "jax_plugins.xla_cuda13"}
_VERSIONS = {"tpu": ("jax", "libtpu"), "cuda": ("jax", "jax-cuda13-plugin")}


def missing(target: str) -> str | None:
    """Why nothing can be compiled for a target here; None if it can."""
    package = _PACKAGES[platform_of(target)]
    root, _, _ = package.partition(".")
    if (
        importlib.util.find_spec(root) is None
        or importlib.util.find_spec(package) is None
    ):
        return f"the package of {package} is not installed"
    if platform_of(target) == "cuda" and not _has_assembler():
        return "there is no ptxas: it comes with CUDA, or the package nvidia-cuda-nvcc"
    return None


def versions(target: str) -> dict[str, str]:
    """Versions of the packages that compile for a target here."""
    return {
        name: importlib.metadata.version(name)
        for name in _VERSIONS[platform_of(target)]
    }


def _has_assembler() -> bool:
    """Whether there is a ptxas where the compiler looks for one."""
    folders = [os.environ.get("PATH", ""), "/usr/local/cuda/bin"]
    with contextlib.suppress(ModuleNotFoundError):
        spec = importlib.util.find_spec("nvidia.cu13")
        places = [] if spec is None else spec.submodule_search_locations or []
        folders += [f"{place}/bin" for place in places]
    return shutil.which("ptxas", path=os.pathsep.join(folders)) is not None


@functools.cache
def _device(target: str):
    if platform_of(target) == "tpu":
        topology = topologies.get_topology_desc(TPUS[target], platform="tpu")
    else:
        topology = topologies.get_topology_desc(
            platform="cuda",
            target_config=GPUS[target].description,
            topology="1x1x1",
        )
    return topology.devices[0]


@contextlib.contextmanager
def _at(target: str) -> Iterator[Any]:
    """Kernels that ask for the chip's limits while they are traced get the target's."""
    device = _device(target)
    tpu = platform_of(target) == "tpu"
    cores = getattr(device, "num_cores" if tpu else "core_count", None)
    abstract = AbstractDevice(
        device_kind=device.device_kind,
        num_cores=cores,
        platform="tpu" if tpu else "gpu",
    )
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract)):
        yield device


def compile_for(
    target: str, function: Callable, arguments: tuple, donated: tuple[int, ...] = ()
) -> tuple[jax.stages.Compiled, float]:
    """Compiles a function for an accelerator that is not here.

    Args:
      target: a key of ``accelerators.TPUS`` or ``accelerators.GPUS``.
      function: to be jitted.
      arguments: pytrees of ``jax.ShapeDtypeStruct``, or of anything with a shape and
        a dtype.
      donated: numbers of the arguments whose memory the results may take over.

    Returns:
      The compiled function, and the seconds that took.

    Raises:
      ValueError: for a target that does not exist.
      Exception: whatever the compiler refuses.
    """
    with _at(target) as device:
        place = SingleDeviceSharding(device)
        arguments = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), arguments
        )
        start = time.perf_counter()
        lowered = (
            jax.jit(function, donate_argnums=donated)
            .trace(*arguments)
            .lower(lowering_platforms=(platform_of(target),))
        )
        return lowered.compile(), time.perf_counter() - start
