"""``python -m pallas_kernels.compiled``: what compiles for which accelerator."""

import argparse
import dataclasses
import json
import os
import sys

from pallas_kernels.compiled.environment import ENVIRONMENT


def main() -> int:
    """Compiles, prints, and returns 1 if something does not compile as it should."""
    os.environ.update({**ENVIRONMENT, **os.environ})
    # JAX reads those variables when it is imported.
    from pallas_kernels.compiled.cases import cases
    from pallas_kernels.compiled.choosing import add_options, chosen
    from pallas_kernels.compiled.matrix import WANTED, compile_all, outdated
    from pallas_kernels.compiled.outcomes import keep, kept
    from pallas_kernels.compiled.table import WRITTEN, markdown
    from pallas_kernels.compiled.targets import missing, versions

    parser = argparse.ArgumentParser(
        prog="python -m pallas_kernels.compiled", description=__doc__
    )
    parser.add_argument(
        "--target", action="append", choices=WANTED, help="default: all of them"
    )
    add_options(parser)
    parser.add_argument(
        "--kernels",
        choices=("auto", "xla", "mosaic_tpu", "mosaic_gpu"),
        help="default: what the table has of each target",
    )
    parser.add_argument(
        "--outdated",
        action="store_true",
        help="only what was kept of another text of a kernel, or not at all",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object")
    output.add_argument(
        "--write",
        action="store_true",
        help="keep what was found beside what is known: outcomes.json, and the table "
        "COMPILED.md",
    )
    output.add_argument(
        "--markdown", action="store_true", help="compile nothing, print the kept table"
    )
    options = parser.parse_args()
    if options.markdown:
        print(markdown(kept()), end="")
        return 0
    if options.write and options.kernels:
        parser.error("--write takes what the table has of each target, no --kernels")
    asked = chosen(options)
    outcomes, skipped = [], {}
    for target in options.target or WANTED:
        reason = missing(target)
        if reason is not None:
            skipped[target] = reason
            print(f"{target}: skipped, {reason}", file=sys.stderr)
            continue
        found, mine = [], asked
        if options.outdated:
            mine = outdated(target, asked, kept())
        wanted = options.kernels or WANTED[target]
        for outcome, seconds in compile_all(target, mine, wanted):
            found.append(outcome)
            if not options.json:
                print(_line(outcome, seconds), flush=True)
        outcomes += found
        if options.write:
            known = kept().with_newer(target, versions(target), found)
            keep(known.only([case.identity for case in cases()]))
            WRITTEN.write_text(markdown(kept()))
    if options.json:
        rows = [
            {**dataclasses.asdict(outcome), "good": outcome.good}
            for outcome in outcomes
        ]
        print(json.dumps({"outcomes": rows, "skipped": skipped}))
    return 0 if all(outcome.good for outcome in outcomes) else 1


def _line(outcome, seconds) -> str:
    said = "ok" if outcome.good else outcome.refusal or "; ".join(outcome.moves)
    return (
        f"{outcome.target:5}{outcome.operation:15}{outcome.layout:20}"
        f"{outcome.dtype:14}{outcome.width:3} {outcome.implementation:11}"
        f"{seconds:6.1f} s{outcome.temporary_bytes:>12,} B  {said}"
    )


if __name__ == "__main__":
    sys.exit(main())
