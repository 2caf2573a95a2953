"""The collector takes what is unused, and nothing that somebody needs."""

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kept_records import GRID, CutError, Watched, copied, cut, length_read, write
from test_manifest import sealed

from hybridcache_jax.store import collection, sweeps
from hybridcache_jax.store.collection import collect
from hybridcache_jax.store.manifest import decode, encode
from hybridcache_jax.store.pack import GonePackError
from hybridcache_jax.store.sweeps import noted_packs
from hybridcache_jax.store.ticks import mark_used, next_tick, tick
from hybridcache_jax.store.verification import verify
from hybridcache_jax.testing.stores import MemoryStore as Memory


class Model:
    """What must be in a store, in plain Python, beside the store itself."""

    def __init__(self):
        self.store, self.now = Watched(), 0
        # (tokens, start): when it was last written or of use.
        self.used = {}

    def write(self, tokens, start):
        write(self.store, tokens, start)
        self.used[tokens, start] = self.now

    def mark(self, tokens):
        keys = {
            decode(data).key
            for name, data in self.store.objects.items()
            if name.startswith("records/") and self.tokens_of(decode(data)) == tokens
        }
        mark_used(self.store, keys)
        for record in self.used:
            if record[0] == tokens:
                self.used[record] = self.now

    def tokens_of(self, record):
        """All tokens of a record, by the one record of the model with its own."""
        own = [int.from_bytes(record.tokens[n : n + 4], "little") for n in
               range(0, len(record.tokens), 4)]  # fmt: skip
        (found,) = {
            tokens
            for tokens, start in self.used
            if (start, len(tokens)) == (record.start, record.stop)
            and list(tokens[start:]) == own
            and self.key_of(tokens, start) == record.key
        }
        return found

    def key_of(self, tokens, start):
        return write(Memory(), tokens, start).key

    def useful(self):
        """When each record or what goes on from it was last of use."""
        return {
            (tokens, start): max(
                at
                for (other, begin), at in self.used.items()
                if (other, begin) == (tokens, start)
                or self.leads((tokens, start), (other, begin))
            )
            for tokens, start in self.used
        }

    def leads(self, first, last):
        """Whether a chain of records leads from one to another."""
        return any(
            other == first or self.leads(first, other)
            for other in self.used
            if last[1] > 0 and other[0] == last[0][: last[1]]
        )

    def there(self):
        """What is in the store, as the model names it."""
        found = [
            decode(self.store.objects[name]) for name in self.store.names("records/")
        ]
        return {(self.tokens_of(record), record.start) for record in found}

    def check(self):
        """What must be there is, whole, and all else is gone."""
        assert self.there() == set(self.used)
        for tokens, _ in self.used:
            assert length_read(self.store, tokens) == len(tokens)


# Few prompts, so that many go on from others.
PROMPTS = [[0], [0, 1], [0, 1, 0], [0, 1, 1], [1], [1, 0]]
STEPS = ["write"] * 3 + ["mark"] * 3 + ["ticks"] * 3 + ["quota"]


def tokens_of(units):
    return tuple(unit for unit in units for _ in range(GRID))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_exactly_what_was_of_no_use_goes(seed):
    """Random chains, marks and runs, against sets in plain Python."""
    # Drawn evenly: long chains and old records are what matters.
    model, random = Model(), Random(seed)
    for _ in range(20):
        step = random.choice(STEPS)
        if step == "write":
            tokens = tokens_of(random.choice(PROMPTS))
            ends = {len(t) for t, _ in model.used if t == tokens[: len(t)]}
            starts = sorted({0} | {end for end in ends if end < len(tokens)})
            model.write(tokens, random.choice([*starts, starts[-1]]))
        elif step == "mark" and model.used:
            model.mark(random.choice(sorted(model.used))[0])
        elif step == "ticks":
            keep = random.randint(1, 3)
            would = collect(model.store, keep_ticks=keep, dry_run=True)
            done = collect(model.store, keep_ticks=keep)
            assert would == done
            assert done.kept_bytes is None
            model.now += 1
            useful = model.useful()
            model.used = {
                record: at
                for record, at in model.used.items()
                if model.now - useful[record] <= keep
            }
            assert done.kept == len(model.used)
        elif step == "quota":
            before, useful = model.there(), model.useful()
            quota = random.randint(1, 6000)
            done = collect(model.store, quota=quota)
            model.now += 1
            kept = model.there()
            gone = before - kept
            assert len(gone) == len(done.dropped)
            assert all(useful[one] <= useful[other] for one in gone for other in kept)
            assert not any(model.leads(one, other) for one in gone for other in kept)
            nbytes = named_bytes(model.store)
            assert (done.kept_bytes, done.fits) == (nbytes, nbytes <= quota)
            assert done.fits or not kept
            model.used = {record: model.used[record] for record in kept}
        model.check()
    # Two more runs, and nothing is left that nobody names.
    for _ in range(2):
        collect(model.store)
    model.check()
    assert set(model.store.names("packs/")) == named(model.store)
    assert model.store.names("sweeps/") == []
    assert verify(model.store).problems == ()


