"""``python -m pallas_kernels.device``: the kernels on the device that is here."""

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import sys

import jax

from pallas_kernels.compiled.accelerators import GPUS
from pallas_kernels.compiled.choosing import add_options, chosen
from pallas_kernels.device import results, suite


def main() -> int:
    """Runs, prints, and returns 1 if something is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m pallas_kernels.device", description=__doc__
    )
    add_options(parser)
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="on a CPU, with little to read: all that happens on an accelerator, also "
        "clocks; nothing is kept",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object")
    output.add_argument(
        "--write", action="store_true", help="keep the run: results.json, RESULTS.md"
    )
    options = parser.parse_args()
    backend = jax.default_backend()
    device = results.INTERPRETER if backend == "cpu" else jax.devices()[0].device_kind
    if options.rehearse:
        if options.write or backend != "cpu":
            parser.error("--rehearse is for CPUs, and keeps nothing")
        device = results.REHEARSAL
    found = []
    asked = chosen(options)
    ran = suite.rehearse(asked) if options.rehearse else suite.run(asked, backend)
    for result in ran:
        found.append(result)
        if not options.json:
            print(_line(result), flush=True)
    made = results.Run(
        device=device,
        backend=backend,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        versions={name: importlib.metadata.version(name) for name in ("jax", "jaxlib")},
        results=tuple(found),
        bandwidth=_bandwidth(backend, device),
    )
    if options.json:
        print(json.dumps(dataclasses.asdict(made)))
    else:
        print(results.markdown([made]), end="")
    if options.write:
        results.keep(made)
        results.WRITTEN.write_text(results.markdown(results.kept()))
    return 0 if found and all(result.good for result in found) else 1


def _bandwidth(backend: str, device: str) -> float | None:
    """What the memory of the device can, bytes per second."""
    if backend == "tpu":
        from jax.experimental.pallas import tpu as pltpu

        info = pltpu.get_tpu_info()
        return float(info.mem_bw_bytes_per_second * info.num_cores)
    known = {card.name: float(card.bandwidth) for card in GPUS.values()}
    return known.get(device)


def _line(result: results.Result) -> str:
    words = f"{result.operation:15}{result.layout:20}{result.dtype:14}{result.width:3}"
    words += f" {result.implementation:11} error {result.error:.1e}"
    if result.seconds and result.xla_seconds:
        speed = result.nbytes / result.seconds / 1e9
        times = result.xla_seconds / result.seconds
        words += f", {speed:.0f} GB/s, XLA takes {times:.2f} times as long"
    return words + ("" if result.good else "  WRONG")


if __name__ == "__main__":
    sys.exit(main())
