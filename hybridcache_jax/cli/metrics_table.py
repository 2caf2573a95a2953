"""``--metrics``: what was counted while a command ran, as a table for people."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hybridcache_jax.observe import MemoryRegistry
from hybridcache_jax.observe.declarations import PREFIX


def show(console: Console, registry: MemoryRegistry) -> None:
    """Prints every series that is not 0."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("metric", no_wrap=True)
    table.add_column("labels")
    table.add_column("value", justify="right", no_wrap=True)
    for name, family in registry.snapshot().items():
        for sample in family["samples"]:
            if sample.get("value", sample.get("count")):
                labels = ", ".join(f"{k}={v}" for k, v in sample["labels"].items())
                table.add_row(name.removeprefix(PREFIX), labels, _text(sample))
    console.print(table)


def _text(sample: dict[str, Any]) -> str:
    if "value" in sample:
        return str(sample["value"])
    return f"{sample['count']}, mean {sample['sum'] / sample['count']:.1f}"
