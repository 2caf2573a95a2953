"""Rows in plain Python: what they are handed, run, share and let go of."""

from collections.abc import Sequence

from hybridcache_jax.codes import Stage, Status
from hybridcache_jax.retention import Keep
from hybridcache_jax.testing.soak.oracle.blocks import Blocks
from hybridcache_jax.testing.soak.oracle.ledger import Block, Expected, Row
from hybridcache_jax.testing.toy import Model


class Rows:
    """All rows that somebody has.

    Attributes:
      blocks: what they refer to.
      rows: in the order in which they came.
    """

    def __init__(self, model: Model, blocks: Blocks):
        """Nobody has a row."""
        self.blocks = blocks
        self.rows: list[Row] = []
        self._grid, self._longest = model.grid, model.max_length
        self._rollback = model.plan.rollback

    def admit(self, plan: Expected) -> Row | None:
        """A row under a plan; None if a block it needs is there no more."""
        wanted = plan.wanted(self.blocks.pools)
        blocks: list[dict[int, Block]] = [{} for _ in wanted]
        for mine, part in zip(blocks, wanted, strict=True):
            for number, block in part.items():
                if block is None or not block.readable:
                    return None
                mine[number] = block
        since, held = [], []
        for index, pool in enumerate(self.blocks.pools):
            rebuilt = plan.start < plan.point and not pool.grows
            since.append(plan.start if rebuilt and index not in plan.kept else 0)
            held.append(plan.start if rebuilt else plan.point)
        for part in blocks:
            for block in part.values():
                block.pins += 1
        row = Row(
            who=plan.who,
            tokens=list(plan.prompt[: plan.start]),
            point=plan.point,
            known=plan.point,
            prompt=plan.prompt[: plan.point],
            asked=len(plan.prompt),
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
        if row.stale:
            return Status.STALE
        again = row.prompt[length : row.known][: len(tokens)]
        if tuple(tokens[: len(again)]) != tuple(again):
            return Status.OTHER_TOKEN
        if length + len(tokens) > self._longest:
            return Status.TOO_LONG
        return Status.OK

    def _trim(self, row: Row) -> None:
        """Lets go of what neither the next token, a rollback nor an end requires."""
        back = max(row.length - self._rollback, 0)
        for index, pool in enumerate(self.blocks.pools):
            if pool.grows:
                continue
            kept = back - back % self._grid if pool.policy.keep is Keep.ENDS else back
            lo, _ = pool.kind.required(pool.part, kept)
            for number in [n for n in row.blocks[index] if (n + 1) * pool.size <= lo]:
                self.blocks.let_go(row.blocks[index].pop(number))

    def _run(self, row: Row, tokens: list[int]) -> Status:
        begin, end = row.length, row.length + len(tokens)
        wants = []
        for index, pool in enumerate(self.blocks.pools):
            touched = range(begin // pool.size, (end - 1) // pool.size + 1)
            if pool.exact:
                touched = touched[-1:]
            wants.append([n for n in touched if n not in row.blocks[index]])
        if any(
            len(want) > room for want, room in zip(wants, self.blocks.room, strict=True)
        ):
            return Status.NO_ROOM
        row.tokens += tokens
        for index, pool in enumerate(self.blocks.pools):
            for number in wants[index]:
                row.blocks[index][number] = self.blocks.new(index, number, row.who)
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
                self.blocks.let_go(block)
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
        for index in range(len(self.blocks.pools)):
            going = [b for row in ended for b in row.blocks[index].values()]
            open_blocks = [self._open(rows[place], index) for place in further]
            needs = sum(block is not None for block in open_blocks)
            if needs > self.blocks.room[index] + self.blocks.freed(going):
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
        number = (row.length - 1) // self.blocks.pools[index].size
        block = row.blocks[index].get(number)
        return number if block and block.stage == Stage.WRITING else None

    def _twin(self, row: Row) -> Row:
        child = row.twin()
        for index in range(len(self.blocks.pools)):
            open_block = self._open(row, index)
            for number, block in row.blocks[index].items():
                if block.stage != Stage.WRITING:
                    block.pins += 1
                elif number == open_block:
                    child.blocks[index][number] = self.blocks.new(
                        index, number, row.who
                    )
                else:
                    del child.blocks[index][number]
        self.rows.append(child)
        return child

    def can_rewind(self, row: Row, length: int) -> bool:
        """Whether all that resuming at a length requires is still there."""
        if row.stale or not 0 <= length <= row.length:
            return False
        if any(row.since) and 0 < length < row.known:
            return False
        for index, pool in enumerate(self.blocks.pools):
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
        for index, pool in enumerate(self.blocks.pools):
            going, again = [], []
            for row, length in moving:
                for number, block in row.blocks[index].items():
                    if number * pool.size >= length:
                        going.append(block)
                    elif number == length // pool.size and block.readable:
                        again.append(block)
            if len(again) > self.blocks.room[index] + self.blocks.freed(going + again):
                return Status.NO_ROOM
        for row, length in moving:
            self._cut(row, length)
        return Status.OK

    def _cut(self, row: Row, length: int) -> None:
        for index, pool in enumerate(self.blocks.pools):
            blocks = row.blocks[index]
            for number in [n for n in blocks if n * pool.size >= length]:
                self.blocks.let_go(blocks.pop(number))
            number = length // pool.size
            if number in blocks and blocks[number].readable:
                self.blocks.let_go(blocks[number])
                blocks[number] = self.blocks.new(index, number, row.who)
            row.held[index] = min(row.held[index], length)
            if not length:
                row.since[index] = 0
        del row.tokens[length:]
        row.known = min(row.known, length)
        row.point = min(row.point, length - length % self._grid)

    def set_aside(self, row: Row) -> None:
        """Quarantines the finished blocks of a row; rows that share one are stale."""
        for blocks in row.blocks:
            for block in blocks.values():
                if block.readable:
                    block.stage, block.kept = Stage.QUARANTINED, False