def named(store):
    """Packs that manifests name."""
    found = [decode(store.objects[name]) for name in store.names("records/")]
    parts = [part for record in found for part in record.parts]
    return {place.pack for part in parts for place in part.blocks}


def named_bytes(store):
    names = [*named(store), *store.names("records/")]
    return sum(len(store.objects[name]) for name in names)


def test_a_quota_is_kept_with_as_much_as_fits():
    store = Watched()
    for last in range(6):
        write(store, [last] * GRID)
        next_tick(store)
    all_of_it = named_bytes(store)
    done = collect(copied(store), quota=all_of_it)
    assert (done.dropped, done.kept_bytes) == ((), all_of_it)
    fits = collect(store, quota=all_of_it - 1)
    (name,) = fits.dropped
    # The oldest went, and one byte less than it has would have been too little.
    assert fits.kept == 5
    assert length_read(store, [0] * GRID) == 0
    assert name not in store.objects


def test_what_is_shared_is_not_freed_by_one_of_those_who_have_it():
    store = Watched()
    first = write(store, [1] * 8)
    next_tick(store)
    places = {place.number: place for place in first.parts[1].blocks}
    write(store, [1] * 12, known=places)
    (own,) = [n for n in store.names("records/") if n.endswith(first.key.hex())]
    # Both records need the pack of the first: it takes its manifest alone along.
    quota = named_bytes(store) - len(store.objects[own])
    done = collect(copied(store), quota=quota)
    assert (done.dropped, done.kept_bytes) == ((own,), quota)
    assert done == collect(copied(store), quota=quota, dry_run=True, threads=4)
    done = collect(store, quota=quota - 1)
    assert (done.kept, done.kept_bytes, done.fits) == (0, 0, True)


WARM, OLD = [1] * 8, [2] * 12


def aged():
    """A store with everything: unused, used, leftovers, notes, and marks."""
    store = Watched()
    write(store, OLD[:8])
    write(store, OLD, 8)
    record = write(store, WARM[:4])
    write(store, WARM, 4)
    for name, data in list(store.objects.items()):
        if name.startswith("packs/"):
            # Leftovers of a killed writer.
            other = f"{name}-7"
            store.objects[other] = data
    collect(store)
    for _ in range(2):
        next_tick(store)
    mark_used(store, [write(Memory(), WARM, 4).key])
    assert record.key
    return store


def sound(store):
    """Every record that is found reads whole; none waits for another."""
    store.at = -1
    assert verify(store).problems == ()
    return length_read(store, WARM), length_read(store, OLD)


def all_calls(run, what, make=aged):
    """Stores in which ``what`` was done before each call of ``run`` in turn."""
    at = 0
    while True:
        store, done = make(), []
        store.at = store.calls = at

        def then(store=store, done=done):
            done.append(what(store))

        store.then = then
        try:
            run(store)
        except CutError:
            done.append(None)
        if not done:
            break
        store.at = -1
        yield store, done[0]
        at += 1
    assert at > 20


def test_a_run_that_is_cut_anywhere_leaves_a_sound_store():
    for store, _ in all_calls(lambda s: collect(s, keep_ticks=2), lambda s: cut()):
        warm, old = sound(store)
        assert warm == 8
        assert old in (0, 8, 12)
        for _ in range(3):
            collect(store, keep_ticks=9)
        assert sound(store) == (warm, old)
        assert set(store.names("packs/")) == named(store)


def test_two_runs_at_once_do_what_one_does():
    def run(store):
        return collect(store, keep_ticks=2)

    for store, _ in all_calls(run, run):
        assert sound(store) == (8, 0)
        for _ in range(2):
            collect(store)
        assert sound(store) == (8, 0)
        assert set(store.names("packs/")) == named(store)


NEW = [2] * 8 + [3] * 4


@pytest.mark.parametrize("tokens", [WARM, OLD[:8], NEW[:4], [5] * 8], ids=str)
def test_what_is_written_during_a_run_stays_or_is_as_if_it_never_was(tokens):
    def run(store):
        collect(store, keep_ticks=2)

    def during(store):
        call, there = store.call, len(store.names("records/"))
        write(store, tokens)
        return call == ("names", "records/") and there == 2

    lost = 0
    for store, before_last_look in all_calls(run, during):
        found = length_read(store, tokens)
        # A record that is written again while the old one is deleted goes with it.
        lost += found != len(tokens)
        sound(store)
        # Only packs that are looked at before and used after are noted for nothing.
        if before_last_look or tokens != OLD[:8]:
            assert not noted_packs(store) & named(store)
        for _ in range(2):
            collect(store)
        assert length_read(store, tokens) == found
    assert lost == (1 if tokens == OLD[:8] else 0)


