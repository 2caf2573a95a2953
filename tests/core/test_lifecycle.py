"""Transitions of blocks against a slow model: one record per block, by hand."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import eviction, lifecycle
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Stage
from hybridcache_jax.entry import Entry
from hybridcache_jax.forms import Form
from hybridcache_jax.layers import Entries, LayerSpec
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.state import StateTable, init

SIZE, WIDTH = 6, 4
# Ids that refer to nothing: one past the end, far past it, and negative ones, which
# must not wrap around to the last blocks.
PADDING = (SIZE, SIZE + 1, 2**31 - 1, -1, -SIZE, -(2**31))

allocate = jax.jit(functools.partial(lifecycle.allocate, form=Form.SWA_WINDOW))
receive = jax.jit(functools.partial(lifecycle.receive, form=Form.SWA_WINDOW))
register = jax.jit(lifecycle.register)
seal = jax.jit(lifecycle.seal)
pin = jax.jit(lifecycle.pin)
unpin = jax.jit(lifecycle.unpin)
keep = jax.jit(lifecycle.keep)
evict = jax.jit(eviction.evict)
begin = jax.jit(eviction.begin)
finish = jax.jit(eviction.finish)
recover = jax.jit(eviction.recover)
forget = jax.jit(eviction.forget)
quarantine = jax.jit(eviction.quarantine)
account = jax.jit(lifecycle.account)


@functools.cache
def empty() -> StateTable:
    spec = CacheSpec.from_layers(
        [LayerSpec(global_=Entries(Entry.kv(1, 1)))], block_tokens=1
    )
    return init(CapacityPlan(spec, 1, SIZE, 1, (SIZE,), "cpu")).tables[0]


@dataclasses.dataclass
class Block:
    """What is true of one block."""

    stage: Stage = Stage.FREE
    form: Form = Form.NONE
    version: int = 0
    provenance: int = 0
    epoch: int = 0
    pins: int = 0
    kept: bool = False
    first: int = -1
    used: int = 0

    def free(self):
        self.stage, self.form, self.first = Stage.FREE, Form.NONE, -1
        self.pins, self.kept, self.provenance = 0, False, 0
        self.epoch += 1

    @property
    def evictable(self):
        return self.stage == Stage.SEALED and self.kept and self.pins == 0


class Model:
    """The same transitions, one block at a time."""

    def __init__(self):
        self.blocks = [Block() for _ in range(SIZE)]
        self.clock = 0

    def count(self, stage):
        return sum(block.stage == stage for block in self.blocks)

    def unpin(self, ids):
        for number in ids:
            self.blocks[number].pins -= 1
            self.blocks[number].used = self.clock
        for block in (self.blocks[number] for number in set(ids)):
            stays = block.kept and block.stage == Stage.SEALED
            if block.stage != Stage.FREE and block.pins == 0 and not stays:
                block.free()

    def eviction_order(self):
        """Numbers of evictable blocks, longest unused first, then the deepest."""
        numbers = [n for n, block in enumerate(self.blocks) if block.evictable]
        return sorted(
            numbers, key=lambda n: (self.blocks[n].used, -self.blocks[n].first)
        )


def vector(ids, rotation=0):
    """Ids padded to the width, padding at varied places."""
    padded = list(ids) + [
        PADDING[(rotation + place) % len(PADDING)] for place in range(WIDTH - len(ids))
    ]
    shift = rotation % WIDTH
    return jnp.array(padded[shift:] + padded[:shift], jnp.int32)


def check(table: StateTable, model: Model):
    """Table and model agree, and the table's own invariants hold."""
    for field in ("stage", "form", "epoch", "pins", "kept", "first"):
        want = [getattr(block, field) for block in model.blocks]
        assert np.asarray(getattr(table, field)).tolist() == want, field
    for number, block in enumerate(model.blocks):
        if block.stage != Stage.FREE:
            assert int(table.version[number]) == block.version
            assert int(table.provenance[number]) == block.provenance
            assert int(table.used[number]) == block.used
    free = np.asarray(table.free)[: int(table.num_free)].tolist()
    assert len(set(free)) == len(free), "a block lies on the free stack twice"
    assert set(free) == {
        n for n, block in enumerate(model.blocks) if block.stage == Stage.FREE
    }
    counts = {name: int(value) for name, value in account(table).items()}
    total = counts.pop("total")
    assert total == SIZE == sum(counts.values())
    evictable = sum(block.evictable for block in model.blocks)
    assert counts == {
        "free": model.count(Stage.FREE),
        "evictable": evictable,
        "pinned": model.count(Stage.SEALED) - evictable,
        "writing": model.count(Stage.WRITING),
        "quarantined": model.count(Stage.QUARANTINED),
        "moving": model.count(Stage.LOADING) + model.count(Stage.EVICTING),
    }
    assert np.asarray(lifecycle.evictable(table)).tolist() == [
        block.evictable for block in model.blocks
    ]


