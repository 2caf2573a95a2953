"""What came of compiling, as data that is kept.  Imports no JAX."""

import dataclasses
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path

KEPT = Path(__file__).with_name("outcomes.json")
"""What ``python -m pallas_kernels.compiled --write`` found."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of compiling one case for one target.

    Attributes:
      target: accelerator.
      operation: read.
      layout: of the pool.
      dtype: of the pool.
      width: queries of a row in a step.
      implementation: which one was compiled, ``"xla"`` or a kernel.
      temporary_bytes: scratch memory of the program.
      moves: what copies a layer of the pool, converts it or lays it out anew.
      refusal: what the compiler said; None if it compiled.
      source: what it was compiled from, see ``sources.fingerprint``.
    """

    target: str
    operation: str
    layout: str
    dtype: str
    width: int
    implementation: str
    temporary_bytes: int = 0
    moves: tuple[str, ...] = ()
    refusal: str | None = None
    source: str = ""

    @property
    def case(self) -> tuple[str, str, str, int]:
        """What was compiled: read, layout, dtype and width."""
        return self.operation, self.layout, self.dtype, self.width

    @property
    def good(self) -> bool:
        """Whether it compiled and copies no pool."""
        return self.refusal is None and not self.moves


@dataclasses.dataclass(frozen=True)
class Outcomes:
    """All of them.

    Attributes:
      versions: by target, of the packages that compiled for it.
      outcomes: one per case, target and implementation.
    """

    versions: Mapping[str, Mapping[str, str]]
    outcomes: tuple[Outcome, ...]

    def with_newer(
        self, target: str, versions: Mapping[str, str], found: Iterable[Outcome]
    ) -> "Outcomes":
        """With what was found for one target in place of what was known.

        Args:
          target: accelerator.
          versions: of the packages.
          found: any of the target's cases.
        """
        found = tuple(found)
        newer = {each.case for each in found}
        others = tuple(
            each
            for each in self.outcomes
            if each.target != target or each.case not in newer
        )
        return Outcomes({**self.versions, target: versions}, (*others, *found))

    def only(self, cases: Sequence[tuple[str, str, str, int]]) -> "Outcomes":
        """Without cases that there are no more, in this order.

        Args:
          cases: as ``Outcome.case``.
        """
        rank = {case: number for number, case in enumerate(cases)}
        known = [each for each in self.outcomes if each.case in rank]
        known.sort(key=lambda each: (each.target, rank[each.case]))
        return Outcomes(self.versions, tuple(known))

    def compiled_for(
        self, implementation: str, operation: str, dtype: str
    ) -> tuple[str, ...]:
        """Targets for which a read compiled and copies no pool, in every layout.

        Args:
          implementation: ``"xla"`` or a kernel.
          operation: read.
          dtype: of the pool.
        """
        asked = (implementation, operation, dtype)
        good: dict[str, bool] = {}
        for each in self.outcomes:
            if (each.implementation, each.operation, each.dtype) == asked:
                good[each.target] = good.get(each.target, True) and each.good
        return tuple(target for target, all_good in good.items() if all_good)

    def layouts(
        self,
        implementation: str,
        operation: str,
        dtype: str,
        targets: Container[str],
    ) -> tuple[str, ...]:
        """Layouts of which a read was compiled.

        Args:
          implementation: ``"xla"`` or a kernel.
          operation: read.
          dtype: of the pool.
          targets: accelerators that count.
        """
        asked = (implementation, operation, dtype)
        return tuple(
            dict.fromkeys(
                each.layout
                for each in self.outcomes
                if (each.implementation, each.operation, each.dtype) == asked
                if each.target in targets
            )
        )


def kept(path: Path = KEPT) -> Outcomes:
    """Reads the file.

    Args:
      path: the file.
    """
    found = json.loads(path.read_text())
    outcomes = tuple(
        Outcome(**{**each, "moves": tuple(each["moves"])}) for each in found["outcomes"]
    )
    return Outcomes(found["versions"], outcomes)


def keep(outcomes: Outcomes, path: Path = KEPT) -> None:
    """Writes the file, one outcome a line.

    Args:
      outcomes: all of them.
      path: the file.
    """
    rows = ",\n".join(
        "  " + json.dumps(dataclasses.asdict(each)) for each in outcomes.outcomes
    )
    versions = json.dumps(dict(outcomes.versions), sort_keys=True)
    path.write_text(f'{{"versions": {versions},\n "outcomes": [\n{rows}\n]}}\n')
