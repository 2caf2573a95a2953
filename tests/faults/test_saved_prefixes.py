"""What was published is in the store; another process resumes it, or says why not."""

import collections
import itertools
import threading
import time
from concurrent.futures import Executor, Future

import jax
import msgspec
import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st
from saved import Saved
from tiered import grids

import hybridcache_jax as hc
from hybridcache_jax import Verdict
from hybridcache_jax.codes import Stage
from hybridcache_jax.contents import Contents
from hybridcache_jax.forms import RULES
from hybridcache_jax.offload import pack_writes, saves, saving
from hybridcache_jax.offload.loads import LoadStage
from hybridcache_jax.store import finding
from hybridcache_jax.store.collection import collect
from hybridcache_jax.store.objects import ObjectStore
from hybridcache_jax.store.prefix_store import StoreError
from hybridcache_jax.testing import faults
from hybridcache_jax.testing.stores import Inline, MemoryStore

P = list(toy.P)
CHAT = [*P, 9, 7, 9, 3]
OTHER = [2, 7, 1, 8, 2, 8, 1, 8, 2, 8]


def stored(some, prompt=CHAT, store=None, **options):
    """A session that has published a prompt, and saved it."""
    session = Saved(some, store, **options)
    session.store(prompt, each=True)
    session.save()
    return session


@pytest.mark.parametrize("name", toy.marked(toy.EVERY_KIND, "fine"))
def test_another_process_resumes_what_was_stored(name):
    first = stored(toy.EVERY_KIND[name]())
    ready = first.match([*CHAT, 0])
    assert ready.verdict == Verdict.RESUMABLE
    assert set(first.ends()) <= {"saved", "there", "merged"}
    second = first.restarted()
    waits = second.match([*CHAT, 0])
    assert (waits.verdict, waits.length) == (Verdict.NEEDS_IO, ready.length)
    assert second.load([*CHAT, 0]).ready
    again = second.match([*CHAT, 0])
    assert (again.verdict, again.length) == (Verdict.RESUMABLE, ready.length)
    assert second.answer([*CHAT, 0]).start == ready.length


ACTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["store", "store", "save", "poll", "evict", "restart", "answer", "flip"]
        ),
        st.integers(0, 30),
    ),
    min_size=4,
    max_size=10,
)


@pytest.mark.kind("K13")
@pytest.mark.on_disk("K13")
@pytest.mark.parametrize("name", toy.marked(toy.EVERY_KIND, "fine"))
@settings(max_examples=6)
@given(acts=ACTS, tight=st.booleans(), cuts=st.lists(st.integers(0, 5), max_size=2))
def test_whatever_happens_to_a_store_every_answer_is_a_cold_runs(
    name, acts, tight, cuts
):
    """Saves cut short, bits flipped, evictions and restarts, in any order."""
    some = toy.EVERY_KIND[name]()
    budget = grids(some, 2, 64) if tight else "1MiB"
    session = Saved(some, budget=budget)
    prompts = (CHAT, [*P[:8], 0, 0, 0, 0, 5], OTHER)
    for act, number in acts:
        prompt = prompts[number % 3]
        if act == "store":
            session.store(prompt, each=bool(number % 2))
        elif act == "save":
            if cuts:
                session.objects.cut = cuts.pop()
            try:
                session.save()
            except KeyboardInterrupt:
                session.objects.cut = 10**9
                session = session.restarted()
        elif act == "poll":
            cache, _ = session.prefixes.poll(session.cache)
            session.put(cache)
        elif act == "evict":
            session.move_out()
        elif act == "restart":
            session = session.restarted()
        elif act == "flip" and session.objects.objects:
            names = sorted(session.objects.objects)
            flip(session.objects, names[number % len(names)], number)
        elif act == "answer":
            session.answer([*prompt, number % 10])