NUMBERS = st.lists(st.integers(0, SIZE - 1), max_size=WIDTH)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "allocate",
                "allocate",
                "seal",
                "seal",
                "pin",
                "unpin",
                "unpin",
                "keep",
                "keep",
                "receive",
                "register",
                "evict",
                "begin",
                "finish",
                "recover",
                "forget",
                "quarantine",
            ]
        ),
        NUMBERS,
        st.integers(0, 7),
    ),
    min_size=3,
    max_size=30,
)


def step(table, model, name, numbers, amount):
    """One transition on both sides; ``numbers`` is cut to what the caller may ask."""
    blocks = model.blocks
    model.clock += 1
    clock = jnp.int32(model.clock)
    if name in ("allocate", "receive"):
        want = np.array([place in numbers for place in range(WIDTH)])
        first = np.arange(WIDTH, dtype=np.int32) + amount
        version = np.arange(WIDTH, dtype=np.int32) + 10 * amount
        before = {n for n, block in enumerate(blocks) if block.stage == Stage.FREE}
        grade = version % 2
        hand_out = allocate if name == "allocate" else receive
        table, ids = hand_out(
            table, want, version=version, provenance=grade, first=first, clock=clock
        )
        ids = np.asarray(ids).tolist()
        served = [place for place in range(WIDTH) if ids[place] != SIZE]
        # Leading places are served first; nobody else gets anything.
        assert served == np.flatnonzero(want).tolist()[: len(before)]
        taken = [ids[place] for place in served]
        assert len(set(taken)) == len(taken)
        assert set(taken) <= before
        for place in served:
            block = blocks[ids[place]]
            mine = name == "allocate"
            block.stage = Stage.WRITING if mine else Stage.LOADING
            block.form, block.pins, block.kept = Form.SWA_WINDOW, int(mine), False
            block.version, block.first = int(version[place]), int(first[place])
            block.provenance = int(grade[place])
            block.epoch += 1
            block.used = model.clock
    elif name == "seal":
        table = seal(table, vector(numbers, amount))
        for number in numbers:
            if blocks[number].stage == Stage.WRITING:
                blocks[number].stage = Stage.SEALED
    elif name == "register":
        table = register(table, vector(numbers, amount))
        for number in numbers:
            if blocks[number].stage == Stage.LOADING:
                blocks[number].stage, blocks[number].kept = Stage.SEALED, True
    elif name == "pin":
        # Only blocks that somebody may refer to are pinned.
        open_to_readers = (Stage.WRITING, Stage.SEALED)
        numbers = [n for n in numbers if blocks[n].stage in open_to_readers]
        table = pin(table, vector(numbers, amount), clock)
        for number in numbers:
            blocks[number].pins += 1
            blocks[number].used = model.clock
    elif name == "unpin":
        # One receipt per mention.
        granted = []
        for number in numbers:
            if granted.count(number) < blocks[number].pins:
                granted.append(number)
        table = unpin(table, vector(granted, amount), clock)
        model.unpin(granted)
    elif name == "keep":
        table = keep(table, vector(numbers, amount))
        for number in numbers:
            if blocks[number].stage == Stage.SEALED:
                blocks[number].kept = True
    elif name in ("evict", "begin"):
        safe = set(numbers) if name == "begin" else set()
        order = [n for n in model.eviction_order() if n not in safe]
        keys = [(blocks[n].used, -blocks[n].first) for n in order]
        if name == "evict":
            table = evict(table, jnp.int32(amount))
        else:
            table, ids = begin(
                table, jnp.int32(amount), np.isin(np.arange(SIZE), numbers)
            )
        gone = [n for n in order if int(table.stage[n]) != Stage.SEALED]
        assert len(gone) == min(amount, len(order))
        # Equals may go in any order; nobody goes before one that was due.
        assert sorted(keys[order.index(n)] for n in gone) == keys[: len(gone)]
        for number in gone:
            if name == "evict":
                blocks[number].free()
            else:
                blocks[number].stage = Stage.EVICTING
        if name == "begin":
            assert sorted(n for n in np.asarray(ids).tolist() if n != SIZE) == sorted(
                gone
            )
    elif name == "finish":
        # Receipts are finished once; others' ids are ignored.
        numbers = list(dict.fromkeys(numbers))
        table = finish(table, vector(numbers, amount))
        for number in numbers:
            if blocks[number].stage == Stage.EVICTING:
                blocks[number].free()
    elif name == "recover":
        table = recover(table)
        for block in blocks:
            if block.stage == Stage.EVICTING and block.kept:
                block.stage = Stage.SEALED
            elif block.stage == Stage.EVICTING:
                block.free()
    elif name == "forget":
        claimed = np.array([n in numbers for n in range(SIZE)])
        table = forget(table, claimed)
        for number, block in enumerate(blocks):
            if number not in numbers:
                if block.evictable:
                    block.free()
                block.kept = False
    else:
        table = quarantine(table, vector(numbers, amount))
        for number in numbers:
            if blocks[number].stage in (Stage.SEALED, Stage.LOADING):
                blocks[number].stage, blocks[number].kept = Stage.QUARANTINED, False
    return table


