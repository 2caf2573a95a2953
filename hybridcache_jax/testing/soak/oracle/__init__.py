"""The whole façade in plain Python: what every operation must do, and what is held.

Nothing of the library decides anything here: plans come from a search over all ways to
resume, blocks are objects, claims a tree of dictionaries.  Taken from the cache are
only which place a block was handed, when it was last in use, and the clock.

``ledger``  blocks, rows and plans as records
``plans``   the cheapest proved way to resume
``blocks``  which blocks are in use
``tier``    what lies in the outer tier
``outer``   loads
``store``   claims: publish, discover, evict, forget
``rows``    rows: admit, step, fork, rewind, release
``records`` what lies in a store beyond the process, and house-keeping there
``saves``   what was published and is on its way there
"""

from collections.abc import Callable, Sequence

from hybridcache_jax.testing.soak.oracle.blocks import Blocks
from hybridcache_jax.testing.soak.oracle.ledger import Pool, Who, pools_of
from hybridcache_jax.testing.soak.oracle.outer import Outer
from hybridcache_jax.testing.soak.oracle.plans import Planner
from hybridcache_jax.testing.soak.oracle.records import Records, Uses
from hybridcache_jax.testing.soak.oracle.rows import Rows
from hybridcache_jax.testing.soak.oracle.saves import Saves
from hybridcache_jax.testing.soak.oracle.store import Store
from hybridcache_jax.testing.soak.oracle.tier import Tier
from hybridcache_jax.testing.toy import Model


class Oracle:
    """The state that a cache, its claims, its tier and its store must be in.

    Attributes:
      pools: their sizes.
      blocks: of the device.
      tier: of the outer tier.
      outer: loads.
      store: claims.
      rows: leases.
      records: the store; it outlives the others.
      uses: what of it this process used.
      saves: what is on its way there.
    """

    def __init__(
        self,
        model: Model,
        places: Sequence[int],
        memory: Sequence[int],
        now: Callable[[], int],
        records: Records | None = None,
    ):
        """Nothing is held.

        Args:
          model: the toy.
          places: per pool, places of the outer tier; empty without one.
          memory: per pool, blocks that it holds in memory.
          now: tells the clock.
          records: the store, with what other processes left there; None for none.
        """
        self.pools: tuple[Pool, ...] = pools_of(model)
        self.blocks = Blocks(self.pools)
        none = [0] * len(self.pools)
        self.records = records or Records(self.pools, model.grid)
        self.tier = Tier(self.blocks, places or none, memory or none)
        self.outer = Outer(self.blocks, self.tier, self.records, now)
        planner = Planner(model, self.pools)
        self.store = Store(self.blocks, model.grid, planner, self.outer)
        self.rows = Rows(model, self.blocks)
        self.uses = Uses(self.records)
        batch = model.plan.staging_blocks
        self.saves = Saves(self.records, self.store, self.tier, self.uses, batch)
        if records is not None:
            self.store.on_publish = self.saves.published

    @property
    def prunes(self) -> bool:
        """Whether holes end a stored prefix: a form is kept that no replay rebuilds."""
        return any(pool.grows for pool in self.pools)

    def drop(self, gone: Callable[[Who], bool]) -> None:
        """Takes back all that is claimed for some, and what is under way for them."""
        self.store.drop(gone)
        self.saves.give_up(gone)

    def discover(self, who: Who, prompt: Sequence[int]) -> bool:
        """Claims what the store has of a prompt; whether there is a new claim."""
        tokens, reader = tuple(prompt), self.records.reader(who)
        length, chain, _ = self.records.find(reader, tokens)
        _, places = self.records.offered(length, chain, self.tier.refused)
        fresh = self.store.discover(who, tokens, length, places)
        if fresh:
            self.records.used(chain)
        return fresh
