"""Facts about the places of an outer tier, and how many of them a budget pays for."""

import dataclasses

import numpy as np

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Stage
from hybridcache_jax.forms import Form

# Per place six int32 facts, an int64 age, and a digest.
_FACT_BYTES = 6 * 4 + 8 + 16


@dataclasses.dataclass
class Places:
    """Facts about the places of one pool, ``[Q]`` each; named as in ``StateTable``."""

    stage: np.ndarray  # int32, codes.Stage: FREE, ON_DISK or QUARANTINED
    form: np.ndarray  # int32, ON_DISK_PREFIX; NONE while free
    version: np.ndarray  # int32
    provenance: np.ndarray  # int32, codes.Provenance
    epoch: np.ndarray  # int32
    first: np.ndarray  # int32, first token position; -1 while free
    used: np.ndarray  # int64, logical age

    @classmethod
    def empty(cls, count: int) -> "Places":
        """So many free places."""

        def zeros():
            return np.zeros(count, np.int32)

        return cls(
            stage=np.full(count, int(Stage.FREE), np.int32),
            form=zeros(),
            version=zeros(),
            provenance=zeros(),
            epoch=zeros(),
            first=np.full(count, -1, np.int32),
            used=np.zeros(count, np.int64),
        )

    def hand_out(
        self,
        place: int | np.ndarray,
        *,
        version: int,
        provenance: int,
        first: int | np.ndarray,
        now: int,
    ) -> None:
        """Free places, one or several, hold blocks from here on."""
        self.stage[place] = Stage.ON_DISK
        self.form[place] = Form.ON_DISK_PREFIX
        self.version[place] = version
        self.provenance[place] = provenance
        self.first[place] = first
        self.epoch[place] += 1
        self.used[place] = now

    def free(self, places: np.ndarray) -> None:
        """Places, none of them free, hold nothing from here on; their epochs grow."""
        self.stage[places] = Stage.FREE
        self.form[places] = Form.NONE
        self.first[places] = -1
        self.epoch[places] += 1

    def longest_unused(self, candidates: np.ndarray) -> np.ndarray:
        """Places in the order in which they go.

        Args:
          candidates: ``[n]``.

        Returns:
          The same ``[n]``.
        """
        # What is set aside first; among equals of age the highest position, so that a
        # chain loses its end before its beginning.
        order = np.lexsort(
            (
                -self.first[candidates],
                self.used[candidates],
                self.stage[candidates] != Stage.QUARANTINED,
            )
        )
        return candidates[order]


def places_for(plan: CapacityPlan, grids: int) -> list[int]:
    """Per pool, blocks that so many grid units of stored tokens keep."""
    tokens = grids * plan.spec.grid
    return [plan.stored_blocks(pool, tokens) for pool in range(len(plan.blocks))]


def tier_bytes(plan: CapacityPlan, grids: int, known: int = 0) -> int:
    """Bytes of a tier that holds so many grid units and knows of some more.

    Args:
      plan: the plan of its caches.
      grids: grid units whose blocks it holds.
      known: grid units of which it has places, and their claims, beside those.
    """
    held, total = places_for(plan, grids), places_for(plan, grids + known)
    pools = plan.spec.pools
    blocks = sum(n * pool.block_bytes for n, pool in zip(held, pools, strict=True))
    claims = plan.index_bytes((grids + known) * plan.spec.grid)
    return blocks + sum(total) * _FACT_BYTES + claims