def flip(store, name, bit):
    """One bit of an object is another."""
    data = bytearray(store.objects[name])
    if data:
        data[bit * 7919 // 8 % len(data)] ^= 1 << bit % 8
        store.objects[name] = bytes(data)


@pytest.mark.on_disk("B91")
def test_b91_what_another_process_is_told_is_what_it_gets():
    """Saved P[:8]; the next process asks for P[:9] and runs one position."""
    first = stored(toy.fine(), P[:8])
    second = first.restarted()
    waits = second.match(P[:9])
    assert (waits.verdict, waits.length) == (Verdict.NEEDS_IO, 8)
    report = second.load(P[:9])
    assert report.ready
    now = second.match(P[:9])
    assert (now.verdict, now.length, now.start) == (Verdict.RESUMABLE, 8, 8)
    assert report.load.plan.length == now.length
    assert second.answer(P[:9]).start == 8


@pytest.mark.on_disk("B95")
def test_b95_nothing_is_saved_and_found_as_nothing():
    session = Saved(toy.fine())
    lease = session.admit(P[:3])
    session.release(lease)
    session.save()
    assert session.objects.objects == {}
    live = session.admit(P[:3])
    session.feed(live, P[:3])
    for prompt in ([], P[:1], [7, 7, 7]):
        plan = session.match(prompt)
        assert (plan.verdict, plan.length) == (Verdict.NEEDS_FULL_RECOMPUTE, 0)
    # A record that is named and is not there, beside a row of three tokens.
    saved = stored(toy.fine(), P[:8], session.objects)
    waits = session.match(P[:9])
    for name in list(saved.objects.objects):
        saved.objects.delete(name)
    assert (waits.verdict, waits.length) == (Verdict.NEEDS_IO, 8)
    assert session.load(P[:9]).failed
    session.check(live, P[:3])
    session.feed(live, P[3:6])
    session.check(live, P[:6])


@pytest.mark.on_disk("B87")
def test_b87_marks_of_use_that_are_missing_or_wrong_harm_nothing():
    """One record's mark is lost, another's lies ahead, and the ticks begin anew."""
    store, some = MemoryStore(), toy.fine()
    prompts = [[first, *P[1:8]] for first in (1, 2, 3)]
    for prompt in prompts:
        stored(some, prompt, store)
    collect(store, keep_ticks=9)
    for prompt in prompts:
        stored(some, [*prompt, 0], store)
    lost, ahead, *_ = sorted(store.names("used/000000000001/"))
    store.delete(lost)
    store.put(ahead.replace("/000000000001/", "/000000999999/"), b"")
    for name in store.names("ticks/"):
        store.delete(name)
    for _ in range(4):
        collect(store, keep_ticks=9)
    for prompt in prompts:
        assert Saved(some, store).answer([*prompt, 0]).length == 8
    # None of them is immortal where there is a limit.
    collect(store, quota=1)
    assert store.names("records/") == []
    for prompt in prompts:
        assert Saved(some, store).match([*prompt, 0]).length == 0


@pytest.mark.outer_tier("B41")
def test_b41_a_namespace_finds_its_own_prefixes_in_the_store_and_no_other():
    some = toy.fine()
    first = Saved(some)
    tenants = {name: some.identity.within(name) for name in ("a", "b", "")}
    some_prompt = [*CHAT, 0]

    def match(session, tenant):
        identity = tenants[tenant]
        return session.prefixes.match(session.cache, some_prompt, identity)

    lease = first.acquire(first.prefixes.match(first.cache, CHAT, tenants["a"]))
    first.feed(lease, CHAT)
    first.release(lease)
    first.save()
    second = first.restarted()
    for tenant in ("b", ""):
        before = second.objects.reads
        assert match(second, tenant).verdict == Verdict.NEEDS_FULL_RECOMPUTE
        assert second.objects.reads == before
    assert match(second, "a").verdict == Verdict.NEEDS_IO
    assert hc.Identity("w", "c", "l", namespace="") == hc.Identity("w", "c", "l")


@pytest.mark.parametrize("scope", ["request", "session", "namespace", "global", "off"])
def test_the_scope_decides_who_finds_a_record(scope):
    some = toy.fine()
    first = Saved(some, policy=hc.ReusePolicy(scope))

    def match(session, request, of, namespace):
        return session.prefixes.match(
            session.cache,
            [*CHAT, 0],
            some.identity.within(namespace),
            request=request,
            session=of,
        ).verdict

    mine = some.identity.within("a")
    plan = first.prefixes.match(first.cache, CHAT, mine, request="r", session="s")
    lease = first.acquire(plan)
    first.feed(lease, CHAT)
    first.release(lease)
    first.save()
    assert bool(first.objects.objects) == (scope not in ("off", "request"))
    second = first.restarted()
    found = {
        who: match(second, *who) == Verdict.NEEDS_IO
        for who in itertools.product(("r", "q"), ("s", "t"), ("a", "b"))
    }
    assert found == {
        (request, of, namespace): scope == "global"
        or (scope == "namespace" and namespace == "a")
        or (scope == "session" and (of, namespace) == ("s", "a"))
        for request, of, namespace in found
    }


def test_records_of_a_producer_that_was_narrowed_are_found_by_nobody():
    first = stored(toy.fine())
    second, third = first.restarted(), first.restarted()
    assert second.match([*CHAT, 0]).verdict == Verdict.NEEDS_IO
    second.prefixes.set_scope(second.model.identity, "request")
    for session in (second, third, third.restarted()):
        assert session.match([*CHAT, 0]).verdict == Verdict.NEEDS_FULL_RECOMPUTE
    # What is stored from then on is found again.
    second.prefixes.set_scope(second.model.identity, "namespace")
    second.store(CHAT)
    second.save()
    assert third.match([*CHAT, 0]).verdict == Verdict.NEEDS_IO


def test_a_store_that_fails_costs_reuse_and_nothing_else(caplog):
    first = stored(toy.fine())
    session = first.restarted()
    session.objects.error = StoreError("no way there")
    session.answer([*CHAT, 0])
    session.store(CHAT)
    session.save()
    assert session.ends() == {"failed": 1}
    assert session.total("store_lookup_failures_total") > 0
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "A store did not answer, nothing is reused: StoreError: no way there",
        "A prefix was not saved: StoreError: no way there",
    ]
    # Once it is back it is of use again.
    session.objects.error = None
    third = first.restarted()
    plan = third.match([*CHAT, 0])
    third.objects.error = StoreError("no way there")
    load = third.prefixes.load(third.cache, plan)
    before = jax.tree.map(np.array, (third.cache.pools, third.cache.tables))
    cache, (report,) = third.prefixes.poll(third.cache)
    third.put(cache)
    assert (report.load, report.stage, report.failed) == (load, LoadStage.READ, True)
    assert "no way there" in report.why
    after = jax.tree.map(np.array, (third.cache.pools, third.cache.tables))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    third.objects.error = None
    assert third.load([*CHAT, 0]).ready
    assert third.answer([*CHAT, 0]).start == plan.length


