"""The prefix index against a plain dict of prefixes: token-exact, cut on the grid."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax.claims import NOTHING
from hybridcache_jax.entry import Entry
from hybridcache_jax.forms import Form
from hybridcache_jax.identity import Identity
from hybridcache_jax.layers import Entries, IndexKeys, LayerSpec, Window
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.rollout import Key
from hybridcache_jax.spec import CacheSpec

ROW = Entry.kv(1, 2)
GRID = 4
# Blocks of 2, 4 and 1 tokens; the first and the last pool are essential.
SPEC = CacheSpec.from_layers(
    [
        LayerSpec(global_=Entries(ROW)),
        LayerSpec(local=Window(3, ROW)),
        LayerSpec(global_=Entries(ROW), index=IndexKeys(ROW)),
    ],
    block_tokens={Form.FULL_KV: 2, Form.SWA_WINDOW: 4, Form.INDEXER_STATE: 1},
)
SIZES = tuple(pool.block_tokens for pool in SPEC.pools)
ESSENTIAL = tuple(
    number for number, pool in enumerate(SPEC.pools) if pool.form != Form.SWA_WINDOW
)
A = Key(Identity("w", "c", "l"))
B = Key(Identity("w", "c", "l", namespace="b"))


def ints(values):
    return np.array(values, np.int32)


class Facts:
    """What is true, for each identity: a set of (pool, id, epoch, first position)."""

    def __init__(self):
        self.true = set()
        self.ids = 0

    def hand_out(self, length, lost=()):
        """Fresh, true claims for ``length`` tokens; nothing where ``lost``."""
        blocks, epochs = [], []
        for pool, size in enumerate(SIZES):
            ids, seen = [], []
            for number in range(length // size):
                self.ids += 1
                if (pool, number) in lost:
                    ids.append(int(NOTHING))
                    seen.append(0)
                    continue
                ids.append(self.ids)
                seen.append(self.ids % 5)
                self.true.add((pool, self.ids, self.ids % 5, number * size))
            blocks.append(ints(ids))
            epochs.append(ints(seen))
        return tuple(blocks), tuple(epochs)

    def holds(self, pool, ids, epochs, first):
        assert ids.shape == epochs.shape == first.shape, "positions must match claims"
        return np.array(
            [
                (pool, int(block), int(epoch), int(at)) in self.true
                for block, epoch, at in zip(ids, epochs, first, strict=True)
            ],
            bool,
        )


class Oracle:
    """Claims of each grid unit, found by the whole prefix that ends with it."""

    def __init__(self, facts):
        self.facts = facts
        self.units = {}

    def insert(self, identity, tokens, blocks, epochs):
        for end in range(GRID, len(tokens) + 1, GRID):
            key = (identity, tuple(tokens[:end]))
            old = self.units.get(key)
            claims = {}
            for pool, size in enumerate(SIZES):
                for number in range((end - GRID) // size, end // size):
                    claim = int(blocks[pool][number]), int(epochs[pool][number])
                    if old and (pool, *old[pool, number], number * size) in (
                        self.facts.true
                    ):
                        claim = old[pool, number]
                    claims[pool, number] = claim
            self.units[key] = claims

    def lookup(self, identity, tokens):
        """Length, shared length, and the claims of every block."""
        claims, length = {}, 0
        while (identity, tuple(tokens[: length + GRID])) in self.units:
            claims |= self.units[identity, tuple(tokens[: length + GRID])]
            length += GRID
            if length + GRID > len(tokens):
                break
        shared = 0
        for owner, prefix in self.units:
            if owner == identity:
                same = 0
                for mine, theirs in zip(tokens, prefix, strict=False):
                    if mine != theirs:
                        break
                    same += 1
                shared = max(shared, same)
        return length, shared, claims

    def true_claims(self):
        """Per pool, ids of which some unit claims something that is true."""
        found = [set() for _ in SIZES]
        for claims in self.units.values():
            for (pool, number), claim in claims.items():
                if (pool, *claim, number * SIZES[pool]) in self.facts.true:
                    found[pool].add(claim[0])
        return found

    def prune(self, essential):
        before = len(self.units)
        broken = set()
        for (identity, prefix), claims in self.units.items():
            for (pool, number), claim in claims.items():
                fact = (pool, *claim, number * SIZES[pool])
                if pool in essential and fact not in self.facts.true:
                    broken.add((identity, prefix))
        self.units = {
            (identity, prefix): claims
            for (identity, prefix), claims in self.units.items()
            if not any(
                (identity, prefix[:end]) in broken
                for end in range(GRID, len(prefix) + 1, GRID)
            )
        }
        return (before - len(self.units)) * GRID

    @property
    def identities(self):
        return {identity for identity, _ in self.units}


def check(index, oracle, identity, tokens):
    claims = index.lookup(identity, ints(tokens))
    length, shared, want = oracle.lookup(identity, tokens)
    assert (claims.length, claims.shared) == (length, shared)
    assert claims.tokens.tolist() == list(tokens[:length])
    assert claims.tokens.dtype == np.int32
    for pool, size in enumerate(SIZES):
        assert claims.blocks[pool].dtype == claims.epochs[pool].dtype == np.int32
        got = list(zip(claims.blocks[pool], claims.epochs[pool], strict=True))
        assert [tuple(map(int, pair)) for pair in got] == [
            want[pool, number] for number in range(length // size)
        ]


# Few different units, so that prefixes meet, split and branch again and again.
UNITS = st.sampled_from([(0, 0, 0, 0), (0, 0, 0, 1), (1, 0, 0, 0)])


def joined(units):
    return [token for unit in units for token in unit]


STORED = st.lists(UNITS, min_size=1, max_size=5).map(joined)
PROMPTS = st.tuples(
    st.lists(UNITS, max_size=5).map(joined),
    st.lists(st.sampled_from([0, 1]), max_size=3),
).map(lambda pair: pair[0] + pair[1])
LOST = st.sets(st.tuples(st.integers(0, len(SIZES) - 1), st.integers(0, 7)), max_size=2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.sampled_from([A, B]), STORED, LOST),
        st.tuples(st.just("lookup"), st.sampled_from([A, B]), PROMPTS),
        st.tuples(st.just("evict"), st.integers(0, 10**6), st.integers(1, 3)),
        st.tuples(st.just("prune")),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=200)
@given(STEPS)
def test_any_history_agrees_with_a_dict_of_prefixes(steps):
    facts = Facts()
    index, oracle = PrefixIndex(SPEC), Oracle(facts)
    for name, *rest in steps:
        if name == "insert":
            identity, tokens, lost = rest
            blocks, epochs = facts.hand_out(len(tokens), lost)
            index.insert(identity, ints(tokens), blocks, epochs, facts.holds)
            oracle.insert(identity, tokens, blocks, epochs)
            check(index, oracle, identity, tokens)
        elif name == "lookup":
            check(index, oracle, *rest)
        elif name == "evict":
            place, count = rest
            for fact in sorted(facts.true)[place % (len(facts.true) + 1) :][:count]:
                facts.true.discard(fact)
        else:
            stored = index.stored_tokens
            left = index.prune(lambda identity: facts.holds, ESSENTIAL)
            assert stored - index.stored_tokens == oracle.prune(ESSENTIAL)
            assert [set(ids.tolist()) for ids in left] == oracle.true_claims()
            assert set(index.stored_keys()) == oracle.identities
        assert index.stored_tokens == len(oracle.units) * GRID
    for identity, prefix in list(oracle.units):
        for tokens in (prefix, (*prefix, 0), (*prefix, 1), prefix[:-1], prefix[1:]):
            check(index, oracle, identity, list(tokens))


# --- by hand ------------------------------------------------------------------------

PLAIN = CacheSpec.from_layers([LayerSpec(global_=Entries(ROW))], block_tokens=2)


def always(pool, ids, epochs, first):
    return np.ones(len(ids), bool)


def never(pool, ids, epochs, first):
    return np.zeros(len(ids), bool)


def store(index, tokens, start=100, identity=A, holds=always):
    ids = ints(range(start, start + len(tokens) // 2))
    index.insert(identity, ints(tokens), [ids], [ids * 0 + 1], holds)


def test_an_empty_index_claims_nothing():
    index = PrefixIndex(SPEC)
    for tokens in ([], [1], list(range(20))):
        claims = index.lookup(A, ints(tokens))
        assert (claims.length, claims.shared) == (0, 0)
        assert [len(ids) for ids in claims.blocks] == [0] * len(SIZES)
        assert claims.tokens.tolist() == []
    assert index.stored_keys() == ()
    assert index.stored_tokens == 0


def test_split_on_the_grid_only():
    """[1 2 3 4 5 6] and [1 2 3 9]: the common part is one unit, not three tokens."""
    index = PrefixIndex(PLAIN)
    store(index, [1, 2, 3, 4, 5, 6], 100)
    store(index, [1, 2, 3, 9], 200)
    assert index.stored_tokens == 8
    first = index.lookup(A, ints([1, 2, 3, 4, 5, 6, 7]))
    assert first.blocks[0].tolist() == [100, 101, 102]
    second = index.lookup(A, ints([1, 2, 3, 9]))
    assert second.blocks[0].tolist() == [100, 201]
    third = index.lookup(A, ints([1, 2, 3, 5]))
    assert (third.length, third.shared) == (2, 3)


@pytest.mark.parametrize(
    ("prompt", "length", "shared"),
    [
        ([1, 2, 3, 4], 4, 4),
        ([1, 2, 3, 4, 5], 4, 4),
        ([1, 2, 3], 2, 3),
        ([1, 2, 3, 9], 2, 3),
        ([1, 2], 2, 2),
        ([1, 9], 0, 1),
        ([1], 0, 1),
        ([9], 0, 0),
        ([], 0, 0),
    ],
)
def test_shared_length_is_not_rounded(prompt, length, shared):
    index = PrefixIndex(PLAIN)
    store(index, [1, 2, 3, 4])
    claims = index.lookup(A, ints(prompt))
    assert (claims.length, claims.shared) == (length, shared)


def test_b39_the_first_difference_is_named():
    """Stored 5, 7; asked 5, 1, 2: index 1, and no text compare claims more."""
    index = PrefixIndex(PLAIN)
    store(index, [5, 7])
    claims = index.lookup(A, ints([5, 1, 2]))
    assert (claims.length, claims.shared) == (0, 1)


def test_b39_what_was_stored_there_is_named():
    """Index 1, stored 7; the plan adds what was asked."""
    index = PrefixIndex(PLAIN)
    assert index.lookup(A, ints([5])).stored_token == -1
    store(index, [5, 7])
    for prompt, place, token in [
        ([5, 1, 2], 1, 7),
        ([5], 1, 7),
        ([9, 7], 0, 5),
        ([5, 7, 2], 2, -1),
        ([5, 7], 2, -1),
    ]:
        claims = index.lookup(A, ints(prompt))
        assert (claims.shared, claims.stored_token) == (place, token)
    # Of several branches, the closest one.
    store(index, [5, 7, 1, 2, 3, 4], 200)
    store(index, [5, 7, 1, 6], 300)
    claims = index.lookup(A, ints([5, 7, 1, 2, 3, 9]))
    assert (claims.shared, claims.stored_token) == (5, 4)
    claims = index.lookup(A, ints([5, 7, 1, 9]))
    assert claims.shared == 3
    assert claims.stored_token in (2, 6)
    assert index.lookup(B, ints([5, 1, 2])).stored_token == -1


def test_tokens_are_compared_whole():
    """Ids alike in their low bits, or shifted by one place, never meet."""
    index = PrefixIndex(PLAIN)
    base = [1, 2, 3, 4]
    store(index, base)
    for bit in range(1, 31):
        for place in range(4):
            other = list(base)
            other[place] ^= 1 << bit
            claims = index.lookup(A, ints(other))
            assert claims.shared == place
            assert claims.length == place - place % 2
    for other in ([2, 1, 3, 4], [0, 1, 2, 3], [2, 3, 4], [513, 0, 3, 4]):
        assert index.lookup(A, ints(other)).length == 0


def test_many_prefixes_that_differ_in_one_token():
    """4,096 siblings: each finds its own block, nobody else's."""
    index = PrefixIndex(PLAIN)
    for token in range(4096):
        store(index, [7, token], start=token)
    assert index.stored_tokens == 2 * 4096
    for token in range(0, 4096, 97):
        assert index.lookup(A, ints([7, token])).blocks[0].tolist() == [token]
    missing = index.lookup(A, ints([7, 4096]))
    assert (missing.length, missing.shared) == (0, 1)


