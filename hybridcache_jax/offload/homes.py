"""Memory on the device that was handed out for blocks on their way, by their places.

A load that streams has memory for all of its blocks long before the last of them came,
and every poll asks of each: so these are arrays over the places of a pool.
"""

import numpy as np

_NONE = -1


class Homes:
    """Of the places of one pool; each is of the place's content with one epoch.

    A place is handed out again only after the load that waited for its old content has
    failed, so of two epochs of a place one at most has a home.
    """

    def __init__(self, count: int):
        """No place has one.

        Args:
          count: places of the pool.
        """
        self._block = np.full(count, _NONE, np.int32)
        self._epoch = np.full(count, _NONE, np.int32)
        self._filled = np.zeros(count, bool)

    def copy(self) -> "Homes":
        """The same, to be changed."""
        other = Homes(0)
        other._block, other._epoch = self._block.copy(), self._epoch.copy()
        other._filled = self._filled.copy()
        return other

    def have(self, places: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        """Which of some places have a home for what they held with given epochs.

        Args:
          places: ``[n]``.
          epochs: ``[n]``.

        Returns:
          ``[n]`` bool.
        """
        return (self._block[places] != _NONE) & (self._epoch[places] == epochs)

    def filled(self, places: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        """Likewise which of those homes have their content."""
        return self._filled[places] & self.have(places, epochs)

    def blocks(self, places: np.ndarray) -> np.ndarray:
        """``[n]`` int32, the homes of places that have one."""
        return self._block[places]

    def coming(self, count: int) -> np.ndarray:
        """``[count]`` bool: blocks on the device that are homes."""
        mask = np.zeros(count, bool)
        mask[self._block[self._block != _NONE]] = True
        return mask

    def give(self, places: np.ndarray, epochs: np.ndarray, blocks: np.ndarray) -> None:
        """Places get homes with nothing in them."""
        self._block[places], self._epoch[places] = blocks, epochs
        self._filled[places] = False

    def fill(self, places: np.ndarray) -> None:
        """The homes of places have their content."""
        self._filled[places] = True

    def take(self, places: np.ndarray) -> None:
        """Places have no home any more; what was in it does not count."""
        self._block[places] = _NONE

    def without(self, kept: np.ndarray) -> np.ndarray:
        """``[n]`` places with a home whose epoch is none that is kept.

        Args:
          kept: ``[Q]`` int32 epochs, negative for none.
        """
        return np.flatnonzero((self._block != _NONE) & (self._epoch != kept))