def test_what_came_into_use_during_a_run_stays_if_it_was_there_still():
    """Between the last look and the first deletion nothing helps; five calls."""
    key, short = write(Memory(), OLD, 8).key, 0

    def during(store):
        there = len(store.names("records/"))
        mark_used(store, [key], now=tick(store))
        return there

    for store, there in all_calls(lambda s: collect(s, keep_ticks=2), during):
        _, old = sound(store)
        assert old in (0, 12)
        short += old == 0 and there == 4
    assert short <= 5


def test_what_a_new_record_goes_on_from_stays_if_it_was_there_still():
    """Between the last look and the first deletion nothing helps; three calls."""
    short = 0

    def during(store):
        there = len(store.names("records/"))
        write(store, NEW, 8)
        return there

    for store, there in all_calls(lambda s: collect(s, keep_ticks=2), during):
        found = length_read(store, NEW)
        assert found in (0, 12)
        short += found == 0 and there == 4
    assert short <= 3


class Late:
    """A writer's store whose manifest is written when it is told so."""

    def __init__(self, store):
        self.store, self.manifest = store, None
        self.get, self.names = store.get, store.names

    def put(self, name, data):
        if name.startswith("records/"):
            self.manifest = name, data
        else:
            self.store.put(name, data)

    def finish(self):
        self.store.put(*self.manifest)


def begun(store):
    late = Late(store)
    write(late, NEW)
    return late


@pytest.mark.parametrize("left", [False, True], ids=["", "was left behind"])
def test_a_writer_may_take_all_but_the_whole_time_between_runs(left):
    """From any call of a run to its end; and from its end to any call of the next.

    Also where another writer had left the same packs behind, which are swept meanwhile.
    """

    def make():
        store = aged()
        if left:
            begun(store)
            collect(store)
        return store

    for store, late in all_calls(collect, begun, make):
        late.finish()
        for _ in range(3):
            collect(store)
            assert length_read(store, NEW) == 12

    def half_way():
        store = make()
        collect(store)
        late = begun(store)
        store.late = late
        return store

    for store, _ in all_calls(collect, lambda s: s.late.finish(), half_way):
        for _ in range(3):
            collect(store)
            assert length_read(store, NEW) == 12


def test_two_runs_at_once_are_one_for_a_writer():
    """A run that begins before another has swept does not act on its note."""

    def make():
        store = aged()
        store.late = begun(store)
        return store

    def during(store):
        begins, left = store.calls, any(n.endswith("-7") for n in store.objects)
        collect(store)
        return begins and left

    checked = 0
    for store, at_once in all_calls(collect, during, make):
        store.late.finish()
        assert not at_once or length_read(store, NEW) == 12
        checked += bool(at_once)
    assert checked > 10


def test_a_pack_that_is_about_to_be_swept_is_written_under_another_name():
    store = Watched()
    begun(store)
    (left,) = store.names("packs/")
    assert list(collect(store).noted) == [left]
    assert store.names("sweeps/") == ["sweeps/000000000001"]
    write(store, NEW)
    assert set(store.names("packs/")) == {left, left + "-1"}
    assert list(collect(store).swept) == [left]
    assert verify(store).problems == ()
    assert length_read(store, NEW) == 12


def test_places_that_are_remembered_too_long_make_no_record():
    """Swept packs, and those that are next, are not named again."""
    store = Watched()
    first = write(store, [1] * 8)
    places = {place.number: place for place in first.parts[1].blocks}
    (name,) = store.names("records/")
    store.delete(name)
    for _ in range(2):
        collect(store)
        with pytest.raises(GonePackError, match="write its blocks anew"):
            write(store, [1] * 12, known=places)
        assert store.names("records/") == []
    assert store.names("packs/") == []
    write(store, [1] * 12)
    assert length_read(store, [1] * 12) == 12


NAME = "/".join(["0" * 32] * 3)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        (f"records/{NAME}", sealed(b"later", version=9)),
        (f"records/{NAME}", b"damaged"),
        ("records/other", b"odd"),
    ],
    ids=["later format", "damaged", "odd name"],
)
def test_what_cannot_be_read_stays_and_no_pack_goes(name, data):
    store = aged()
    collect(store, keep_ticks=2)
    store.objects[name] = data
    packs = store.names("packs/")
    for _ in range(3):
        done = collect(store, keep_ticks=2)
        assert [each.name for each in done.unread] == [name]
        assert (done.swept, done.noted) == ({}, {})
    assert store.objects[name] == data
    assert store.names("packs/") == packs
    if not data.startswith(b"hcjr"):
        verify(store, quarantine=True)
        for _ in range(2):
            done = collect(store, keep_ticks=9)
        assert done.unread == ()
        assert set(store.names("packs/")) == named(store) != set(packs)