@pytest.mark.kind("K23")
@settings(max_examples=120)
@given(STEPS)
def test_any_history_of_transitions_agrees_with_the_model(steps):
    table, model = empty(), Model()
    for name, numbers, amount in steps:
        before = [dataclasses.replace(block) for block in model.blocks]
        table = step(table, model, name, numbers, amount)
        check(table, model)
        for old, new in zip(before, model.blocks, strict=True):
            assert new.stage in {old.stage, *lifecycle.LEGAL[old.stage]}
            handed = (old.stage == Stage.FREE) != (new.stage == Stage.FREE)
            assert new.epoch >= old.epoch
            assert (new.epoch > old.epoch) == handed
            if old.pins:
                assert name == "unpin" or new.stage != Stage.FREE


@settings(max_examples=60)
@given(STEPS)
def test_the_old_table_stays_good(steps):
    """Transitions are functions: the value before them does not change."""
    table, model = empty(), Model()
    history = []
    for name, numbers, amount in steps:
        history.append((table, jax.tree.map(np.array, table)))
        table = step(table, model, name, numbers, amount)
    for value, copy in history:
        for now, then in zip(
            jax.tree.leaves(value), jax.tree.leaves(copy), strict=True
        ):
            np.testing.assert_array_equal(now, then)


# --- by hand ------------------------------------------------------------------------


def build(*blocks: Block) -> StateTable:
    """A table of these blocks; the rest is free."""
    rows = [*blocks, *(Block() for _ in range(SIZE - len(blocks)))]
    free = [n for n, block in enumerate(rows) if block.stage == Stage.FREE]
    columns = {
        field.name: jnp.array([getattr(row, field.name) for row in rows])
        for field in dataclasses.fields(Block)
    }
    return StateTable(
        **columns,
        free=jnp.array(free + [0] * (SIZE - len(free)), jnp.int32),
        num_free=jnp.int32(len(free)),
    )


