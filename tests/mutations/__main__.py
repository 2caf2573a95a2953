"""``python -m tests.mutations``: does every planted mistake make a test fail?"""

import argparse
import dataclasses
import json
import sys

from tests.mutations.mutation_catalogue import MACHINE, MUTATIONS, Soaked
from tests.mutations.mutation_run import (
    OPERATIONS,
    REPOSITORY,
    SEED,
    run_machine,
    run_tests,
    try_in_machine,
    try_one,
)


def main() -> int:
    """Runs the command; 1 if a mutation survived or does not apply any more."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations",
        description="Applies small mistakes to copies of the library, one by one, and "
        "runs the tests that must fail. Nothing is edited in place.",
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="repeatable")
    parser.add_argument(
        "--machine",
        action="store_true",
        help="run the soak instead of the tests; without --only those that it catches",
    )
    parser.add_argument(
        "--operations",
        type=int,
        metavar="N",
        help=f"of the soak (default: {OPERATIONS})",
    )
    parser.add_argument("--seed", type=int, help=f"of the soak (default: {SEED})")
    parser.add_argument("--list", action="store_true", help="name them and stop")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    arguments = parser.parse_args()
    soak = (arguments.operations, arguments.seed)
    if soak != (None, None) and not arguments.machine:
        parser.error("--operations and --seed are those of --machine; give it too")
    known = {mutation.name: mutation for mutation in MUTATIONS}
    chosen = arguments.only or list(MACHINE if arguments.machine else known)
    if unknown := set(chosen) - set(known):
        parser.error(f"no mutation is called {', '.join(sorted(unknown))}; see --list")
    if arguments.list:
        for mutation in MUTATIONS:
            print(f"{mutation.name:<40} {mutation.file:<18} {mutation.breaks}")
        return 0
    if arguments.machine:
        count = OPERATIONS if arguments.operations is None else arguments.operations
        seed = SEED if arguments.seed is None else arguments.seed
        soaked = {name: MACHINE.get(name, Soaked()) for name in chosen}
        for how in sorted(set(soaked.values())):
            code, output = run_machine(REPOSITORY, how, count, seed)
            if code:
                break
    else:
        tests = sorted({test for name in chosen for test in known[name].tests})
        code, output = run_tests(REPOSITORY, tests)
    if code:
        print(f"It fails without any mutation:\n{output}", file=sys.stderr)
        return 1
    verdicts = []
    for name in chosen:
        if arguments.machine:
            outcome = try_in_machine(known[name], soaked[name], count, seed)
        else:
            outcome = try_one(known[name])
        verdicts.append(outcome.verdict)
        if arguments.json:
            print(json.dumps(dataclasses.asdict(outcome)), flush=True)
        else:
            print(f"{outcome.verdict:<9} {name:<40} {outcome.seconds:6.1f} s", end="  ")
            print(outcome.detail, flush=True)
    bad = sum(verdict != "caught" for verdict in verdicts)
    print(f"{len(verdicts) - bad} of {len(verdicts)} caught", file=sys.stderr)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
