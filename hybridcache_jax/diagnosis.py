"""Which implementation would read each form of a spec, why, and what is known of it."""

import dataclasses

from hybridcache_jax.reads import reads
from hybridcache_jax.spec import CacheSpec
from pallas_kernels.choice import Kernel, choose
from pallas_kernels.evidence import Evidence, evidence


@dataclasses.dataclass(frozen=True)
class Served:
    """One read of one pool.

    Attributes:
      pool: its name.
      form: name of the form.
      layers: model layers that keep it.
      read: the operation, by its folder in ``pallas_kernels``.
      dtype: of the first plane of the key.
      kernel: what serves it, and why.
      evidence: how that was verified.
    """

    pool: str
    form: str
    layers: int
    read: str
    dtype: str
    kernel: Kernel
    evidence: Evidence


def diagnose(
    spec: CacheSpec, *, backend: str, kernels: str = "auto"
) -> tuple[Served, ...]:
    """Every read of every pool.

    Args:
      spec: what is cached.
      backend: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
      kernels: as for ``plan_capacity``.

    Raises:
      ValueError: as a plan would: for kernels that there are not, that do not run on
        the backend, or that do not accept a pool.
    """
    found = []
    for number, pool in enumerate(spec.pools):
        for read in reads(spec, number):
            kernel = choose(read, pool, backend=backend, wanted=kernels)
            dtype = pool.entry.key_planes[0].dtype
            found.append(
                Served(
                    pool=pool.name,
                    form=pool.form.name,
                    layers=len(pool.layers),
                    read=read,
                    dtype=dtype,
                    kernel=kernel,
                    evidence=evidence(
                        kernel.implementation, read, dtype, backend=backend
                    ),
                )
            )
    return tuple(found)