def sealed(**more) -> Block:
    return Block(stage=Stage.SEALED, form=Form.SWA_WINDOW, **more)


def freed(table: StateTable, count: int) -> list[int]:
    """Blocks that an eviction of ``count`` frees."""
    after = evict(table, jnp.int32(count))
    was, now = np.asarray(table.stage), np.asarray(after.stage)
    return np.flatnonzero((was != Stage.FREE) & (now == Stage.FREE)).tolist()


def test_a_fresh_pool_hands_out_its_blocks_in_order():
    table = empty()
    want = np.ones(WIDTH, bool)
    zeros = dict.fromkeys(("version", "provenance", "first"), np.zeros(WIDTH, np.int32))
    table, ids = allocate(table, want, **zeros, clock=1)
    assert ids.tolist() == [0, 1, 2, 3]
    table, ids = allocate(table, want, **zeros, clock=1)
    assert ids.tolist() == [4, 5, SIZE, SIZE]
    assert int(table.num_free) == 0
    table, ids = allocate(table, want, **zeros, clock=1)
    assert ids.tolist() == [SIZE] * WIDTH
    assert int(table.num_free) == 0


def test_the_oldest_goes_first_and_among_equals_the_deepest():
    table = build(
        sealed(kept=True, used=5, first=0),
        sealed(kept=True, used=3, first=0),
        sealed(kept=True, used=3, first=8),
        sealed(kept=True, used=3, first=4),
        sealed(kept=True, used=9, first=12),
    )
    for count, want in [
        (0, []),
        (1, [2]),
        (2, [2, 3]),
        (3, [1, 2, 3]),
        (4, [0, 1, 2, 3]),
        (5, [0, 1, 2, 3, 4]),
        (99, [0, 1, 2, 3, 4]),
    ]:
        assert freed(table, count) == want


def test_what_is_pinned_unfinished_or_not_stored_is_never_evicted():
    table = build(
        sealed(kept=True, pins=1),
        sealed(kept=False, pins=1),
        Block(stage=Stage.WRITING, form=Form.SWA_WINDOW, kept=True),
        Block(stage=Stage.LOADING, form=Form.SWA_WINDOW, kept=True),
        Block(stage=Stage.QUARANTINED, form=Form.SWA_WINDOW, kept=True),
    )
    assert freed(table, 99) == []
    # Once its receipt is back, it can go.
    table = unpin(table, vector([0]), 1)
    assert freed(table, 99) == [0]


def test_b86_eviction_returns_what_it_can():
    table = build(
        sealed(kept=True, pins=2, used=1),
        sealed(kept=True, used=2),
        sealed(kept=True, used=3),
    )
    assert freed(table, 2) == [1, 2]
    table = unpin(table, vector([0]), 4)
    assert freed(table, 99) == [1, 2]
    table = unpin(table, vector([0]), 5)
    assert freed(table, 1) == [1]
    assert freed(table, 99) == [0, 1, 2]


def test_the_last_of_several_receipts_frees():
    """Two mentions in one call count twice, and free once."""
    table = build(sealed(pins=3), sealed(pins=1, kept=True))
    table = unpin(table, vector([0, 1, 0]), 1)
    assert table.pins[:2].tolist() == [1, 0]
    assert table.stage[:2].tolist() == [Stage.SEALED] * 2
    before = int(table.num_free)
    table = unpin(table, vector([0]), 2)
    assert int(table.stage[0]) == Stage.FREE
    assert int(table.num_free) == before + 1
    table = build(sealed(pins=2))
    table = unpin(table, vector([0, 0]), 1)
    assert int(table.num_free) == SIZE
    assert sorted(table.free.tolist()) == list(range(SIZE))


def test_blocks_that_go_at_once_are_all_free():
    table = evict(build(*(sealed(kept=True) for _ in range(3))), jnp.int32(3))
    assert int(table.num_free) == SIZE
    assert sorted(table.free.tolist()) == list(range(SIZE))