def test_a_prefix_grows_chunk_by_chunk():
    """However a prompt was cut into chunks, what is claimed is the same."""
    tokens = list(range(1, 25))
    for chunk in (2, 4, 6, 24):
        index = PrefixIndex(PLAIN)
        for end in range(chunk, 25, chunk):
            store(index, tokens[:end], 100)
        claims = index.lookup(A, ints([*tokens, 0]))
        assert claims.length == claims.shared == 24
        assert claims.blocks[0].tolist() == list(range(100, 112))
        assert index.stored_tokens == 24
        branch = index.lookup(A, ints([*tokens[:13], 99]))
        assert (branch.length, branch.shared) == (12, 13)


def test_a_node_that_is_split_keeps_its_branches():
    """Two long prefixes fork late; then a third forks from both much earlier."""
    index = PrefixIndex(PLAIN)
    store(index, [1, 2, 3, 4, 5, 6, 7, 8], 100)
    store(index, [1, 2, 3, 4, 5, 6, 9, 9], 200)
    store(index, [1, 2, 0, 0], 300)
    assert index.stored_tokens == 12
    for tokens, blocks in [
        ([1, 2, 3, 4, 5, 6, 7, 8], [100, 101, 102, 103]),
        ([1, 2, 3, 4, 5, 6, 9, 9], [100, 101, 102, 203]),
        ([1, 2, 0, 0], [100, 301]),
    ]:
        assert index.lookup(A, ints(tokens)).blocks[0].tolist() == blocks


