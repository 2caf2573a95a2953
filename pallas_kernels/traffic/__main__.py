"""``python -m pallas_kernels.traffic``: what the kernels move, against the floor."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator

from pallas_kernels.compiled.cases import Case
from pallas_kernels.compiled.choosing import OPTIONS, add_options, chosen
from pallas_kernels.contracts import KERNELS
from pallas_kernels.traffic.amounts import Amounts, keep, kept
from pallas_kernels.traffic.counting import count
from pallas_kernels.traffic.table import WRITTEN, markdown

# Of rows, of windows, and of rows that several queries read.
LENGTHS, WINDOWS, WIDE = (1024, 8192, 65_536), (128, 1024, 8192), (8192,)


def main() -> int:
    """Counts, prints, and returns 0."""
    parser = argparse.ArgumentParser(
        prog="python -m pallas_kernels.traffic", description=__doc__
    )
    parser.add_argument(
        "--kernels", action="append", choices=KERNELS, help="default: all of them"
    )
    add_options(parser)
    parser.add_argument(
        "--tokens",
        action="append",
        type=int,
        help="of a row, or of a window, default: from short to long",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object")
    output.add_argument(
        "--write", action="store_true", help="keep all: amounts.json, and TRAFFIC.md"
    )
    output.add_argument(
        "--markdown", action="store_true", help="count nothing, print the kept table"
    )
    options = parser.parse_args()
    if options.markdown:
        print(markdown(kept()), end="")
        return 0
    choices = ("kernels", "tokens", *OPTIONS)
    if options.write and any(getattr(options, name) for name in choices):
        parser.error("--write keeps all that there is, and takes no choice")
    found = []
    for case in chosen(options):
        for amounts in _of(case, options.kernels or KERNELS, options.tokens):
            found.append(amounts)
            if not options.json:
                print(_line(amounts), flush=True)
    found.sort(key=lambda each: list(KERNELS).index(each.implementation))
    if options.json:
        rows = [
            {**dataclasses.asdict(each), "ratio": each.ratio, "reasons": each.reasons}
            for each in found
        ]
        print(json.dumps({"amounts": rows}))
    if options.write:
        keep(found)
        WRITTEN.write_text(markdown(kept()))
    return 0


def _of(case: Case, kernels, lengths) -> Iterator[Amounts]:
    for implementation in kernels:
        usual = WINDOWS if case.operation == "window_decode" else LENGTHS
        for length in lengths or (usual if case.width == 1 else WIDE):
            amounts = count(case, implementation, length)
            if amounts is not None:
                yield amounts


def _line(amounts: Amounts) -> str:
    return (
        f"{amounts.implementation:11}{amounts.operation:15}{amounts.layout:20}"
        f"{amounts.dtype:14}{amounts.width:3}{amounts.tokens:7} tokens:"
        f"{amounts.needed:>12,} of{amounts.moved:>12,} B,{amounts.ratio:6.3f}"
        f"  {', '.join(amounts.reasons)}"
    )


if __name__ == "__main__":
    sys.exit(main())
