"""``hybridcache bench``: measure something against a floor."""

import argparse
import importlib
import json

from rich import box
from rich.console import Console
from rich.table import Table

from hybridcache_jax.bench.measure import Factor, Footprint, Measurement, Report


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; see ``hybridcache bench --help``."""
    module = arguments.name.replace("-", "_")
    bench = importlib.import_module(f"hybridcache_jax.bench.{module}")
    notes = Console(stderr=True)
    with notes.status(f"measuring {arguments.name}"):
        report = bench.run()
    if arguments.json:
        print(json.dumps(report.to_dict()))
    else:
        _show(report)
    missed = [
        f"goal missed: {line.what}: {line.ratio:.2f}, not {line.goal_text}"
        for line in report.lines
        if line.missed
    ]
    for text in missed if arguments.check else ():
        notes.print(text)
    return int(arguments.check and bool(missed))


def _show(report: Report) -> None:
    console = Console(highlight=False)
    console.print(f"[bold]{report.name}[/]: {report.setting}")
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("measured", "", "floor", "", "ratio", "goal"):
        left = heading in ("measured", "floor")
        table.add_column(heading, justify="left" if left else "right")
    for line in report.lines:
        measured, floor = _amounts(line)
        table.add_row(
            line.what,
            measured,
            line.floor,
            floor,
            f"{line.ratio:.2f}" if line.ratio > 0.1 else f"{line.ratio:.2g}",
            line.goal_text,
        )
    console.print(table)


def _amounts(line: Measurement | Footprint | Factor) -> tuple[str, str]:
    """What was measured and its floor, for people."""
    if isinstance(line, Footprint):
        return f"{line.nbytes:.1f} B", f"{line.floor_nbytes:.1f} B"
    if isinstance(line, Factor):
        return f"{line.times:.1f} times", f"{line.floor_times:.1f} times"
    return _duration(line.seconds), _duration(line.floor_seconds)


def _duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
