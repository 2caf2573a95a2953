"""``python -m pallas_kernels.compiled``: what compiles for which accelerator."""

import argparse
import dataclasses
import json
import os
import sys

from pallas_kernels.compiled.environment import ENVIRONMENT


def main() -> int:
    """Compiles, prints, and returns 1 if something does not compile as it should."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # JAX reads those variables when it is imported.
    from pallas_kernels.compiled.cases import cases
    from pallas_kernels.compiled.matrix import compile_all
    from pallas_kernels.compiled.targets import GPUS, TPUS, missing

    every = (*TPUS, *GPUS)
    parser = argparse.ArgumentParser(
        prog="python -m pallas_kernels.compiled", description=__doc__
    )
    parser.add_argument(
        "--target", action="append", choices=every, help="default: all of them"
    )
    parser.add_argument("--operation", action="append", help="default: all of them")
    parser.add_argument("--dtype", action="append", help="default: all of them")
    parser.add_argument(
        "--kernels", default="auto", choices=("auto", "xla"), help="default: auto"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    chosen = [
        case
        for case in cases()
        if not options.operation or case.operation in options.operation
        if not options.dtype or case.dtype in options.dtype
    ]
    outcomes, skipped = [], {}
    for target in options.target or every:
        reason = missing(target)
        if reason is not None:
            skipped[target] = reason
            print(f"{target}: skipped, {reason}", file=sys.stderr)
        for outcome in compile_all([target], chosen, options.kernels):
            outcomes.append(outcome)
            if not options.json:
                print(_line(outcome), flush=True)
    if options.json:
        rows = [
            {**dataclasses.asdict(outcome), "good": outcome.good}
            for outcome in outcomes
        ]
        print(json.dumps({"outcomes": rows, "skipped": skipped}))
    return 0 if all(outcome.good for outcome in outcomes) else 1


def _line(outcome) -> str:
    said = "ok" if outcome.good else outcome.refusal or "; ".join(outcome.moves)
    return (
        f"{outcome.target:5}{outcome.operation:15}{outcome.layout:20}"
        f"{outcome.dtype:10}{outcome.width:3} {outcome.implementation:11}"
        f"{outcome.seconds:6.1f} s{outcome.temporary_bytes:>11,} B  {said}"
    )


if __name__ == "__main__":
    sys.exit(main())
