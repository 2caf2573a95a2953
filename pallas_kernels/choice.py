"""Which implementation serves a read, and why."""

import dataclasses

from pallas_kernels.contracts import KERNELS, ReadContract
from pallas_kernels.stored import Stored

WANTED = ("auto", "xla", "mosaic_tpu", "interpret")
"""What a caller may ask for; see :func:`choose`."""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """The implementation that serves a read.

    Attributes:
      implementation: ``"xla"`` or ``"mosaic_tpu"``.
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
      wanted: ``"auto"`` takes the backend's kernel where there is one that accepts the
        layout, and XLA elsewhere; ``"xla"`` never takes a kernel; ``"mosaic_tpu"``
        insists on the TPU kernel of every operation that has one; ``"interpret"`` runs
        the TPU kernels in Pallas' interpreter, on any backend and without their rules
        on alignment: slow, for tests.

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
    contract = KERNELS.get(operation)
    if contract is None:
        return Kernel("xla", f"{operation} has no kernel")
    if wanted == "interpret":
        return _interpreted(operation, stored, contract)
    if wanted == "mosaic_tpu" and backend != "tpu":
        raise ValueError(
            f"The mosaic_tpu kernels run on TPUs, this is a plan for {backend!r}; take "
            "kernels='auto', or 'interpret' to try them here."
        )
    if backend != "tpu":
        return Kernel("xla", f"{operation} has no kernel for {backend}")
    refusal = contract.refusal_of(stored)
    if refusal is None:
        return Kernel("mosaic_tpu", "the TPU kernel accepts the layout")
    if wanted == "mosaic_tpu":
        raise ValueError(
            f"{operation}: the mosaic_tpu kernel does not accept this pool: {refusal}. "
            "Take kernels='auto' to read it with XLA, or change the layout."
        )
    return Kernel("xla", f"the TPU kernel does not accept the pool: {refusal}")


def _interpreted(operation: str, stored: Stored, contract: ReadContract) -> Kernel:
    free = dataclasses.replace(contract, lanes=1, tile_bytes=1)
    refusal = free.refusal_of(stored)
    if refusal is None:
        return Kernel("mosaic_tpu", "the interpreter was asked for", interpret=True)
    return Kernel("xla", f"{operation} is not interpreted: {refusal}")
