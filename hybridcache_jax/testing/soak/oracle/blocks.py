"""Blocks of the device as the oracle has them: which are in use, how many are free."""

from collections.abc import Sequence

from hybridcache_jax.codes import Stage
from hybridcache_jax.testing.soak.oracle.ledger import Block, Pool, Who


class Blocks:
    """All pools.

    Attributes:
      pools: their sizes.
      room: per pool, free blocks.
      at: per pool, the blocks in use by their place; new ones are not there before the
        machine has read which place they were handed.
    """

    def __init__(self, pools: Sequence[Pool]):
        """Everything is free."""
        self.pools = tuple(pools)
        self.room = [pool.count for pool in pools]
        self.at: list[dict[int, Block]] = [{} for _ in pools]

    def new(self, pool: int, number: int, who: Who) -> Block:
        """A block that a row begins to write."""
        self.room[pool] -= 1
        return Block(pool, number, who)

    def take_in(self, block: Block) -> None:
        """A block that came from elsewhere and knows its place."""
        self.room[block.pool] -= 1
        self.at[block.pool][block.id] = block

    def freed(self, going: Sequence[Block]) -> int:
        """How many become free when each mention is let go of."""
        return sum(
            going.count(block) == block.pins and not (block.kept and block.readable)
            for block in set(going)
        )

    def let_go(self, block: Block) -> None:
        """Takes one pin; frees what nobody holds any more."""
        gone = self.freed([block])
        block.pins -= 1
        if gone:
            self.free(block)

    def free(self, block: Block) -> None:
        """Gives a block away."""
        block.stage = Stage.FREE
        self.at[block.pool].pop(block.id, None)
        self.room[block.pool] += 1

    def evictable(self, pool: int) -> set[int]:
        """Places of the blocks that an eviction may take."""
        return {n for n, block in self.at[pool].items() if block.evictable}

    def evicting(self) -> list[Block]:
        """Blocks of evictions that were begun and not finished."""
        return [
            block
            for blocks in self.at
            for block in blocks.values()
            if block.stage == Stage.EVICTING
        ]