def test_true_claims_stay_and_stale_ones_are_replaced():
    index = PrefixIndex(PLAIN)
    store(index, [1, 2, 3, 4], 100)
    store(index, [1, 2, 3, 4], 200, holds=always)
    assert index.lookup(A, ints([1, 2, 3, 4])).blocks[0].tolist() == [100, 101]

    def first_and_new(pool, ids, epochs, first):
        assert first.tolist()[:2] == [0, 2]
        return (first == 0) | (ids >= 300)

    store(index, [1, 2, 3, 4, 5, 6], 300, holds=first_and_new)
    claims = index.lookup(A, ints([1, 2, 3, 4, 5, 6]))
    assert claims.blocks[0].tolist() == [100, 301, 302]
    store(index, [1, 2], 400, holds=lambda pool, ids, *_: ids >= 400)
    claims = index.lookup(A, ints([1, 2, 3, 4, 5, 6]))
    assert claims.blocks[0].tolist() == [400, 301, 302]


def test_a_claim_gives_way_to_none_that_is_not_true():
    """It may be true elsewhere: what came from an old plan must not hide it."""
    index = PrefixIndex(PLAIN)
    store(index, [1, 2, 3, 4], 100)
    store(index, [1, 2, 3, 4], 200, holds=never)
    assert index.lookup(A, ints([1, 2, 3, 4])).blocks[0].tolist() == [100, 101]


