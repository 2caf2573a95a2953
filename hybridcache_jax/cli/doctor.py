"""``hybridcache doctor``: what would read the cache of a model, here or elsewhere."""

import argparse
import dataclasses
import json

import jax
from rich.console import Console

from hybridcache_jax.diagnosis import Served, diagnose
from hybridcache_jax.models.tiny_v4 import FOLDER, NAME
from hybridcache_jax.spec import CacheSpec


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; see ``hybridcache doctor --help``."""
    model = arguments.model or NAME
    spec = CacheSpec.from_hf_config(
        FOLDER if model == NAME else model,
        cache_format=arguments.cache_format,
        block_tokens=arguments.block_tokens,
    )
    here = jax.default_backend()
    backend = arguments.backend or here
    found = diagnose(spec, backend=backend, kernels=arguments.kernels)
    report = {
        "jax": jax.__version__,
        "here": {"backend": here, "devices": _devices()},
        "model": str(model),
        "backend": backend,
        "kernels": arguments.kernels,
        "reads": [dataclasses.asdict(served) for served in found],
    }
    if arguments.json:
        print(json.dumps(report))
    else:
        _show(report, found)
    return 0


def _devices() -> list[str]:
    return [device.device_kind for device in jax.devices()]


def _show(report, found: tuple[Served, ...]) -> None:
    console = Console(highlight=False)
    here = report["here"]
    console.print(
        f"here: backend [bold]{here['backend']}[/], {len(here['devices'])} x "
        f"{here['devices'][0]}, JAX {report['jax']}"
    )
    console.print(
        f"[bold]{report['model']}[/] on {report['backend']}, "
        f"kernels={report['kernels']!r}"
    )
    for served in found:
        kernel, layers = served.kernel, served.layers
        by = kernel.implementation + (" (interpreted)" if kernel.interpret else "")
        console.print(
            f"{served.pool}, {layers} layer{'s' * (layers > 1)}, {served.dtype}: "
            f"{served.read} by [bold]{by}[/]"
        )
        console.print(f"    why: {kernel.reason}", soft_wrap=True)
        console.print(f"    verified: {served.evidence.words}", soft_wrap=True)
