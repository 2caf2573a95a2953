"""Which of the reads a command is about: the options of all that go through them."""

import argparse

from pallas_kernels.compiled.cases import Case, cases

OPTIONS = "operation", "layout", "dtype", "width"
"""Attributes of :class:`Case`, and of what the options are parsed to."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds one option for each of :data:`OPTIONS`, to be given any number of times."""
    for name in OPTIONS[:-1]:
        parser.add_argument(f"--{name}", action="append", help="default: all of them")
    parser.add_argument(
        f"--{OPTIONS[-1]}",
        action="append",
        type=int,
        help="queries of a row, default: all",
    )


def chosen(options: argparse.Namespace) -> list[Case]:
    """The cases that were asked for, all where nothing was."""
    asked = {name: getattr(options, name) for name in OPTIONS}
    return [
        case
        for case in cases()
        if all(not some or getattr(case, name) in some for name, some in asked.items())
    ]
