"""``hybridcache demo``: one long document, several questions, every verdict shown."""

import argparse
import json
from importlib.resources import files

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hybridcache_jax.byte_sizes import format_bytes
from hybridcache_jax.cli.metrics_table import show
from hybridcache_jax.cli.scenes import QUESTIONS, Demo, Outcome
from hybridcache_jax.cli.session import load, read_text, tokenizer_of, warm_up
from hybridcache_jax.codes import Reason
from hybridcache_jax.forms import Form
from hybridcache_jax.observe import MemoryRegistry, Metrics
from hybridcache_jax.rollout import ReusePolicy
from hybridcache_jax.serving.buckets import Buckets
from hybridcache_jax.serving.build import build_engine
from hybridcache_jax.serving.request import Progress as Step
from hybridcache_jax.serving.request import Request
from hybridcache_jax.spec import PoolSpec

_BUCKETS = Buckets(batch=(1, 2), chunk=(1, 128))


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; see ``hybridcache demo --help``."""
    if arguments.prompt_file:
        document = read_text(arguments.prompt_file)
    else:
        document = files("hybridcache_jax.cli").joinpath("document.txt").read_text()
    console = Console(stderr=arguments.json, highlight=False)
    loaded = load(arguments.model, console)
    tokenizer = tokenizer_of(loaded)
    prompts = {
        question: np.array(tokenizer.encode(f"{document}\n\n{question}"), np.int32)
        for question in QUESTIONS
    }
    longest = max(len(tokens) for tokens in prompts.values())
    max_length = longest + max(arguments.max_new_tokens, 1)
    registry = MemoryRegistry()
    engine = build_engine(
        loaded,
        max_length=max_length,
        max_sequences=2,
        stored_tokens=2 * max_length,
        buckets=_BUCKETS.within(max_length),
        # Questions are requests of their own and reuse what the others stored.
        policy=ReusePolicy(scope="namespace"),
        metrics=Metrics(registry),
    )
    for tokens in prompts.values():
        engine.check(Request(tokens, max_new_tokens=arguments.max_new_tokens))
    _introduce(console, loaded, engine, longest)
    warm_up(engine, console)
    outcomes: list[Outcome] = []
    with Progress(
        TextColumn("  {task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.completed}/{task.total} tokens"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("", total=None)

        def on_run(label: str, total: int):
            prompts: dict[int, int] = {}
            done: dict[int, int] = {}
            bar.reset(task, total=total, description=label)

            def listen(step: Step) -> None:
                if step.kind == "admitted":
                    prompts[step.request] = step.total
                if step.kind in ("admitted", "prefill"):
                    done[step.request] = step.done
                elif step.kind == "token":
                    done[step.request] = prompts[step.request] + step.done
                bar.update(task, completed=sum(done.values()))

            return listen

        demo = Demo(engine, loaded, prompts, arguments.max_new_tokens, on_run)
        for title, remark, answers in demo.scenes():
            outcomes += answers
            _show_scene(console, len(outcomes), title, remark, answers, tokenizer)
    different = [outcome for outcome in outcomes if not outcome.equal]
    if arguments.json:
        print(json.dumps(_as_data(loaded, engine, outcomes, registry)))
    _summarise(console, outcomes)
    if arguments.metrics:
        show(console, registry)
    return 1 if different else 0


def _introduce(console: Console, loaded, engine, longest: int) -> None:
    spec = engine.plan.spec
    windows = [pool for pool in spec.pools if pool.geometry.local is not None]
    console.print(f"[bold]{escape(str(loaded.source.name))}[/]")
    for pool in spec.pools:
        console.print(f"  {len(pool.layers)} layers keep {_kept(pool)} ({pool.name})")
    console.print(
        f"  cache {format_bytes(engine.plan.total_bytes)}, resume points every "
        f"{spec.grid} tokens"
    )
    length = f"  document and question: up to {longest} tokens"
    if windows:
        size = max(pool.geometry.local.size for pool in windows)
        length += f", {longest / size:.1f} windows"
    console.print(length)


def _kept(pool: PoolSpec) -> str:
    """What a pool keeps, for people."""
    ratio, local = pool.geometry.ratio, pool.geometry.local
    if local is not None:
        return f"a window of {local.size} tokens"
    if pool.form is Form.UNCOMPRESSED_TAIL:
        return "the raw rows behind the last entry"
    if pool.form is Form.RECURRENT_STATE:
        return "a recurrent state"
    what = "an index key" if pool.form is Form.INDEXER_STATE else "an entry"
    per = "every token" if ratio == 1 else f"every {ratio} tokens"
    return f"{what} for {per} of the history"


def _show_scene(console, number, title, remark, answers, tokenizer) -> None:
    console.print(f"\n[bold]{escape(title)}[/]  [dim]{escape(remark)}[/]")
    for outcome in answers:
        result, plan = outcome.result, outcome.result.plan
        mark = "[green]equal to cold[/]" if outcome.equal else "[red]DIFFERENT[/]"
        console.print(
            f"  {plan.verdict.name}, resume at {plan.length}; ran "
            f"{result.tokens_run} of {plan.num_tokens} tokens; first token after "
            f"{result.seconds_to_first_token:.2f} s, cold "
            f"{outcome.cold.seconds_to_first_token:.2f} s; {mark}"
        )
        for line in _because(plan):
            console.print(f"    [yellow]{escape(line)}[/]")
        answer = tokenizer.decode(result.tokens).replace("\n", " ").strip()
        console.print(f"    [dim]{escape(outcome.question)}[/] {escape(answer)}")


def _because(plan) -> list[str]:
    """Why not everything was reused, in a line or two."""
    if plan.reason in (Reason.OK, Reason.NOT_STORED):
        return []
    lines = [f"why: {plan.reason.explanation}"]
    if plan.changed:
        lines[0] += f": {', '.join(plan.changed)}"
    for report in plan.limiting:
        lo, hi = report.required
        lines.append(
            f"{report.pool} needs positions {lo}..{hi - 1}, missing from "
            f"{report.position}"
        )
    if plan.replay_reaches_start:
        lines.append("an exact replay would have to start at position 0")
    return lines


def _summarise(console: Console, outcomes: list[Outcome]) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("scene", "verdict", "from", "ran", "cold", "reused", ""):
        left = heading in ("scene", "verdict")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for outcome in outcomes:
        result, plan = outcome.result, outcome.result.plan
        table.add_row(
            outcome.scene,
            plan.verdict.name,
            str(plan.length),
            f"{result.tokens_run}/{plan.num_tokens}",
            f"{outcome.cold.seconds_to_first_token:.2f} s",
            f"{result.seconds_to_first_token:.2f} s",
            "[green]=[/]" if outcome.equal else "[red]≠[/]",
        )
    console.print()
    console.print(table)
    asked = sum(outcome.result.plan.num_tokens for outcome in outcomes)
    ran = sum(outcome.result.tokens_run for outcome in outcomes)
    wrong = sum(not outcome.equal for outcome in outcomes)
    console.print(
        f"{len(outcomes)} answers. {asked - ran} of {asked} prompt tokens "
        f"({(asked - ran) / asked:.0%}) did not have to be run."
    )
    if wrong:
        console.print(
            f"[red]{wrong} answers differ from their cold runs: this is a defect.[/]"
        )
    else:
        console.print(
            "Every answer has the tokens of its cold run. Where something needed was "
            "missing, the verdict said so and the tokens were run again."
        )


def _as_data(loaded, engine, outcomes: list[Outcome], registry: MemoryRegistry) -> dict:
    return {
        "model": str(loaded.source),
        "identity": engine.identity.digest,
        "all_equal": all(outcome.equal for outcome in outcomes),
        "answers": [
            {
                "scene": outcome.scene,
                "question": outcome.question,
                "equal": outcome.equal,
                "tokens": list(outcome.result.tokens),
                "cold_tokens": list(outcome.cold.tokens),
                "tokens_run": outcome.result.tokens_run,
                "seconds_to_first_token": outcome.result.seconds_to_first_token,
                "cold_seconds_to_first_token": outcome.cold.seconds_to_first_token,
                "plan": outcome.result.plan.to_dict(),
            }
            for outcome in outcomes
        ],
        "metrics": registry.snapshot(),
    }
