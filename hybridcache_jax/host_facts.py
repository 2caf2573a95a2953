"""The facts of one moment, on the host: blocks of the device and places outside it."""

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from hybridcache_jax.codes import Provenance
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.state import StateTable
from hybridcache_jax.validate import facts, readable

if TYPE_CHECKING:
    from hybridcache_jax.offload.host_tier import HostTier


class Columns(NamedTuple):
    """What of a pool's facts decides whether a claim is true, ``[P]`` each."""

    stage: np.ndarray
    form: np.ndarray
    epoch: np.ndarray
    version: np.ndarray
    provenance: np.ndarray
    first: np.ndarray


_columns = operator.attrgetter(*Columns._fields)


class HostFacts:
    """What claims are checked against.

    A claim names a block by an id below ``P``, and a place of the outer tier by
    ``P + 1 + place``; ``P`` itself is nothing, as everywhere.
    """

    def __init__(
        self,
        spec: CacheSpec,
        tables: tuple[StateTable, ...],
        tier: "HostTier | None" = None,
    ):
        """Takes the facts as they are.

        Args:
          spec: pools, in the order of the others.
          tables: facts of blocks; each pool's are fetched when it is asked about.
          tier: the outer tier, if there is one.
        """
        self._spec = spec
        self._tables = tables
        self._columns: dict[int, Columns] = {}
        self._tier = tier

    def hold(
        self,
        pool: int,
        ids: np.ndarray,
        epochs: np.ndarray,
        version: np.int32,
        first: np.ndarray,
        provenance: Provenance,
    ) -> bool:
        """Whether every claim can be read on the device now.

        Args: as for :meth:`reasons`.
        """
        claim = self._claim(pool, version, provenance)
        return bool(self._readable(pool, ids, epochs, first, claim).all())

    def reasons(
        self,
        pool: int,
        ids: np.ndarray,
        epochs: np.ndarray,
        version: np.int32,
        first: np.ndarray,
        provenance: Provenance,
    ) -> np.ndarray:
        """Why each claim does not count; all ``OK`` in the common case.

        Args:
          pool: index of the pool.
          ids: ``[N]`` int32 claimed blocks or places.
          epochs: ``[N]`` int32 they were claimed with.
          version: identity that must have written them.
          first: ``[N]`` int32 first token positions.
          provenance: the least that counts.

        Returns:
          ``[N]`` int32 ``codes.Reason``.
        """
        claim, table = self._claim(pool, version, provenance), self._facts(pool)
        good = self._readable(pool, ids, epochs, first, claim)
        found = np.zeros(len(ids), np.int32)
        if good.all():
            return found
        bad = np.flatnonzero(~good)
        found[bad] = facts(table, ids[bad], epochs[bad], first=first[bad], **claim)
        if self._tier is not None:
            place, away = self._outside(pool, ids[bad])
            out, places = bad[away], self._tier.places[pool]
            found[out] = facts(
                places, place[away], epochs[out], first=first[out], **claim
            )
        return found

    def stored(self, pool: int, ids: np.ndarray) -> np.ndarray:
        """Which claims name a place whose block lies in the store and not in memory.

        Args:
          pool: index of the pool.
          ids: ``[N]`` int32 claimed blocks or places.

        Returns:
          ``[N]`` bool; whether a claim is true is another question.
        """
        found = np.zeros(len(ids), bool)
        if self._tier is not None:
            place, away = self._outside(pool, ids)
            found[away] = self._tier.only_stored(pool)[place[away]]
        return found

    def _outside(self, pool: int, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids as places, and which of them are ones of the tier."""
        assert self._tier is not None
        place = ids - (len(self._facts(pool).stage) + 1)
        return place, (place >= 0) & (place < len(self._tier.places[pool].stage))

    def _readable(
        self,
        pool: int,
        ids: np.ndarray,
        epochs: np.ndarray,
        first: np.ndarray,
        claim: dict[str, Any],
    ) -> np.ndarray:
        return readable(self._facts(pool), ids, epochs, first=first, **claim)

    def _facts(self, pool: int) -> Columns:
        """One pool's facts as NumPy arrays; waits for the last step to finish."""
        if pool not in self._columns:
            columns = _columns(self._tables[pool])
            self._columns[pool] = Columns(*map(np.asarray, columns))
        return self._columns[pool]

    def _claim(
        self, pool: int, version: np.int32, provenance: Provenance
    ) -> dict[str, Any]:
        return {
            "form": self._spec.pools[pool].form,
            "version": version,
            "provenance": np.int32(provenance),
        }


def snapshot(tables: tuple[StateTable, ...]) -> tuple[StateTable, ...]:
    """The facts as NumPy arrays; waits for the last step to finish.

    They may be views of device memory: drop them before the cache is donated.
    """
    return jax.tree.map(np.asarray, tables)
