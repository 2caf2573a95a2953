"""The facts of one moment, on the host: blocks of the device and places outside it."""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from hybridcache_jax.codes import Provenance
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.state import StateTable
from hybridcache_jax.validate import facts, readable

if TYPE_CHECKING:
    from hybridcache_jax.offload.places import Places


class Columns(NamedTuple):
    """What of a pool's facts decides whether a claim is true, ``[P]`` each."""

    stage: np.ndarray
    form: np.ndarray
    epoch: np.ndarray
    version: np.ndarray
    provenance: np.ndarray
    first: np.ndarray


class HostFacts:
    """What claims are checked against.

    A claim names a block by an id below ``P``, and a place of the outer tier by
    ``P + 1 + place``; ``P`` itself is nothing, as everywhere.
    """

    def __init__(
        self,
        spec: CacheSpec,
        tables: tuple[StateTable, ...],
        places: "tuple[Places, ...] | None" = None,
    ):
        """Takes the facts as they are.

        Args:
          spec: pools, in the order of the others.
          tables: facts of blocks; each pool's are fetched when it is asked about.
          places: facts of the outer tier, if there is one.
        """
        self._spec = spec
        self._tables = tables
        self._columns: dict[int, Columns] = {}
        self._places = places

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
        if self._places is not None:
            place = ids[bad] - (len(table.stage) + 1)
            away = (place >= 0) & (place < len(self._places[pool].stage))
            out = bad[away]
            found[out] = facts(
                self._places[pool], place[away], epochs[out], first=first[out], **claim
            )
        return found

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
            table = self._tables[pool]
            columns = (np.asarray(getattr(table, name)) for name in Columns._fields)
            self._columns[pool] = Columns(*columns)
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
