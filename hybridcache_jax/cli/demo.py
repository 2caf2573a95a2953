"""``hybridcache demo``: one long document, several questions, every verdict shown."""

import argparse
import contextlib
import dataclasses
import json
import tempfile
from importlib.resources import files

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hybridcache_jax.byte_sizes import format_bytes
from hybridcache_jax.cli.metrics_table import show
from hybridcache_jax.cli.restart import in_another_process, over_store, resume, save
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
_STAGING = 16


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
        # The restart has the same plan, and moves blocks to its store.
        staging_blocks=_STAGING,
    )
    for tokens in prompts.values():
        engine.check(Request(tokens, max_new_tokens=arguments.max_new_tokens))
    question = QUESTIONS[1]
    vocab_size = loaded.config.vocab_size
    if arguments.restarted:
        engine = over_store(engine, arguments.store, vocab_size)
        warm_up(engine, console)
        data = resume(
            engine, prompts[question], arguments.max_new_tokens, lambda step: None
        )
        print(json.dumps(data))
        return 0 if data["equal"] else 1
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

        step, identity = engine.compiled_step, engine.identity
        demo = Demo(engine, loaded, prompts, arguments.max_new_tokens, on_run)
        for title, remark, answers in demo.scenes():
            outcomes += answers
            _show_scene(console, len(outcomes), title, remark, answers, tokenizer)
        # The scenes end with other weights; what is saved is the model's own.
        engine.update_model(step, identity)
        restart = _restart(
            console, arguments, engine, vocab_size, prompts, on_run("saving", longest)
        )
    different = [outcome for outcome in outcomes if not outcome.equal]
    if arguments.json:
        print(json.dumps(_as_data(loaded, engine, outcomes, registry, restart)))
    _summarise(console, outcomes, restart)
    if arguments.metrics:
        show(console, registry)
    return 1 if different or not restart["equal"] else 0


def _restart(
    console: Console, arguments: argparse.Namespace, engine, vocab_size, prompts, listen
) -> dict:
    """This process saves the document, another one resumes it; what came of it."""
    title, remark = "another process", "the document comes from disk"
    console.print(f"\n[bold]{escape(title)}[/]  [dim]{escape(remark)}[/]")
    with contextlib.ExitStack() as stack:
        folder = arguments.store or stack.enter_context(tempfile.TemporaryDirectory())
        first = over_store(engine, folder, vocab_size)
        saved = save(first, folder, prompts[QUESTIONS[0]], listen)
        console.print(
            f"  saved {saved.tokens} tokens: {format_bytes(saved.nbytes)} in "
            f"{saved.objects} objects, {saved.seconds:.2f} s after the last token"
        )
        own = ["--restarted", "--store", folder]
        own += ["--max-new-tokens", str(arguments.max_new_tokens)]
        for name in ("model", "prompt_file"):
            value = getattr(arguments, name)
            own += [f"--{name.replace('_', '-')}", value] if value else []
        came = in_another_process(own)
    mark = "[green]equal to cold[/]" if came["equal"] else "[red]DIFFERENT[/]"
    console.print(
        f"  {came['waited_for']}, {format_bytes(came['bytes_loaded'])}; then "
        f"{came['verdict']}, resume at {came['length']}; ran {came['tokens_run']} of "
        f"{came['prompt_tokens']} tokens; first token after "
        f"{came['seconds_to_first_token']:.2f} s, cold "
        f"{came['cold_seconds_to_first_token']:.2f} s; {mark}"
    )
    return {"saved": dataclasses.asdict(saved), **came}


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


def _summarise(console: Console, outcomes: list[Outcome], restart: dict) -> None:
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
    table.add_row(
        "another process",
        restart["verdict"],
        str(restart["length"]),
        f"{restart['tokens_run']}/{restart['prompt_tokens']}",
        f"{restart['cold_seconds_to_first_token']:.2f} s",
        f"{restart['seconds_to_first_token']:.2f} s",
        "[green]=[/]" if restart["equal"] else "[red]≠[/]",
    )
    console.print()
    console.print(table)
    asked = sum(outcome.result.plan.num_tokens for outcome in outcomes)
    asked += restart["prompt_tokens"]
    ran = sum(outcome.result.tokens_run for outcome in outcomes)
    ran += restart["tokens_run"]
    wrong = sum(not outcome.equal for outcome in outcomes) + (not restart["equal"])
    console.print(
        f"{len(outcomes) + 1} answers. {asked - ran} of {asked} prompt tokens "
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


def _as_data(
    loaded, engine, outcomes: list[Outcome], registry: MemoryRegistry, restart: dict
) -> dict:
    return {
        "model": str(loaded.source),
        "identity": engine.identity.digest,
        "all_equal": restart["equal"] and all(each.equal for each in outcomes),
        "restart": restart,
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