def dropped(index, holds_for, essential):
    """Tokens that a pruning drops."""
    before = index.stored_tokens
    index.prune(holds_for, essential)
    return before - index.stored_tokens


def test_prune_drops_what_lies_behind_a_hole():
    index = PrefixIndex(PLAIN)
    store(index, [1, 2, 3, 4, 5, 6], 100)
    store(index, [1, 2, 3, 4, 7, 8], 200)
    store(index, [9, 9], 300)

    def without(*gone):
        return lambda identity: lambda pool, ids, epochs, first: ~np.isin(ids, gone)

    assert dropped(index, without(202), [0]) == 2
    assert index.lookup(A, ints([1, 2, 3, 4, 7, 8])).length == 4
    assert dropped(index, without(101), [0]) == 4
    assert index.lookup(A, ints([1, 2, 3, 4, 5, 6])).length == 2
    assert dropped(index, without(100, 300), [0]) == 4
    assert index.stored_keys() == ()


def test_prune_ignores_what_a_replay_rebuilds():
    facts = Facts()
    index = PrefixIndex(SPEC)
    blocks, epochs = facts.hand_out(8)
    index.insert(A, ints(range(8)), blocks, epochs, facts.holds)
    windows = 1
    assert SPEC.pools[windows].form == Form.SWA_WINDOW
    facts.true = {fact for fact in facts.true if fact[0] != windows}
    assert dropped(index, lambda identity: facts.holds, ESSENTIAL) == 0


