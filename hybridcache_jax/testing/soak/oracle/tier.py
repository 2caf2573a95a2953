"""Places outside of the device as the oracle has them: in memory, in a store, or both.

A block that moves out becomes another object, with the place it was handed there; so
does one that comes back.  Which places those are is told by the machine.
"""

from collections.abc import Sequence

from hybridcache_jax.codes import Stage
from hybridcache_jax.testing.soak.oracle.blocks import Blocks
from hybridcache_jax.testing.soak.oracle.ledger import Block, Who


class Tier:
    """Of each pool some places, and memory for some blocks.

    Attributes:
      at: per pool, the blocks that lie there by place.
      moves: per pool, where the cache moved what, by what claims call the places.
      claimed: per pool, the places that were last handed to blocks of the store.
      refused: packs of which a block was not what it should be.
    """

    def __init__(self, blocks: Blocks, places: Sequence[int], memory: Sequence[int]):
        """Nothing lies there.

        Args:
          blocks: of the device.
          places: per pool, how many.
          memory: per pool, blocks that are held in memory at once.
        """
        self._blocks, self._places, self._memory = blocks, places, memory
        self.at: list[dict[int, Block]] = [{} for _ in places]
        self.moves: list[dict[int, int]] = [{} for _ in places]
        self.claimed: list[list[int]] = [[] for _ in places]
        self.refused: set[str] = set()
        self._clock = 0

    def take(self, going: Sequence[Block], needed: set[int]) -> None:
        """Blocks of one pool move out, as far as there is room.

        Args:
          going: the blocks.
          needed: places that a load will read; they stay.
        """
        for block in going:
            held = self._make_place(block.pool, needed)
            held = held and self._make_memory(block.pool, needed)
            pack = self.pack(block)
            if not held and not (pack and self._make_room(block.pool, 1, needed)):
                continue
            name = self.moved(block, block.id)
            away = block.moved(Stage.ON_DISK, name - self.first(block))
            away.held, away.pack = held, pack
            if not held:
                self.claimed[block.pool].remove(away.id)
            self.touch(away)
            self.at[block.pool][away.id] = away

    def claim(
        self,
        pool: int,
        who: Who,
        prompt: tuple[int, ...],
        wanted: Sequence[tuple[int, str]],
        needed: set[int],
    ) -> list[Block]:
        """Places for blocks of a prompt that lie in the store, as far as there are any.

        Args:
          pool: their pool.
          who: who asks.
          prompt: the tokens of all of them.
          wanted: the number of each, and its pack.
          needed: places that a load will read; they stay.
        """
        count, told = self._make_room(pool, len(wanted), needed), self.claimed[pool]
        self._clock += 1
        size, found = self._blocks.pools[pool].size, []
        for number, pack in wanted[:count]:
            block = Block(pool, number, who, Stage.ON_DISK, pins=0, used=self._clock)
            block.tokens, block.pack = prompt[: (number + 1) * size], pack
            block.id = told.pop(0) if told else -1
            self.at[pool][block.id] = block
            found.append(block)
        return found

    def forget(self, named: set[Block]) -> None:
        """What nothing claims is dropped; what was set aside stays."""
        for held in self.at:
            for block in list(held.values()):
                if block.loadable and block not in named:
                    self.drop(block)

    def drop(self, block: Block) -> None:
        """Its place holds nothing."""
        block.stage = Stage.FREE
        del self.at[block.pool][block.id]

    def quarantine(self, block: Block) -> None:
        """It failed, and with it what lies in the same pack and nowhere else."""
        if block.pack and not block.held:
            self.refuse(block.pack)
        block.stage, block.held, block.pack = Stage.QUARANTINED, False, ""

    def refuse(self, pack: str) -> None:
        """Nothing lies in a pack any more."""
        self.refused.add(pack)
        for held in self.at:
            for block in held.values():
                if block.pack == pack:
                    block.pack = ""
                    if not block.held:
                        block.stage = Stage.QUARANTINED

    def pack(self, block: Block) -> str:
        """Where it lies in the store; empty if nowhere that counts."""
        return "" if block.pack in self.refused else block.pack

    def touch(self, block: Block) -> None:
        """It is in use."""
        self._clock += 1
        block.used = self._clock

    def moved(self, block: Block, name: int) -> int:
        """Where the cache moved it; -1, which is found out, if it did not."""
        return self.moves[block.pool].pop(name, -1)

    def first(self, block: Block) -> int:
        """What claims call the first place of its pool."""
        return self._blocks.pools[block.pool].count + 1

    def _make_place(self, pool: int, needed: set[int]) -> bool:
        """Drops the longest unused if it must; whether there is a place now."""
        held = self.at[pool]
        if len(held) < self._places[pool]:
            return True
        free = [block for n, block in held.items() if n not in needed]
        for block in sorted(free, key=_age)[:1]:
            self.drop(block)
        return bool(free)

    def _make_memory(self, pool: int, needed: set[int]) -> bool:
        """Gives up that of the longest unused if it must; whether there is any."""
        held = [block for block in self.at[pool].values() if block.held]
        if len(held) < self._memory[pool]:
            return True
        free = [block for block in held if block.id not in needed]
        for block in sorted(free, key=_age)[:1]:
            block.held = False
            if not block.pack:
                self.drop(block)
        return bool(free)

    def _make_room(self, pool: int, count: int, needed: set[int]) -> int:
        """How many places there are, of so many, for blocks that lie in the store."""
        held = self.at[pool]
        short = max(0, count - (self._places[pool] - len(held)))
        free = [
            block
            for n, block in held.items()
            if n not in needed and (block.pack or not block.loadable)
        ]
        going = sorted(free, key=_age)[:short]
        for block in going:
            self.drop(block)
        return count - short + len(going)


def _age(block: Block) -> tuple[bool, int, int]:
    """What was set aside goes first, then the longest unused from the end."""
    return block.loadable, block.used, -block.number
