"""Which implementation serves a read, and why."""

import dataclasses

from pallas_kernels.contracts import KERNELS, ReadContract
from pallas_kernels.stored import Stored

WANTED = ("auto", "xla", "mosaic_tpu", "mosaic_gpu", "interpret")
"""What a caller may ask for; see :func:`choose`."""

BACKENDS = {"mosaic_tpu": "tpu", "mosaic_gpu": "gpu"}
"""By kernel, the backend that it is for."""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """The implementation that serves a read.

    Attributes:
      implementation: ``"xla"``, ``"mosaic_tpu"`` or ``"mosaic_gpu"``.
      reason: why this one.
      interpret: whether Pallas interprets it instead of compiling it.
    """

    implementation: str
    reason: str
    interpret: bool = False


def choose(
    operation: str, stored: Stored, *, backend: str, wanted: str = "auto"
) -> Kernel:
    """Picks the implementation of a read.

    Args:
      operation: folder of the read, for example ``"paged_decode"``.
      stored: layout of the pool that is read.
      backend: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
      wanted: ``"auto"`` takes the TPU kernel where there is one that accepts the
        layout, and XLA elsewhere: on GPUs always, as long as no GPU kernel has run on
        one.  ``"xla"`` never takes a kernel; ``"mosaic_tpu"`` and ``"mosaic_gpu"``
        insist on the kernel of every operation that has one; ``"interpret"`` runs the
        TPU kernels in Pallas' interpreter, on any backend and without their rules on
        alignment: slow, for tests.

    Raises:
      ValueError: for another ``wanted``, for a kernel on a backend that cannot run it,
        or a layout that the kernel asked for does not accept.
    """
    if wanted not in WANTED:
        raise ValueError(
            f"There are no kernels {wanted!r}; expected one of {', '.join(WANTED)}."
        )
    if wanted == "xla":
        return Kernel("xla", "XLA was asked for")
    if wanted == "interpret":
        return _interpreted(operation, stored)
    if wanted != "auto":
        return _insisted(operation, stored, backend, wanted)
    if backend == "tpu":
        refusal = _refusal("mosaic_tpu", operation, stored)
        if refusal is None:
            return Kernel("mosaic_tpu", "the TPU kernel accepts the layout")
        return Kernel("xla", refusal)
    if backend == "gpu":
        refusal = _refusal("mosaic_gpu", operation, stored)
        return Kernel(
            "xla",
            refusal
            or "the GPU kernel accepts the layout but has never run on a GPU; "
            "kernels='mosaic_gpu' asks for it",
        )
    return Kernel("xla", f"{operation} has no kernel for {backend}")


def _insisted(operation: str, stored: Stored, backend: str, wanted: str) -> Kernel:
    if backend != BACKENDS[wanted]:
        raise ValueError(
            f"The {wanted} kernels run on {BACKENDS[wanted].upper()}s, this is a plan "
            f"for {backend!r}; take kernels='auto', or 'interpret' to try the TPU "
            "kernels here."
        )
    if operation not in KERNELS[wanted]:
        return Kernel("xla", f"{operation} has no {wanted} kernel")
    refusal = _refusal(wanted, operation, stored)
    if refusal is not None:
        raise ValueError(
            f"{operation}: {refusal}. Take kernels='auto' to read it with XLA, or "
            "change the layout."
        )
    return Kernel(wanted, f"{wanted} was asked for")


def _interpreted(operation: str, stored: Stored) -> Kernel:
    contract = KERNELS["mosaic_tpu"].get(operation)
    if not isinstance(contract, ReadContract):
        return Kernel("xla", f"{operation} has no mosaic_tpu kernel to interpret")
    free = dataclasses.replace(contract, tiles=False)
    refusal = free.refusal_of(stored)
    if refusal is None:
        return Kernel("mosaic_tpu", "the interpreter was asked for", interpret=True)
    return Kernel("xla", f"{operation} is not interpreted: {refusal}")


def _refusal(implementation: str, operation: str, stored: Stored) -> str | None:
    contract = KERNELS[implementation].get(operation)
    if contract is None:
        return f"{operation} has no {implementation} kernel"
    refusal = contract.refusal_of(stored)
    if refusal is None:
        return None
    return f"the {implementation} kernel does not accept the pool: {refusal}"
