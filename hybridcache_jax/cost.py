"""What running a token and moving a byte cost: the rates behind every choice."""

import dataclasses
import math

import jax
import numpy as np

from hybridcache_jax._typing import AnyArray, Array

# Weight of the newest measurement.
_NEWEST = 0.2


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CostModel:
    """What running a token and moving a byte cost, in seconds.

    A pytree whose rates are leaves: a compiled function that takes one is not traced
    again when they change.  Rates are learned by folding measurements in, each time
    into a new model: an exponential moving average over the rates measured.

    Attributes:
      seconds_per_token: inverse of the prefill rate; a float, or ``[]`` float32.
      seconds_per_byte: inverse of the bandwidth from the outer tier; likewise.
    """

    seconds_per_token: float | AnyArray = 1e-4
    seconds_per_byte: float | AnyArray = 1e-10

    def __post_init__(self):
        # Leaves under a transformation have no values to check.
        token, byte = self.seconds_per_token, self.seconds_per_byte
        known = int | float | np.number
        wrong = isinstance(token, known) and not 0 < token < math.inf
        if wrong or (isinstance(byte, known) and not 0 <= byte < math.inf):
            raise ValueError(
                f"CostModel needs finite seconds_per_token > 0 and seconds_per_byte "
                f">= 0, got {token} and {byte}."
            )

    def seconds(self, tokens: int, nbytes: int) -> float:
        """Seconds to load ``nbytes`` and then to run ``tokens``.  On the host."""
        return tokens * float(self.seconds_per_token) + nbytes * float(
            self.seconds_per_byte
        )

    def saved(self, tokens: Array, nbytes: Array) -> Array:
        """Seconds saved by not running tokens, less those of loading instead.

        Args:
          tokens: ``[K]`` int32, small enough differences to be exact in float32.
          nbytes: ``[K]`` float32.

        Returns:
          ``[K]`` float32.
        """
        xp = tokens.__array_namespace__()
        per_token = xp.asarray(self.seconds_per_token, xp.float32)
        per_byte = xp.asarray(self.seconds_per_byte, xp.float32)
        return tokens.astype(xp.float32) * per_token - nbytes * per_byte

    def after_run(
        self, tokens: int, seconds: float, *, weight: float = _NEWEST
    ) -> "CostModel":
        """The model after a prefill was measured.

        Args:
          tokens: positions that were run, >= 1.  Give prefill chunks of the usual
            width: a decode step runs one position at a rate of its own.
          seconds: how long they took, until the result was there.
          weight: of this measurement against all earlier ones, above 0, at most 1.

        Raises:
          ValueError: for arguments outside these ranges.
        """
        rate = _measured(tokens, seconds, weight)
        return dataclasses.replace(
            self, seconds_per_token=_mixed(self.seconds_per_token, rate, weight)
        )

    def after_load(
        self, nbytes: int, seconds: float, *, weight: float = _NEWEST
    ) -> "CostModel":
        """The model after a load from the outer tier was measured.

        Args:
          nbytes: bytes that were loaded, >= 1.
          seconds: from asking for them until they could be read on the device.
          weight: of this measurement against all earlier ones, above 0, at most 1.

        Raises:
          ValueError: for arguments outside these ranges.
        """
        rate = _measured(nbytes, seconds, weight)
        return dataclasses.replace(
            self, seconds_per_byte=_mixed(self.seconds_per_byte, rate, weight)
        )


def _measured(amount: int, seconds: float, weight: float) -> float:
    if amount < 1 or not 0 <= seconds < math.inf or not 0 < weight <= 1:
        raise ValueError(
            f"A measurement needs an amount >= 1, finite seconds >= 0 and a weight "
            f"above 0 and at most 1, got {amount}, {seconds} and {weight}."
        )
    return seconds / amount


def _mixed(old: float | AnyArray, new: float, weight: float) -> float:
    return (1 - weight) * float(old) + weight * new
