"""What a planted mistake is, and the tests that several of them are caught by."""

import dataclasses
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class Mutation:
    """One mistake.

    Attributes:
      name: of the mistake.
      file: in the package.
      old: text that stands once in it.
      new: what it becomes.
      breaks: what goes wrong.
      tests: pytest node ids; one of them at least must fail.
      package: ``hybridcache_jax`` or ``pallas_kernels``.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]
    package: str = "hybridcache_jax"


class Soaked(NamedTuple):
    """How the machine is run that finds a mistake.

    Attributes:
      model: with which toy.
      store: whether there is a store.
    """

    model: str = "fine"
    store: bool = False


VALIDATE = ("tests/core/test_validate.py",)
FORMS = ("tests/core/test_forms.py",)
INDEX = ("tests/core/test_prefix_index.py",)
PUBLICATION = ("tests/core/test_publication.py",)
SOLVER = ("tests/core/test_solver.py::test_replay_extents_by_hand",)
OUTER = "tests/faults/test_outer_tier.py::"
