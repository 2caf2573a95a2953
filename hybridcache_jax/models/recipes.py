"""How a parameter is made of the tensors of a published checkpoint.

A checkpoint comes in one of two spellings: the names of transformers, which are the
names of our parameters, or those of the model's publisher, where one parameter may be
made of several tensors (one per expert, say).
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Tensors that make up one parameter.

    Attributes:
      names: stored names, in the order in which ``make`` takes them.
      make: stored tensors to the parameter.
    """

    names: tuple[str, ...]
    make: Callable[[list[np.ndarray]], np.ndarray] = lambda tensors: tensors[0]


def renamed(name: str) -> Recipe:
    """The parameter is stored under another name."""
    return Recipe((name,))


def stacked(names: Sequence[str]) -> Recipe:
    """The parameter is stored in slices along its first axis."""
    return Recipe(tuple(names), np.stack)


def joined(names: Sequence[str], axis: int = 0) -> Recipe:
    """The parameter is stored in pieces along an axis."""
    return Recipe(tuple(names), lambda tensors: np.concatenate(tensors, axis))
