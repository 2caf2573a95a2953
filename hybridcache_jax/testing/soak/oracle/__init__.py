"""The whole façade in plain Python: what every operation must do, and what is held.

Nothing of the library decides anything here: plans come from a search over all ways to
resume, blocks are objects, claims a tree of dictionaries.  Taken from the cache are
only which place a block was handed, when it was last in use, and the clock.

``ledger``  blocks, rows and plans as records
``plans``   the cheapest proved way to resume
``blocks``  which blocks are in use
``outer``   what lies in the outer tier, and loads
``store``   claims: publish, evict, forget
``rows``    rows: admit, step, fork, rewind, release
"""

from collections.abc import Callable, Sequence

from hybridcache_jax.testing.soak.oracle.blocks import Blocks
from hybridcache_jax.testing.soak.oracle.ledger import Pool, pools_of
from hybridcache_jax.testing.soak.oracle.outer import Outer
from hybridcache_jax.testing.soak.oracle.plans import Planner
from hybridcache_jax.testing.soak.oracle.rows import Rows
from hybridcache_jax.testing.soak.oracle.store import Store
from hybridcache_jax.testing.toy import Model


class Oracle:
    """The state that a cache, its store and its tier must be in.

    Attributes:
      pools: their sizes.
      blocks: of the device.
      outer: the tier, and loads.
      store: claims.
      rows: leases.
    """

    def __init__(self, model: Model, capacity: Sequence[int], now: Callable[[], int]):
        """Nothing is held.

        Args:
          model: the toy.
          capacity: per pool, places of the outer tier; empty without one.
          now: tells the clock.
        """
        self.pools: tuple[Pool, ...] = pools_of(model)
        self.blocks = Blocks(self.pools)
        self.outer = Outer(self.blocks, capacity or [0] * len(self.pools), now)
        planner = Planner(model, self.pools)
        self.store = Store(self.blocks, model.grid, planner, self.outer)
        self.rows = Rows(model, self.blocks)

    @property
    def prunes(self) -> bool:
        """Whether holes end a stored prefix: a form is kept that no replay rebuilds."""
        return any(pool.grows for pool in self.pools)
