"""What running a token and moving a byte cost: the rates behind every choice."""

import dataclasses
import math
from typing import NamedTuple

import jax
import numpy as np

from hybridcache_jax._typing import AnyArray, Array

# Weight of the newest measurement.
_NEWEST = 0.2

# Bytes of a load that says as much of the bandwidth as of what is fixed: smaller ones
# say more of the latter.
_UNIT = 2**20


class Bytes(NamedTuple):
    """Bytes to load, for many ways at once; ``[K]`` float32 each.

    Attributes:
      total: all of them.
      stored: of blocks that lie in the store and not in host memory.
    """

    total: Array
    stored: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CostModel:
    """What running a token and moving a byte cost, in seconds.

    A run of ``n`` tokens takes ``seconds_per_run + n * seconds_per_token``; a load its
    bytes from host memory and those from the store, each by its rate, and once what a
    load takes however small it is.  With anything from the store that is the store's,
    but no less than without: loading more never is the shorter wait.

    A pytree whose rates are leaves: a compiled function that takes one is not traced
    again when they change.  Rates are learned by folding measurements in, each time
    into a new model.  Those of tokens are exponential moving averages; those of loads
    follow the normalised least mean squares rule (Nagumo and Noda, 1967; Widrow and
    Hoff, 1960), which parts what is fixed from what grows with the bytes as loads of
    several sizes come by.

    Attributes:
      seconds_per_token: inverse of the prefill rate; a float, or ``[]`` float32.
      seconds_per_byte: inverse of the bandwidth from host memory; likewise.
      seconds_per_load: what a load from host memory takes besides.
      store_seconds_per_byte: inverse of the bandwidth from the store.
      store_seconds_per_load: what a load from the store takes besides.
      seconds_per_run: what a run takes besides its tokens: every way has one.
    """

    seconds_per_token: float | AnyArray = 1e-4
    seconds_per_byte: float | AnyArray = 1e-10
    seconds_per_load: float | AnyArray = 0.0
    store_seconds_per_byte: float | AnyArray = 1e-9
    store_seconds_per_load: float | AnyArray = 0.0
    seconds_per_run: float | AnyArray = 0.0

    def __post_init__(self):
        # Leaves under a transformation have no values to check.
        for field in dataclasses.fields(self):
            rate, token = getattr(self, field.name), field.name == "seconds_per_token"
            if not isinstance(rate, int | float | np.number):
                continue
            if not 0 <= rate < math.inf or (token and not rate):
                raise ValueError(
                    f"CostModel needs finite seconds_per_token > 0 and all other rates "
                    f">= 0, got {field.name}={rate}."
                )

    def seconds(self, tokens: int, nbytes: int = 0, from_store: int = 0) -> float:
        """Seconds to load ``nbytes`` and then to run ``tokens``.  On the host.

        Args:
          tokens: positions to run.
          nbytes: bytes to load first.
          from_store: those of them that lie in the store and not in host memory.
        """
        run = float(self.seconds_per_run) + tokens * float(self.seconds_per_token)
        if not nbytes:
            return run
        fixed = float(self.seconds_per_load)
        if from_store:
            fixed = max(fixed, float(self.store_seconds_per_load))
        return run + fixed + self._moved(nbytes, from_store)

    def saved(self, tokens: Array, nbytes: Bytes) -> Array:
        """Seconds saved by not running tokens, less those of the bytes loaded instead.

        Args:
          tokens: ``[K]`` int32, small enough differences to be exact in float32.
          nbytes: ``[K]`` each.

        Returns:
          ``[K]`` float32, before :meth:`latency`.
        """
        xp = tokens.__array_namespace__()
        per_token = xp.asarray(self.seconds_per_token, xp.float32)
        near = xp.asarray(self.seconds_per_byte, xp.float32)
        far = xp.asarray(self.store_seconds_per_byte, xp.float32)
        waited = (nbytes.total - nbytes.stored) * near + nbytes.stored * far
        return tokens.astype(xp.float32) * per_token - waited

    def latency(self, nbytes: Bytes) -> Array:
        """What loads take besides their bytes: ``[K]`` float32."""
        xp = nbytes.stored.__array_namespace__()
        near = xp.asarray(self.seconds_per_load, xp.float32)
        far = xp.asarray(self.store_seconds_per_load, xp.float32)
        return xp.where(nbytes.stored > 0, xp.maximum(near, far), near)

    def after_run(
        self, tokens: int, seconds: float, *, weight: float = _NEWEST
    ) -> "CostModel":
        """The model after a prefill was measured.

        Args:
          tokens: positions that were run, >= 1.  Give prefill chunks of the usual
            width; a decode step runs one position at a rate of its own.
          seconds: how long they took, until the result was there.
          weight: of this measurement against all earlier ones, above 0, at most 1.

        Raises:
          ValueError: for arguments outside these ranges.
        """
        _require(tokens, seconds, weight)
        rate = _mixed(self.seconds_per_token, seconds / tokens, weight)
        return dataclasses.replace(self, seconds_per_token=rate)

    def after_short_run(
        self, tokens: int, seconds: float, *, weight: float = _NEWEST
    ) -> "CostModel":
        """The model after a run of fewer tokens than a chunk was measured.

        What it took beyond its tokens, if it did, is what a run takes besides them.

        Args:
          tokens: as for :meth:`after_run`.
          seconds: from the plan to the result, the admission included.
          weight: as for :meth:`after_run`.

        Raises:
          ValueError: as there.
        """
        _require(tokens, seconds, weight)
        rest = max(seconds - tokens * float(self.seconds_per_token), 0.0)
        rate = _mixed(self.seconds_per_run, rest, weight)
        return dataclasses.replace(self, seconds_per_run=rate)

    def after_load(
        self,
        nbytes: int,
        seconds: float,
        *,
        from_store: int = 0,
        weight: float = _NEWEST,
    ) -> "CostModel":
        """The model after a load from the outer tier was measured.

        Args:
          nbytes: bytes that were loaded, >= 1.
          seconds: from asking for them until they could be read on the device.
          from_store: those of the bytes that lay in the store and not in host memory.
          weight: how much of the difference from what was expected is made up for, were
            the same load to come again; above 0, at most 1.  No rate falls below 0.

        Raises:
          ValueError: for arguments outside these ranges, or more bytes from the store
            than bytes.
        """
        _require(nbytes, seconds, weight)
        if not 0 <= from_store <= nbytes:
            raise ValueError(
                f"A load of {nbytes} bytes has 0 to {nbytes} from the store, got "
                f"from_store={from_store}."
            )
        fixed = "store_seconds_per_load" if from_store else "seconds_per_load"
        # What each rate counts for in this load; bytes in a unit of their own.
        units = {fixed: 1, "seconds_per_byte": _UNIT, "store_seconds_per_byte": _UNIT}
        amounts = 1.0, (nbytes - from_store) / _UNIT, from_store / _UNIT
        error = seconds - float(getattr(self, fixed)) - self._moved(nbytes, from_store)
        step = weight * error / sum(amount**2 for amount in amounts)
        learned = {
            name: max(float(getattr(self, name)) + step * amount / unit, 0.0)
            for (name, unit), amount in zip(units.items(), amounts, strict=True)
        }
        return dataclasses.replace(self, **learned)

    def _moved(self, nbytes: int, from_store: int) -> float:
        """Seconds of bytes alone, by where they lie."""
        near = (nbytes - from_store) * float(self.seconds_per_byte)
        return near + from_store * float(self.store_seconds_per_byte)


def _require(amount: int, seconds: float, weight: float) -> None:
    if amount < 1 or not 0 <= seconds < math.inf or not 0 < weight <= 1:
        raise ValueError(
            f"A measurement needs an amount >= 1, finite seconds >= 0 and a weight "
            f"above 0 and at most 1, got {amount}, {seconds} and {weight}."
        )


def _mixed(old: float | AnyArray, new: float, weight: float) -> float:
    return (1 - weight) * float(old) + weight * new
