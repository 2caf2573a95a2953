"""Amounts of one read, as data that is kept.  Imports no JAX."""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

KEPT = Path(__file__).with_name("amounts.json")
"""What ``python -m pallas_kernels.traffic --write`` counted."""

GOAL = 0.85
"""Least ratio of what must be moved to what is, where nothing stands in the way."""


@dataclasses.dataclass(frozen=True)
class Amounts:
    """What one kernel moves for one step, in bytes.

    Attributes:
      implementation: kernel.
      operation: read.
      layout: of the pool.
      dtype: of the pool.
      width: queries of a row in a step.
      tokens: of each row, about.
      needed: of the entries that any query of their row reads, each once, without
        padding: the floor.
      held: of the same entries as the pool holds them, padded.
      distinct: of the pool that are moved, each byte once.
      moved: of the pool, as often as they are moved.
      besides: queries, tables of weights and partial results.
    """

    implementation: str
    operation: str
    layout: str
    dtype: str
    width: int
    tokens: int
    needed: int
    held: int
    distinct: int
    moved: int
    besides: int

    @property
    def ratio(self) -> float:
        """The floor over what is moved of the pool."""
        return self.needed / self.moved

    @property
    def padding(self) -> float:
        """The part of the ratio that is the layout's."""
        return self.needed / self.held

    @property
    def edges(self) -> float:
        """The part that is of entries that come along in blocks and strips."""
        return self.held / self.distinct

    @property
    def again(self) -> float:
        """The part that is of bytes moved several times."""
        return self.distinct / self.moved

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the ratio is below :data:`GOAL`; empty if it is not."""
        if self.ratio >= GOAL:
            return ()
        found = {
            "padding": self.padding,
            "strips" if self.operation == "indexed_decode" else "edges": self.edges,
            "again": self.again,
        }
        # What alone, or with the others, brings it below.
        return tuple(name for name, part in found.items() if part < GOAL**0.5)


def kept(path: Path = KEPT) -> tuple[Amounts, ...]:
    """Reads the file.

    Args:
      path: the file.
    """
    return tuple(Amounts(**each) for each in json.loads(path.read_text()))


def keep(amounts: Iterable[Amounts], path: Path = KEPT) -> None:
    """Writes the file, one read a line.

    Args:
      amounts: all of them.
      path: the file.
    """
    rows = ",\n".join(" " + json.dumps(dataclasses.asdict(each)) for each in amounts)
    path.write_text(f"[\n{rows}\n]\n")