def test_a_damaged_record_is_a_miss_and_the_log_says_why(caplog):
    first = stored(toy.fine())
    (name, *_) = first.objects.names("records/")
    data = bytearray(first.objects.objects[name])
    data[-1] ^= 1
    first.objects.objects[name] = bytes(data)
    second = first.restarted()
    for _ in range(2):
        assert second.match([*CHAT, 0]).verdict == Verdict.NEEDS_FULL_RECOMPUTE
    assert second.total("records_passed_by_total") == 2
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"{name} is not used: ")
    assert "not those that were written" in said


def test_a_store_that_hangs_costs_one_wait():
    first = stored(toy.fine())
    second = first.restarted(executor=None, patience=0.05)
    goes_on, names, asked = threading.Event(), second.objects.names, []

    def hangs(prefix):
        asked.append(prefix)
        goes_on.wait()
        return names(prefix)

    second.objects.names = hangs
    second.answer([*CHAT, 0])
    for _ in range(5):
        assert second.match([*CHAT, 0]).verdict == Verdict.NEEDS_FULL_RECOMPUTE
    assert len(asked) == 1
    assert second.total("store_lookup_failures_total") >= 6
    second.objects.names = names
    goes_on.set()
    # Once that one has ended the store is asked again.
    deadline = time.monotonic() + 30
    while second.match([*CHAT, 0]).verdict != Verdict.NEEDS_IO:
        assert time.monotonic() < deadline
    second.prefixes.close()