def test_prune_with_holes_in_two_essential_pools():
    """The first pool cuts the edge short; the second must still be read whole."""
    facts = Facts()
    index = PrefixIndex(SPEC)
    blocks, epochs = facts.hand_out(12)
    index.insert(A, ints(range(12)), blocks, epochs, facts.holds)
    first, last = ESSENTIAL[0], ESSENTIAL[-1]
    facts.true = {
        (pool, block, epoch, at)
        for pool, block, epoch, at in facts.true
        if not (pool == first and at >= 8) and not (pool == last and at == 5)
    }
    assert dropped(index, lambda identity: facts.holds, ESSENTIAL) == 8
    assert index.lookup(A, ints(range(12))).length == 4


def test_identities_are_apart():
    index = PrefixIndex(PLAIN)
    store(index, [1, 2], 100, identity=A)
    assert index.lookup(B, ints([1, 2])).shared == 0
    store(index, [1, 2], 200, identity=B)
    assert index.lookup(A, ints([1, 2])).blocks[0].tolist() == [100]
    assert index.lookup(B, ints([1, 2])).blocks[0].tolist() == [200]
    assert set(index.stored_keys()) == {A, B}
    gone = {A: never, B: always}
    assert dropped(index, lambda identity: gone[identity], [0]) == 2
    assert index.stored_keys() == (B,)


def test_the_index_keeps_values_not_references():
    index = PrefixIndex(PLAIN)
    tokens, ids, seen = ints([1, 2, 3, 4]), ints([10, 11]), ints([1, 1])
    index.insert(A, tokens, [ids], [seen], always)
    early = index.lookup(A, ints([1, 2, 3, 4]))
    tokens[:], ids[:], seen[:] = 0, 0, 0
    late = index.lookup(A, ints([1, 2, 3, 4]))
    assert late.blocks[0].tolist() == [10, 11]
    assert late.epochs[0].tolist() == [1, 1]
    # What was answered before does not change when the index does.
    store(index, [1, 2, 5, 6], 50, holds=never)
    store(index, [1, 2, 3, 4, 7, 8], 60, holds=never)
    assert early.blocks[0].tolist() == [10, 11]
    assert early.tokens.tolist() == [1, 2, 3, 4]
    assert early.length == 4


def test_lookup_changes_nothing():
    index = PrefixIndex(PLAIN)
    store(index, [1, 2, 3, 4])
    for prompt in ([1, 2, 3, 4], [1, 2, 9], [9], [], [1, 2, 3, 4, 5, 6]):
        one, other = index.lookup(A, ints(prompt)), index.lookup(A, ints(prompt))
        assert (one.length, one.shared) == (other.length, other.shared)
        assert index.lookup(B, ints(prompt)).length == 0
    assert index.stored_tokens == 4
    assert index.stored_keys() == (A,)


def test_without_essential_pools_lost_ends_are_dropped():
    """Windows alone: an end goes when nothing of it is held, a middle stays."""
    spec = CacheSpec.from_layers([LayerSpec(local=Window(3, ROW))], block_tokens=2)
    index, alive = PrefixIndex(spec), set()

    def holds(pool, ids, epochs, first):
        return np.isin(ids, list(alive))

    for number in range(5):
        ids = [10 * number + place for place in range(3)]
        alive.update(ids)
        tokens = [number + 1] * 6
        index.insert(A, ints(tokens), [ints(ids)], [ints([1, 1, 1])], holds)
    assert index.stored_tokens == 30
    alive.difference_update(range(30))
    alive.add(11)
    (left,) = index.prune(lambda identity: holds, ())
    assert left.tolist() == [11, 30, 31, 32, 40, 41, 42]
    assert index.stored_tokens == 16


def test_trees_deeper_than_pythons_stack_are_pruned():
    """A conversation that branches at every turn: one node below the other."""
    spec = CacheSpec.from_layers([LayerSpec(global_=Entries(ROW))], block_tokens=1)
    index, turns = PrefixIndex(spec), sys.getrecursionlimit() + 100

    def holds(pool, ids, epochs, first):
        return ids != turns // 2

    for turn in range(turns):
        ids = ints([*range(turn), 2 * turns + turn])
        index.insert(A, ids, [ids], [np.ones(turn + 1, np.int32)], holds)
    (left,) = index.prune(lambda identity: holds, (0,))
    kept = [*range(turns // 2), *(2 * turns + turn for turn in range(turns // 2 + 1))]
    assert sorted(left.tolist()) == kept
    assert index.stored_tokens == len(kept)
