"""``hybridcache soak``: random operations on the façade against a plain oracle."""

import argparse
import dataclasses
import json
from pathlib import Path

from rich.console import Console

from hybridcache_jax.cli.progress import progress_bar
from hybridcache_jax.testing.soak.machine import Operation
from hybridcache_jax.testing.soak.run import Rooms, SoakReport, replay, soak
from hybridcache_jax.testing.toy_models import SOAKED


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; see ``hybridcache soak --help``.

    Returns:
      0 if the library did what the oracle did, else 1.
    """
    if arguments.replay:
        return _again(Path(arguments.replay))
    notes = Console(stderr=True)
    reports = {}
    for name in [arguments.model] if arguments.model else SOAKED:
        with progress_bar(notes, name) as update:
            report = soak(
                SOAKED[name](),
                count=arguments.operations,
                seed=arguments.seed,
                episode_length=arguments.episode_length,
                store=arguments.store,
                on_progress=lambda done, total, name=name: update(done, total, name),
            )
        reports[name] = report
        if not arguments.json:
            _show(name, report)
    if arguments.json:
        print(json.dumps({name: r.to_dict() for name, r in reports.items()}))
    return int(any(report.failure for report in reports.values()))


def _show(name: str, report: SoakReport) -> None:
    console = Console(highlight=False)
    rate = report.operations / max(report.seconds, 1e-9)
    console.print(
        f"[bold]{name}[/]: {report.operations:,} operations, {report.tokens:,} tokens "
        f"in {report.episodes} episodes of seed {report.seed}; {rate:.0f} operations "
        "per second"
    )
    plans = {**report.verdicts, "from kept pools": report.origins}
    shown = [("plans", plans), ("loads", report.loads), ("done", report.counts)]
    if report.saves or report.found:
        plans["from the store"] = report.found
        shown.insert(2, ("saves", report.saves))
    for what, numbers in shown:
        parts = (f"{key} {count:,}" for key, count in sorted(numbers.items()))
        console.print(f"  {what}: {', '.join(parts) or 'none'}")
    failure = report.failure
    if failure is None:
        console.print("  no difference from the oracle")
        return
    tier, known = failure.rooms
    rooms = f"an outer tier of {tier} grid units" if tier else "no tier"
    rooms += f", a store of which {known} more are known" if known else ""
    console.print(
        f"  [bold red]episode {failure.episode}[/], {rooms}: {failure.message}"
    )
    for operation in failure.operations:
        console.print(f"    {operation.name} {operation.a} {operation.b} {operation.c}")


def _again(path: Path) -> int:
    """Replays the failures of a report."""
    console, failed = Console(highlight=False), False
    try:
        reports = json.loads(path.read_text(encoding="utf-8"))
        runs = {
            name: (
                [Operation(*drawn) for drawn in report["failure"]["operations"]],
                Rooms(*map(int, report["failure"]["rooms"])),
            )
            for name, report in reports.items()
            if report["failure"]
        }
        models = {name: SOAKED[name] for name in runs}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        names = ", ".join(f.name for f in dataclasses.fields(SoakReport))
        raise ValueError(
            f"{path} is no report of hybridcache soak --json (per model {names}): "
            f"{error!r}."
        ) from error
    for name, (drawn, rooms) in runs.items():
        message = replay(models[name](), drawn, rooms)
        failed = failed or bool(message)
        console.print(f"[bold]{name}[/]: {message or 'no difference from the oracle'}")
    if not runs:
        console.print("The report has no failure to replay.")
    return int(failed)
