"""The whole façade in plain Python: what every operation must do, and what is held.

Nothing of the library decides anything here: plans come from a search over all resume
points, blocks are objects, claims a dictionary.  The one thing that is taken from the
cache is policy: which place a block was handed, and which blocks an eviction chose.
"""

from collections.abc import Callable, Sequence

from hybridcache_jax.codes import Stage, Status
from hybridcache_jax.testing.soak.ledger import Block, Expected, Row, Who, pools_of
from hybridcache_jax.testing.toy import Model
from hybridcache_jax.testing.toy_kinds import expected_plan

Unit = tuple[Who, tuple[int, ...]]
Claim = tuple[Who, int, int, tuple[int, ...]]


class Oracle:
    """The state that a cache and its store must be in."""

    def __init__(self, model: Model):
        """An empty cache of a toy."""
        self.model = model
        self.pools = pools_of(model)
        self.room = [pool.count for pool in self.pools]
        self.blocks: list[dict[int, Block]] = [{} for _ in self.pools]
        self.rows: list[Row] = []
        self._claims: dict[Claim, Block] = {}
        self._units: set[Unit] = set()
        self._essential = [n for n, pool in enumerate(self.pools) if pool.grows]

    @property
    def prunes(self) -> bool:
        """Whether holes end a stored prefix: a form is kept that no replay rebuilds."""
        return bool(self._essential)

    # Claims.

    def expected(self, who: Who, prompt: Sequence[int]) -> Expected:
        """The plan for a prompt, found by trying every resume point."""
        prompt, grid = tuple(prompt), self.model.grid
        common = 0
        while (who, prompt[: common + grid]) in self._units and common < len(prompt):
            common += grid
        claims = tuple(
            tuple(
                self._claims.get(self._claim(who, pool, number, prompt))
                for number in range(common // self.pools[pool].size)
            )
            for pool in range(len(self.pools))
        )
        there = [
            {n for n, block in enumerate(blocks) if block and block.readable}
            for blocks in claims
        ]
        held = {
            where: there[number]
            for number, pool in enumerate(self.pools)
            for where in pool.where
        }
        verdict, point, start = expected_plan(self.model, len(prompt), common, held)
        last = max(len(prompt) - 1, 0)
        claimed = min(common, last - last % grid)
        return Expected(
            verdict=verdict,
            point=point,
            start=start,
            claimed=claimed,
            held=tuple(
                set(pool.required(claimed)) <= there[number]
                for number, pool in enumerate(self.pools)
            ),
            claims=claims,
            who=who,
            prompt=prompt,
        )

    def publish(self, row: Row) -> bool:
        """Claims what a row ran; whether there was anything to claim."""
        whole = row.length - row.length % self.model.grid
        if whole <= row.point or not row.who.shares:
            return False
        tokens = tuple(row.tokens)
        for end in range(self.model.grid, whole + 1, self.model.grid):
            self._units.add((row.who, tokens[:end]))
        points = range(row.point + self.model.grid, whole + 1, self.model.grid)
        taken = [p for p in points if self._checkpointed(row, p)]
        for index, pool in enumerate(self.pools):
            accepted = []
            for number in range(whole // pool.size):
                own = None
                if number < row.point // pool.size:
                    own = row.claims[index][number]
                elif pool.grows or any(number in pool.required(p) for p in taken):
                    own = row.blocks[index].get(number)
                claim = self._claim(row.who, index, number, tokens)
                older = self._claims.get(claim)
                # A claim gives way to another one only, never to nothing.
                if own is not None and (older is None or not older.readable):
                    self._claims[claim] = own
                if own and self._claims.get(claim) is own:
                    accepted.append(own)
            # A row refers to its last blocks only.
            for block in accepted[-pool.columns :]:
                block.kept = block.kept or block.readable
        return True

    def drop(self, gone: Callable[[Who], bool]) -> None:
        """Takes back all that is claimed for some; the blocks stay."""
        self._units = {unit for unit in self._units if not gone(unit[0])}
        self._claims = {
            claim: block for claim, block in self._claims.items() if not gone(claim[0])
        }

    def _checkpointed(self, row: Row, point: int) -> bool:
        """Whether a row has what is exact at a point, so that all else is of use."""
        return all(
            point % pool.size == 0
            and (block := row.blocks[index].get(point // pool.size - 1)) is not None
            and block.readable
            for index, pool in enumerate(self.pools)
            if pool.exact
        )

    def _claim(self, who: Who, pool: int, number: int, tokens) -> Claim:
        """A claim belongs to a whole grid unit: prompts part only between units."""
        end, grid = (number + 1) * self.pools[pool].size, self.model.grid
        return who, pool, number, tuple(tokens[: -(-end // grid) * grid])

    # Rows.

    def admit(self, plan: Expected) -> Row | None:
        """A row under a plan; None if a block it needs is there no more."""
        point, start = plan.point, plan.start
        since, held, blocks = [], [], []
        for index, pool in enumerate(self.pools):
            rebuilt = start < point and not pool.grows
            reach = start if rebuilt else point
            numbers = pool.required(reach)
            if rebuilt and not pool.exact:
                numbers = range(0)
            since.append(start if rebuilt and not pool.exact else 0)
            held.append(reach)
            blocks.append({n: plan.claims[index][n] for n in numbers})
        wanted = [block for part in blocks for block in part.values()]
        if not all(block and block.readable for block in wanted):
            return None
        for block in wanted:
            block.pins += 1
        row = Row(
            who=plan.who,
            tokens=list(plan.prompt[:start]),
            point=point,
            known=point,
            prompt=plan.prompt[:point],
            since=since,
            held=held,
            blocks=blocks,
            claims=plan.claims,
        )
        self.rows.append(row)
        return row

    def step(self, parts: Sequence[tuple[Row, Sequence[int]]]) -> list[Status]:
        """Runs tokens; what becomes of each row, in the batch's order."""
        result = [self._refusal(row, tokens) for row, tokens in parts]
        for (row, _), status in zip(parts, result, strict=True):
            if status == Status.OK:
                self._trim(row)
        for place, (row, tokens) in enumerate(parts):
            if result[place] == Status.OK:
                result[place] = self._run(row, list(tokens))
        return result

    def _refusal(self, row: Row, tokens: Sequence[int]) -> Status:
        length = row.length
        if not tokens:
            return Status.IDLE
        again = row.prompt[length : row.known][: len(tokens)]
        if tuple(tokens[: len(again)]) != tuple(again):
            return Status.OTHER_TOKEN
        if length + len(tokens) > self.model.max_length:
            return Status.TOO_LONG
        return Status.OK

    def _trim(self, row: Row) -> None:
        """Lets go of what neither the next token nor a rollback requires."""
        back = max(row.length - self.model.plan.rollback, 0)
        for index, pool in enumerate(self.pools):
            if pool.grows:
                continue
            lo, _ = pool.kind.required(pool.part, back)
            for number in [n for n in row.blocks[index] if (n + 1) * pool.size <= lo]:
                self._let_go(row.blocks[index].pop(number))

    def _run(self, row: Row, tokens: list[int]) -> Status:
        begin, end = row.length, row.length + len(tokens)
        wants = []
        for index, pool in enumerate(self.pools):
            touched = range(begin // pool.size, (end - 1) // pool.size + 1)
            if pool.exact:
                touched = touched[-1:]
            wants.append([n for n in touched if n not in row.blocks[index]])
        if any(len(want) > room for want, room in zip(wants, self.room, strict=True)):
            return Status.NO_ROOM
        row.tokens += tokens
        for index, pool in enumerate(self.pools):
            for number in wants[index]:
                row.blocks[index][number] = self._new(index, number, row.who)
            for number, block in row.blocks[index].items():
                last = (number + 1) * pool.size - 1
                written = begin <= last < end and last >= row.held[index]
                if pool.exact:
                    written = last == end - 1
                if written and block.stage == Stage.WRITING:
                    block.stage = Stage.SEALED
                    block.tokens = tuple(row.tokens[: last + 1])
        return Status.OK

    def release(self, row: Row) -> None:
        """Gives a row back."""
        for blocks in row.blocks:
            for block in blocks.values():
                self._let_go(block)
        self.rows.remove(row)

    def reorder(self, rows: Sequence[Row], parents: Sequence[int]) -> list[Row] | None:
        """Rows by new place; None if a pool has no block for what is being written.

        Args:
          rows: some rows; those that are nobody's parent are released.
          parents: for each new place, the place of its parent in ``rows``.
        """
        ended = [row for place, row in enumerate(rows) if place not in parents]
        further = [
            place for n, place in enumerate(parents) if place in list(parents)[:n]
        ]
        for index in range(len(self.pools)):
            going = [b for row in ended for b in row.blocks[index].values()]
            open_blocks = [self._open(rows[place], index) for place in further]
            needs = sum(block is not None for block in open_blocks)
            if needs > self.room[index] + self._freed(going):
                return None
        for row in ended:
            self.release(row)
        seen, result = set(), []
        for place in parents:
            again = place in seen
            seen.add(place)
            result.append(self._twin(rows[place]) if again else rows[place])
        return result

    def _open(self, row: Row, index: int) -> int | None:
        """Number of the block that a row is writing in a pool."""
        number = (row.length - 1) // self.pools[index].size
        block = row.blocks[index].get(number)
        return number if block and block.stage == Stage.WRITING else None

    def _twin(self, row: Row) -> Row:
        child = row.twin()
        for index in range(len(self.pools)):
            open_block = self._open(row, index)
            for number, block in row.blocks[index].items():
                if block.stage != Stage.WRITING:
                    block.pins += 1
                elif number == open_block:
                    child.blocks[index][number] = self._new(index, number, row.who)
                else:
                    del child.blocks[index][number]
        self.rows.append(child)
        return child

    def can_rewind(self, row: Row, length: int) -> bool:
        """Whether all that resuming at a length requires is still there."""
        if not 0 <= length <= row.length:
            return False
        if any(row.since) and 0 < length < row.known:
            return False
        for index, pool in enumerate(self.pools):
            if length in (0, row.length) and pool.exact:
                continue
            lo, hi = pool.kind.required(pool.part, length)
            lo = max(lo, row.since[index] if length else 0)
            for position in range(lo, hi):
                if position // pool.size not in row.blocks[index]:
                    return False
            if pool.exact:
                block = row.blocks[index].get(length // pool.size - 1)
                if length % pool.size or block is None or not block.readable:
                    return False
        return True

    def rewind(self, moving: Sequence[tuple[Row, int]]) -> Status:
        """All rows as they stood at some lengths, or none of them."""
        if not all(self.can_rewind(row, length) for row, length in moving):
            return Status.NOT_HELD
        for index, pool in enumerate(self.pools):
            going, again = [], []
            for row, length in moving:
                for number, block in row.blocks[index].items():
                    if number * pool.size >= length:
                        going.append(block)
                    elif number == length // pool.size and block.readable:
                        again.append(block)
            if len(again) > self.room[index] + self._freed(going + again):
                return Status.NO_ROOM
        for row, length in moving:
            self._cut(row, length)
        return Status.OK

    def _cut(self, row: Row, length: int) -> None:
        for index, pool in enumerate(self.pools):
            blocks = row.blocks[index]
            for number in [n for n in blocks if n * pool.size >= length]:
                self._let_go(blocks.pop(number))
            number = length // pool.size
            if number in blocks and blocks[number].readable:
                self._let_go(blocks[number])
                blocks[number] = self._new(index, number, row.who)
            row.held[index] = min(row.held[index], length)
            if not length:
                row.since[index] = 0
        del row.tokens[length:]
        row.known = min(row.known, length)
        row.point = min(row.point, length - length % self.model.grid)

    # Blocks.

    def evictable(self, pool: int) -> set[int]:
        """Places of the blocks that an eviction may take."""
        return {n for n, block in self.blocks[pool].items() if block.evictable}

    def evict(self, gone: Sequence[set[int]], wanted: Sequence[int]) -> str:
        """Takes over which blocks an eviction chose; what is wrong with that, if so.

        Args:
          gone: per pool, places that became free.
          wanted: per pool, how many were to go.
        """
        lost = {self.blocks[n][place] for n, ids in enumerate(gone) for place in ids}
        for index, ids in enumerate(gone):
            free = self.evictable(index)
            if not ids <= free:
                return f"pool {index}: {sorted(ids - free)} went, but are in use"
            least = min(wanted[index], len(free))
            # Beyond those that were to go, only what is of no use without the others.
            extra = len(ids) - least
            if extra > 0:
                mine = [self.blocks[index][place] for place in ids]
                extra -= sum(self._is_dead(block, lost - {block}) for block in mine)
            if len(ids) < least or extra > 0:
                return f"pool {index}: {sorted(ids)} went, {least} were to go"
        for block in lost:
            self._free(block)
        self.settle()
        return ""

    def settle(self) -> None:
        """Drops what is stored behind a hole, and blocks that nothing claims."""
        self.forget_units(set())
        named = set(self._true_claims(self._units))
        for blocks in self.blocks:
            for block in list(blocks.values()):
                if block.kept and block not in named:
                    dead = block.evictable
                    block.kept = False
                    if dead:
                        self._free(block)

    def forget_units(self, lost: set[Block]) -> None:
        """Drops claims as if some blocks were lost; the blocks stay."""
        self._units = self._whole(lost)
        self._claims = {
            claim: block
            for claim, block in self._claims.items()
            if (claim[0], claim[3]) in self._units
        }

    def _is_dead(self, block: Block, lost: set[Block]) -> bool:
        return block not in set(self._true_claims(self._whole(lost)))

    def _true_claims(self, units: set[Unit]) -> list[Block]:
        return [
            block
            for claim, block in self._claims.items()
            if block.readable and (claim[0], claim[3]) in units
        ]

    def _whole(self, lost: set[Block]) -> set[Unit]:
        """Units that no hole lies before or in."""
        good, grid = set(), self.model.grid
        for who, tokens in sorted(self._units, key=lambda unit: len(unit[1])):
            end = len(tokens)
            if end > grid and (who, tokens[:-grid]) not in good:
                continue
            claims = (
                self._claims.get((who, pool, number, tokens))
                for pool in self._essential
                for number in range(
                    (end - grid) // self.pools[pool].size, end // self.pools[pool].size
                )
            )
            if all(c and c.readable and c not in lost for c in claims):
                good.add((who, tokens))
        return good

    def _new(self, pool: int, number: int, who: Who) -> Block:
        self.room[pool] -= 1
        return Block(pool, number, who)

    def _freed(self, going: Sequence[Block]) -> int:
        """How many become free when each mention is let go of."""
        return sum(
            going.count(block) == block.pins and not (block.kept and block.readable)
            for block in set(going)
        )

    def _let_go(self, block: Block) -> None:
        gone = self._freed([block])
        block.pins -= 1
        if gone:
            self._free(block)

    def _free(self, block: Block) -> None:
        block.stage = Stage.FREE
        self.blocks[block.pool].pop(block.id, None)
        self.room[block.pool] += 1