def test_dead_weight_stays_while_a_row_reads_it():
    table = forget(build(sealed(kept=True, pins=1)), np.zeros(SIZE, bool))
    assert int(table.stage[0]) == Stage.SEALED
    table = unpin(table, vector([0]), 1)
    assert int(table.stage[0]) == Stage.FREE


def test_an_unfinished_block_is_freed_even_if_marked():
    table = build(Block(stage=Stage.WRITING, form=Form.SWA_WINDOW, pins=1, kept=True))
    table = unpin(table, vector([0]), 1)
    assert int(table.stage[0]) == Stage.FREE
    assert not bool(table.kept[0])


def test_freeing_clears_the_label_and_moves_the_epoch():
    table = build(sealed(kept=True, version=4, epoch=7, first=12))
    after = evict(table, jnp.int32(1))
    assert int(after.form[0]) == Form.NONE
    assert int(after.epoch[0]) == 8
    assert int(after.first[0]) == -1
    assert not bool(after.kept[0])
    zeros = np.zeros(WIDTH, np.int32)
    want = np.arange(WIDTH) == 0
    again, ids = allocate(
        after, want, version=zeros + 2, provenance=zeros, first=zeros, clock=3
    )
    assert int(ids[0]) == 0  # the block that was freed last is handed out first
    assert int(again.epoch[0]) == 9
    assert int(again.version[0]) == 2


def test_what_became_dead_weight_while_it_went_does_not_come_back():
    """Two stored blocks begin to go, and one of them has a claim left."""
    table = build(sealed(kept=True), sealed(kept=True))
    table, _ = begin(table, jnp.int32(2), np.zeros(SIZE, bool))
    table = recover(forget(table, np.arange(SIZE) == 0))
    assert table.stage[:2].tolist() == [Stage.SEALED, Stage.FREE]
    assert table.kept[:2].tolist() == [True, False]


def test_only_finished_blocks_are_kept_and_only_written_ones_sealed():
    stages = [
        Stage.WRITING,
        Stage.SEALED,
        Stage.OFFLOADING,
        Stage.QUARANTINED,
    ]
    blocks = [Block(stage=stage, form=Form.SWA_WINDOW, pins=1) for stage in stages]
    table = build(*blocks)
    ids = jnp.arange(WIDTH, dtype=jnp.int32)
    assert keep(table, ids).kept.tolist() == [False, True, False, False, False, False]
    assert seal(table, ids).stage[:4].tolist() == [
        Stage.SEALED,
        Stage.SEALED,
        Stage.OFFLOADING,
        Stage.QUARANTINED,
    ]


@pytest.mark.parametrize("padding", PADDING)
def test_padding_changes_nothing(padding):
    table = build(
        sealed(kept=True, pins=1),
        Block(stage=Stage.WRITING, form=Form.SWA_WINDOW, pins=1),
        *(sealed(pins=1) for _ in range(SIZE - 2)),
    )
    nothing = jnp.full(WIDTH, padding, jnp.int32)
    for after in (
        seal(table, nothing),
        keep(table, nothing),
        pin(table, nothing, 9),
        unpin(table, nothing, 9),
        evict(table, jnp.int32(0)),
    ):
        for now, then in zip(
            jax.tree.leaves(after), jax.tree.leaves(table), strict=True
        ):
            np.testing.assert_array_equal(now, then)


def test_moving_blocks_are_counted():
    stages = [Stage.OFFLOADING, Stage.ON_DISK, Stage.LOADING, Stage.QUARANTINED]
    counts = account(build(*(Block(stage=s) for s in stages), sealed(pins=1)))
    assert {name: int(value) for name, value in counts.items()} == {
        "free": 1,
        "evictable": 0,
        "pinned": 1,
        "writing": 0,
        "quarantined": 1,
        "moving": 3,
        "total": SIZE,
    }