def test_a_block_that_is_damaged_fails_one_load_and_is_not_asked_for_again():
    first = stored(toy.fine())
    second = first.restarted()
    ready = second.match([*CHAT, 0])
    for name in second.objects.names("packs/"):
        data = second.objects.objects[name]
        second.objects.objects[name] = bytes(byte ^ 1 for byte in data)
    report = second.load([*CHAT, 0])
    assert (report.failed, report.stage) == (True, LoadStage.READ)
    assert "no longer has" in report.why
    # One pack fails one load; there are as many packs as saves.
    for _ in second.objects.names("packs/")[1:]:
        if second.match([*CHAT, 0]).verdict == Verdict.NEEDS_IO:
            assert second.load([*CHAT, 0]).failed
    assert second.match([*CHAT, 0]).verdict == Verdict.NEEDS_FULL_RECOMPUTE
    second.answer([*CHAT, 0])
    # What is computed anew takes the place of what is damaged.
    second.store(CHAT)
    second.save()
    third = first.restarted()
    assert third.load([*CHAT, 0]).ready
    assert third.answer([*CHAT, 0]).length == ready.length


def test_what_was_computed_anew_counts_again_in_the_same_process():
    """Its pack has the name that was refused; it is known, and is not written again."""
    first = Saved(toy.fine())
    first.store(CHAT)
    first.save()
    second = first.restarted()
    for name in second.objects.names("packs/"):
        second.objects.objects[name] = b""
    while second.match([*CHAT, 0]).verdict == Verdict.NEEDS_IO:
        assert second.load([*CHAT, 0]).failed
    for end in ({"saved": 1}, {"saved": 1, "there": 1}):
        second.store_cold(CHAT)
        # A save that is begun again for ever would keep ``flush`` for ever, too.
        for _ in range(300):
            second.poll()
        assert second.ends() == end


def test_a_claim_of_before_does_not_say_where_a_block_lies():
    """A save learns by claims that it looks up when it ends; some are true no more."""
    session = Saved(toy.only_full())
    session.store_cold(OTHER)
    session.save()
    where = session.prefixes._outer.whereabouts
    _, pool, ids, epochs = next(session.prefixes.claims())
    block, epoch = int(ids[0]), int(epochs[0])
    place = where.stored(pool, block, epoch)
    assert place is not None
    later = msgspec.structs.replace(place, start=place.start + 8)
    where.lies(pool, block, epoch + 2, later)
    where.lies(pool, block, epoch, place)
    assert where.stored(pool, block, epoch + 2) == later
    assert where.stored(pool, block, epoch) is None


def test_a_block_that_was_damaged_in_host_memory_is_not_saved():
    """With a digest of what it is now it would come back as if it were right."""
    session = Saved(toy.fine())
    session.store(CHAT)
    session.move_out()
    session.tier.damage(faults.flipped(3))
    session.save()
    session.tier.damage(None)
    assert session.ends() == {"lost": 1}
    assert session.objects.objects == {}
    assert any(Stage.QUARANTINED in table.stage for table in session.tier.places)
    session.answer([*CHAT, 0])


def test_a_record_names_no_pack_of_which_a_load_failed_meanwhile():
    first = stored(toy.fine())
    second = first.restarted()
    longer = [*CHAT, 4, 4, 4, 4]
    second.store_cold(longer)
    # It has begun, and goes on from the record that is there.
    cache, _ = second.prefixes.poll(second.cache)
    second.put(cache)
    for pack in second.objects.names("packs/"):
        second.prefixes._outer.whereabouts.refuse(pack)
        second.objects.delete(pack)
    second.save()
    assert second.ends() == {"saved": 1}
    third = first.restarted()
    assert third.load([*longer, 0]).ready
    assert third.answer([*longer, 0]).length == len(longer)