def test_what_a_later_format_goes_on_from_stays():
    store = Watched()
    key = write(store, OLD[:8]).key
    write(store, OLD, 8)
    store.objects[f"records/{key.hex()}/{NAME[:65]}"] = sealed(b"later", version=9)
    for _ in range(4):
        collect(store, keep_ticks=1)
    assert length_read(store, OLD) == 8


def test_what_is_not_the_librarys_stays():
    store = aged()
    others = {"readme": b"r", "packs/readme": b"r", "packs/00/0": b"r", "x/y": b"r"}
    store.objects.update(others)
    for _ in range(3):
        done = collect(store, quota=1)
        assert set(done.foreign) == set(others)
    assert others.items() <= store.objects.items()
    assert named(store) == set()


def test_a_dry_run_changes_nothing_and_says_what_will_happen():
    store = aged()
    before = dict(store.objects)
    would = collect(store, keep_ticks=2, dry_run=True)
    assert store.objects == before
    assert would == collect(store, keep_ticks=2)
    assert len(would.dropped) == 2
    assert len(would.swept) == 4
    assert len(would.noted) == 2


def test_b87_a_wrong_time_makes_no_record_immortal_and_loses_none():
    """Of three records one lost its mark, one says next year, one is in use."""
    store = Watched()
    plain, ahead, used = (write(store, [n] * 8) for n in range(3))
    (name,) = [n for n in store.names("records/") if n.endswith(ahead.key.hex())]
    store.objects[name] = encode(msgspec.structs.replace(ahead, age=10**9))
    mark_used(store, [ahead.key], now=10**9)
    mark_used(store, [plain.key])
    for mark in store.names("used/000000000000"):
        store.delete(mark)
    kept = []
    for _ in range(4):
        mark_used(store, [used.key])
        collect(store, keep_ticks=2)
        kept.append([length_read(store, [n] * 8) for n in range(3)])
    # The one ahead is as old as the first run that saw it.
    assert kept == [[8, 8, 8], [8, 8, 8], [0, 8, 8], [0, 0, 8]]


def test_a_store_whose_ticks_are_lost_begins_to_count_anew():
    store = Watched()
    for _ in range(5):
        next_tick(store)
    write(store, WARM)
    for name in store.names("ticks/"):
        store.delete(name)
    assert tick(store) == 0
    assert [collect(store, keep_ticks=2).kept for _ in range(4)] == [1, 1, 1, 0]


@pytest.mark.parametrize("rule", [{"keep_ticks": 0}, {"quota": 0}, {"keep_ticks": -1}])
def test_a_rule_that_is_none_is_refused(rule):
    store = Watched()
    with pytest.raises(ValueError, match="must be positive"):
        collect(store, **rule)
    assert store.objects == {}


@pytest.mark.parametrize("key", [b"", b"x" * 200])
def test_a_key_that_is_none_stops_no_run(key):
    """As the mark of a record that claims to be of a tick that is yet to come."""
    store = Watched()
    record = msgspec.structs.replace(write(store, WARM), key=key, age=10**9)
    store.objects["records/" + "/".join([32 * "0"] * 3)] = encode(record)
    for _ in range(2):
        assert collect(store, keep_ticks=1).unread == ()
    assert tick(store) == 2
    assert set(store.names("used/")) == set()


def left_behind():
    """A store with a record and two packs that nobody names."""
    store = Watched()
    write(store, WARM)
    left = []
    for name, data in list(store.objects.items()):
        if name.startswith("packs/"):
            left = [f"{name}-7", f"{name}-8"]
            store.objects.update(dict.fromkeys(left, data))
    return store, left


def test_a_note_of_any_size_is_not_read_and_takes_nothing_along(monkeypatch):
    store, left = left_behind()
    collect(store)
    (note,) = store.names("sweeps/")
    with monkeypatch.context() as patch:
        patch.setattr(sweeps, "_MOST_BYTES", len(store.objects[note]) - 1)
        assert noted_packs(store) == frozenset()
        done = collect(store)
    assert (done.swept, sorted(done.noted)) == ({}, left)
    # It is gone, and what the run noted in its place counts.
    assert note not in store.objects
    assert sorted(collect(store).swept) == left


def test_what_a_note_has_no_room_for_is_noted_by_the_next_run(monkeypatch):
    store, left = left_behind()
    monkeypatch.setattr(collection, "MOST_NOTED", 1)
    runs = [collect(store) for _ in range(3)]
    assert [sorted(done.noted) for done in runs] == [left[:1], left[1:], []]
    assert [sorted(done.swept) for done in runs] == [[], left[:1], left[1:]]
    assert length_read(store, WARM) == len(WARM)
