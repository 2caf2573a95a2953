"""The tier in host memory: bounded, the longest unused goes first, never by a clock.

Every pool has places of its own, as it has blocks of its own on the device.  A place
has facts like a block: what it holds, who wrote it, and an epoch that grows whenever
it is handed out or dropped, so an old claim never meets a new content.
"""

import bisect
import dataclasses
import functools

import numpy as np

from hybridcache_jax.byte_sizes import parse_bytes
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Stage
from hybridcache_jax.forms import Form
from hybridcache_jax.offload.payload import Payload

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


class HostTier:
    """Blocks in host memory, for one ``PrefixCache``.

    Attributes:
      plan: the plan of its caches.
      places: facts about the places of each pool.
      tokens: stored tokens of which it holds what is kept, and the index the claims.
      taken: whether a ``PrefixCache`` has it; another one drops what it cannot claim.
    """

    def __init__(self, plan: CapacityPlan, *, budget: int | str):
        """An empty tier for caches of one plan.

        Args:
          plan: the plan of the caches whose blocks it takes.
          budget: bytes, or text such as ``"8GiB"``; divided so that all pools can hold
            what the plan's retention policies keep of the same number of tokens, and
            the index the claims of those.

        Raises:
          ValueError: for a budget that cannot be read, or too small for one grid unit.
        """
        # A grid unit of history takes more than a byte; nobody has more of them.
        limit, grid = min(parse_bytes(budget), 2**62), plan.spec.grid

        size = functools.partial(tier_bytes, plan)
        grids = bisect.bisect_right(range(limit + 1), limit, key=size) - 1
        if grids < 1:
            raise ValueError(
                f"A tier of {budget} holds not even what {grid} stored tokens keep, "
                f"which takes {size(1)} bytes; raise its budget."
            )
        for count, more in zip(plan.blocks, places_for(plan, grids), strict=True):
            if count + 1 + more >= 2**31:
                raise ValueError(
                    f"A tier of {budget} has {more} places beside a pool of {count} "
                    "blocks, more than int32 can name; lower its budget."
                )
        self.plan = plan
        self.tokens = grids * grid
        self.places = tuple(map(_empty, places_for(plan, grids)))
        self._payloads: list[dict[int, Payload]] = [{} for _ in plan.spec.pools]
        self._clock = 0
        self.taken = False

    @property
    def nbytes(self) -> int:
        """Bytes of the payloads it holds."""
        return sum(p.nbytes for held in self._payloads for p in held.values())

    def store(
        self,
        pool: int,
        payload: Payload,
        *,
        version: int,
        provenance: int,
        first: int,
        needed: np.ndarray,
    ) -> int | None:
        """Takes a block in; drops the longest unused one if it must.

        Args:
          pool: index of the pool.
          payload: the block.
          version: id of the identity that wrote it.
          provenance: ``codes.Provenance`` of the block.
          first: first token position.
          needed: ``[Q]`` bool, places that a pending load will read; they stay.

        Returns:
          The place, or None if every place is needed.
        """
        table = self.places[pool]
        free = np.flatnonzero(table.stage == Stage.FREE)
        if not len(free):
            candidates = np.flatnonzero(~needed)
            if not len(candidates):
                return None
            # What is set aside first; among equals of age the highest position, so that
            # a chain loses its end before its beginning.
            order = np.lexsort(
                (
                    -table.first[candidates],
                    table.used[candidates],
                    table.stage[candidates] != Stage.QUARANTINED,
                )
            )
            free = candidates[order[:1]]
            self.drop(pool, free)
        place = int(free[0])
        self._clock += 1
        table.stage[place] = Stage.ON_DISK
        table.form[place] = Form.ON_DISK_PREFIX
        table.version[place] = version
        table.provenance[place] = provenance
        table.first[place] = first
        table.epoch[place] += 1
        table.used[place] = self._clock
        self._payloads[pool][place] = payload
        return place

    def read(self, pool: int, place: int) -> Payload | None:
        """The payload of a place; None while it is still on its way.

        Raises:
          KeyError: if the place holds nothing.
        """
        self._clock += 1
        self.places[pool].used[place] = self._clock
        return self._payloads[pool][place]

    def drop(self, pool: int, places: np.ndarray) -> None:
        """Forgets what places hold; their epochs grow.  Free ones stay as they are."""
        table = self.places[pool]
        places = places[table.stage[places] != Stage.FREE]
        table.stage[places] = Stage.FREE
        table.form[places] = Form.NONE
        table.first[places] = -1
        table.epoch[places] += 1
        for place in places.tolist():
            self._payloads[pool].pop(place, None)

    def quarantine(self, pool: int, place: int) -> None:
        """Sets a place aside that failed verification: no plan counts on it again."""
        self.places[pool].stage[place] = Stage.QUARANTINED
        self._payloads[pool].pop(place, None)


def places_for(plan: CapacityPlan, grids: int) -> list[int]:
    """Per pool, blocks that so many grid units of stored tokens keep."""
    tokens = grids * plan.spec.grid
    return [plan.stored_blocks(pool, tokens) for pool in range(len(plan.blocks))]


def tier_bytes(plan: CapacityPlan, grids: int) -> int:
    """Bytes of a tier with places for so many grid units, its claims included."""
    counts = places_for(plan, grids)
    sizes = (pool.block_bytes + _FACT_BYTES for pool in plan.spec.pools)
    places = sum(count * size for count, size in zip(counts, sizes, strict=True))
    return places + plan.index_bytes(grids * plan.spec.grid)


def _empty(count: int) -> Places:
    def zeros():
        return np.zeros(count, np.int32)

    return Places(
        stage=np.full(count, int(Stage.FREE), np.int32),
        form=zeros(),
        version=zeros(),
        provenance=zeros(),
        epoch=zeros(),
        first=np.full(count, -1, np.int32),
        used=np.zeros(count, np.int64),
    )
