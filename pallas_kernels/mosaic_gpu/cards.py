"""Which cards the GPU kernels run on."""

import jax

from pallas_kernels.contracts import MOSAIC_GPU


def check_cards() -> None:
    """Refuses a process whose GPUs the kernels are not made for.

    Where there is no GPU a kernel is being compiled for another machine, and whoever
    does that knows the card.

    Raises:
      ValueError: naming the first such card.
    """
    try:
        devices = jax.local_devices(backend="gpu")
    except RuntimeError:
        return
    for device in devices:
        major, minor = str(device.compute_capability).split(".")
        refusal = MOSAIC_GPU.card_refusal(device.device_kind, (int(major), int(minor)))
        if refusal is not None:
            raise ValueError(
                f"The step cannot be compiled here: {refusal}. Take kernels='auto' or "
                "'xla' in plan_capacity."
            )