def test_what_is_longer_than_host_memory_comes_back_from_the_store():
    some = toy.fine()
    first = stored(some)
    ready = first.match([*CHAT, 0])
    second = first.restarted(budget=grids(some, 1, 64))
    assert second.match([*CHAT, 0]).length == ready.length
    assert second.answer([*CHAT, 0]).start == ready.length
    # Evicted again, most of it has no memory outside and is led to the store.
    second.move_out()
    held = second.tier.nbytes
    assert (
        0
        < held
        <= sum(
            pool.block_bytes * (some.grid // pool.block_tokens + 2)
            for pool in some.plan.spec.pools
        )
    )
    # It is known where all of it lies; the store need not be asked again.
    second.objects.error = StoreError("no way there")
    waits = second.match([*CHAT, 0])
    second.objects.error = None
    assert (waits.verdict, waits.length) == (Verdict.NEEDS_IO, ready.length)
    assert second.answer([*CHAT, 0]).start == ready.length


def test_what_is_there_already_is_not_written_again():
    first = stored(toy.fine())
    before = dict(first.objects.objects)
    second = Saved(toy.fine(), first.objects)
    # As if both had come to the two at once.
    second.store_cold(CHAT)
    second.save()
    assert second.ends() == {"there": 1}
    # Nothing but that it was of use.
    for name in second.objects.objects.keys() - before.keys():
        assert name.startswith("used/")
        del second.objects.objects[name]
    assert second.objects.objects == before
    # A longer one adds what lies behind it, and its own moving parts.
    longer = [*CHAT, 4, 4, 4, 4, 4, 4, 4, 4]
    second.store(longer)
    second.save()
    added = {
        name: data
        for name, data in second.objects.objects.items()
        if name not in before
    }
    size = sum(len(data) for name, data in added.items() if name.startswith("packs/"))
    pools = second.model.plan.spec.pools
    assert (
        0 < size <= sum(pool.block_bytes * 8 // pool.block_tokens * 3 for pool in pools)
    )


def test_many_documents_behind_one_beginning_are_each_found(monkeypatch):
    """Only so many records beside each other are opened, and none is hidden by others.

    Each leaves the beginning that all share at a place of its own, or at the same one.
    """
    monkeypatch.setattr(finding, "_MOST_OPENED", 2)
    some = toy.EVERY_KIND["fine"]()
    rng = np.random.default_rng(5)
    shared = rng.integers(1, 9, 4 * some.grid).tolist()
    documents = []
    for where in (1, 4, 2, 1, 3, 1, 2):
        own = rng.integers(1, 9, 3 * some.grid).tolist()
        documents.append([*shared[: where * some.grid], where % 8 + 1, *own])
    session, store = None, MemoryStore()
    for document in documents:
        session = Saved(some, store) if session is None else session.restarted()
        session.store(document)
        session.save()
        assert session.ends() == {"saved": 1}
    for document in documents:
        question = [*document[:-1], 9 - document[-1], 3]
        whole = (len(document) - 1) // some.grid * some.grid
        reader = session.restarted()
        assert reader.match(question).claimed_length == whole
        assert reader.load(question).ready
        reader.answer(question)


def test_a_save_whose_block_is_lost_writes_no_record():
    session = Saved(toy.fine(), budget=grids(toy.fine(), 1, 0), known=0)
    session.store(CHAT)
    assert session.prefixes.saving == 1
    session.move_out()
    session.save()
    assert session.ends() == {"lost": 1}
    assert session.objects.names("records/") == []


def test_every_point_that_is_kept_is_resumed_from_one_record():
    """A prompt that leaves the saved one early finds the windows of its own point."""
    some = toy.fine()
    first = Saved(some)
    first.store(CHAT, (some.grid,), each=True)
    assert first.prefixes.saving == 2
    first.save()
    # Of 16 publications and the release the first had its turn, the last one counts.
    assert first.ends() == {"saved": 2, "merged": 15}
    for length in range(some.grid, len(CHAT) + 1, some.grid):
        prompt = [*CHAT[:length], 0, 0, 0]
        ready = first.match(prompt)
        second = first.restarted()
        plan = second.answer(prompt)
        assert (plan.verdict, plan.length) == (ready.verdict, ready.length)
        assert ready.verdict == Verdict.RESUMABLE


def test_a_save_whose_block_changed_hands_writes_no_record():
    """The index does not know it yet: the facts are asked before a block is copied."""
    session = Saved(toy.fine())
    session.store(CHAT)
    for pool in range(len(session.model.plan.spec.pools)):
        block = faults.stored(session.cache, pool)[0]
        session.put(faults.hand_over(session.cache, pool, block))
    session.save()
    assert session.ends() == {"lost": 1}
    assert session.objects.names("records/") == []


def test_what_was_swept_from_the_store_is_written_anew():
    session = stored(toy.fine())
    # Its record was never used elsewhere: it goes, and its packs with the next run.
    for _ in range(4):
        collect(session.objects, keep_ticks=1)
    assert not session.objects.names("packs/")
    longer = [*CHAT, 4, 4, 4, 4]
    session.store(longer)
    session.save()
    assert "failed" not in session.ends()
    second = session.restarted()
    ready = session.match([*longer, 0])
    assert second.answer([*longer, 0]).length == ready.length


def test_a_history_with_a_hole_is_not_saved():
    some = toy.fine()
    session = Saved(some)
    lease = session.admit(CHAT)
    session.feed(lease, CHAT)
    session.publish(lease)
    claims = session.match(CHAT).claims
    history = next(n for n, p in enumerate(some.plan.spec.pools) if RULES[p.form].grows)

    def holds(pool, ids, epochs, first):
        return ~((pool == history) & (first == first[len(first) // 2]))

    before = session.prefixes.saving
    key = session.match(CHAT).key
    session.prefixes._link.published(key, claims, Contents(), holds)
    assert session.prefixes.saving == before


def test_a_save_that_waits_ends_with_its_scope():
    session = Saved(toy.fine())
    session.store(CHAT)
    assert session.prefixes.saving == 1
    session.prefixes.set_scope(session.model.identity, "global")
    assert session.prefixes.saving == 0
    session.save()
    assert session.ends() == {"lost": 1}


def test_no_more_saves_wait_than_may(monkeypatch):
    monkeypatch.setattr(saves, "MOST_WAITING", 2)
    session = Saved(toy.fine())
    for first in range(4):
        session.store([first, *P[1:8]])
    assert session.prefixes.saving == 2
    session.save()
    assert session.ends() == {"saved": 2, "too_many": 2}


class Held(Executor):
    """Runs nothing until it is told to."""

    def __init__(self):
        self.tasks = []

    def submit(self, fn, /, *args, **kwargs):
        self.tasks.append((Future(), fn, args, kwargs))
        return self.tasks[-1][0]

    def run(self, but=None):
        now = [task for task in self.tasks if task[1] is not but]
        self.tasks = [task for task in self.tasks if task[1] is but]
        for future, fn, args, kwargs in now:
            future.set_result(fn(*args, **kwargs))


def test_while_two_packs_are_written_nothing_more_is_copied(monkeypatch):
    """However often it is asked, and what comes later waits for its turn."""
    monkeypatch.setattr(saving, "PACK_BYTES", 1)
    held = Held()
    session = Saved(toy.fine(), executor=held)
    session.store(CHAT, each=True)
    copied, most = [], 0
    copies = session.prefixes._outer.whereabouts.copies
    monkeypatch.setattr(
        session.prefixes._outer.whereabouts,
        "copies",
        lambda *given: copied.append(given) or copies(*given),
    )
    while session.prefixes.saving:
        for _ in range(32):
            cache, _ = session.prefixes.poll(session.cache)
            session.put(cache)
        waiting = sum(fn is pack_writes.write_blocks for _, fn, _, _ in held.tasks)
        most = max(most, waiting)
        assert waiting <= 2
        assert len(copied) <= 2
        copied.clear()
        held.run()
    assert most == 2
    assert set(session.ends()) <= {"saved", "merged"}
    assert session.restarted(executor=Inline()).answer([*CHAT, 0]).length >= 12


def test_few_steps_carry_a_copy_unless_somebody_waits(monkeypatch):
    """One of eight; every one of a flush, and where more saves wait than a few."""
    for few, flushed, apart in ((8, False, 8), (8, True, 1), (0, False, 1)):
        monkeypatch.setattr(saves, "_FEW", few)
        session, polls, at = Saved(toy.fine()), [], []
        session.store(CHAT)
        outer = session.prefixes._outer
        poll, copies = outer.poll, outer.whereabouts.copies

        def counted(*given, poll=poll, polls=polls):
            polls.append(given)
            return poll(*given)

        def copied(*given, copies=copies, polls=polls, at=at):
            at.append(len(polls))
            return copies(*given)

        monkeypatch.setattr(outer, "poll", counted)
        monkeypatch.setattr(outer.whereabouts, "copies", copied)
        if flushed:
            session.save()
        while session.prefixes.saving:
            session.poll()
        assert len(at) > 2
        assert set(np.diff(at)) == {apart}
        assert session.ends() == {"saved": 1}


def test_packs_of_a_save_that_was_given_up_still_count(monkeypatch):
    monkeypatch.setattr(saving, "PACK_BYTES", 1)
    held = Held()
    session = Saved(toy.fine(), executor=held)

    def most_written():
        for _ in range(40):
            cache, _ = session.prefixes.poll(session.cache)
            session.put(cache)
            held.run(but=pack_writes.write_blocks)
        return len(held.tasks)

    for prompt in (CHAT, OTHER, [5, *P]):
        session.store(prompt)
        assert most_written() == 2
        session.prefixes._link.saves.give_up(lambda key: True)
    held.run()
    session.store([6, *P])
    assert most_written() == 2


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_threads_of_its_own_give_the_same(where, tmp_path):
    store = MemoryStore() if where == "memory" else ObjectStore(tmp_path)
    first = Saved(toy.fine(), store, executor=None)
    first.store(CHAT, each=True)
    first.save()
    second = first.restarted()
    ready = first.match([*CHAT, 0])
    plan = second.match([*CHAT, 0])
    load = second.prefixes.load(second.cache, plan)
    for _ in range(2000):
        cache, reports = second.prefixes.poll(second.cache)
        second.put(cache)
        if any(report.load == load and report.ready for report in reports):
            break
    assert second.answer([*CHAT, 0]).start == ready.length
    for session in (first, second):
        session.prefixes.close()


def test_two_replicas_on_one_folder_write_one_record_of_each_prompt(tmp_path):
    """Both serve and save at once; each finds what the other one saved."""
    some, replicas = toy.fine(), []
    for _ in range(2):
        replicas.append(Saved(some, ObjectStore(tmp_path), executor=None))
    prompts = ([1, *P[1:8]], [2, *P[1:8]], [3, *P[1:8]], [4, *P[1:8]])
    for turn in range(4):
        for number, replica in enumerate(replicas):
            replica.store(prompts[(turn + 2 * number) % 4])
            replica.put(replica.prefixes.poll(replica.cache)[0])
    for replica in replicas:
        replica.save()
        replica.prefixes.close()
    records = list(ObjectStore(tmp_path).names("records/"))
    assert len(records) == len(prompts)
    third = replicas[0].restarted(executor=Inline())
    for prompt in prompts:
        assert third.answer([*prompt, 0]).length == 8


def test_a_store_needs_a_tier():
    plan = toy.fine().plan
    with pytest.raises(ValueError, match="needs places in a tier"):
        hc.PrefixCache(plan, store=MemoryStore())


def test_what_is_used_is_not_collected_and_what_is_not_goes():
    first = stored(toy.fine())
    for _ in range(3):
        collect(first.objects, keep_ticks=1)
        second = first.restarted()
        plan = second.answer([*CHAT, 0])
        assert plan.verdict == Verdict.RESUMABLE
    for _ in range(3):
        collect(first.objects, keep_ticks=1)
    third = first.restarted()
    assert third.match([*CHAT, 0]).verdict == Verdict.NEEDS_FULL_RECOMPUTE
    assert not first.objects.names("packs/")


def test_hooks_are_told_and_one_that_raises_costs_nothing(caplog):
    heard = []

    def fails(*said):
        heard.append(said)
        raise ValueError("a hook of the server")

    hooks = hc.Hooks(on_ready=fails, on_failed=fails, on_evicted=fails)
    first = stored(toy.fine(), hooks=hooks)
    first.move_out()
    blocks = collections.Counter()
    for form, count, why in heard:
        blocks[form] += count if why == "asked" else 0
    assert blocks == {
        pool.form: sum(
            len(CHAT) // other.block_tokens
            for other in first.model.plan.spec.pools
            if other.form == pool.form
        )
        for pool in first.model.plan.spec.pools
    }
    heard.clear()
    assert first.load([*CHAT, 0]).ready
    ((report,),) = heard
    assert report.ready
    heard.clear()
    second = first.restarted()
    plan = second.match([*CHAT, 0])
    second.objects.error = StoreError("no way there")
    second.prefixes.load(second.cache, plan)
    cache, (report,) = second.prefixes.poll(second.cache)
    second.put(cache)
    second.objects.error = None
    assert [said for said in heard if len(said) == 1] == [(report,)]
    assert len(caplog.records) >= len(heard)
