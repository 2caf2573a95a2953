"""A store far away: what it says too late is not lost, and not believed either."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import toy
from saved import Saved

from hybridcache_jax import Verdict
from hybridcache_jax.store.trust import give_up

CHAT = [(5 * n + n * n) % 9 + 1 for n in range(24)]


class Far:
    """Every call of a store takes so many seconds; those for records are noted."""

    def __init__(self, store, seconds):
        self.store, self.seconds = store, seconds
        self.calls, self.now, self.most = [], 0, 0

    def __getattr__(self, name):
        def call(*given):
            if given[0].startswith("records/"):
                self.calls.append((name, *given))
                self.now += 1
                self.most = max(self.most, self.now)
            time.sleep(self.seconds)
            self.now -= given[0].startswith("records/")
            answer = getattr(self.store, name)(*given)
            return list(answer) if name == "names" else answer

        return call


@pytest.fixture(scope="module")
def some():
    return toy.model((toy.FULL,), max_length=32)


def chain(some):
    """Six records, each of which goes on from the one before."""
    first = Saved(some)
    for length in range(4, 25, 4):
        first.store(CHAT[:length])
        first.save()
    assert len(first.objects.names("records/")) == 6
    return first.objects


def far(some, objects, seconds, patience):
    executor = ThreadPoolExecutor(4)
    far = Saved(some, Far(objects, seconds), executor=executor, patience=patience)
    return far, executor


def late(session, prompt):
    """Misses, and waits until what was asked has been said."""
    assert session.match(prompt).verdict == Verdict.NEEDS_FULL_RECOMPUTE
    future = session.prefixes._link._lookups._late
    assert future is not None
    future.result(30)


def load(session, prompt):
    load = session.ask(prompt)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for report in session.poll():
            if report.load == load and (report.ready or report.failed):
                return report
    raise AssertionError("The load does not end.")


def test_a_chain_that_is_told_late_is_found_at_the_next_match(some):
    session, executor = far(some, chain(some), 0.03, 0.12)
    late(session, [*CHAT, 0])
    plan = session.match([*CHAT, 0])
    assert (plan.verdict, plan.length) == (Verdict.NEEDS_IO, len(CHAT))
    assert load(session, [*CHAT, 0]).ready
    assert session.answer([*CHAT, 0]).length == len(CHAT)
    executor.shutdown()


def test_another_prompt_begins_where_a_late_one_was(some):
    """It is found as far as the two are the same, and no further."""
    session, executor = far(some, chain(some), 0.03, 0.12)
    late(session, [*CHAT, 0])
    other = [*CHAT[:17], 0, 0, 0, 0, 0, 0]
    plan = session.match(other)
    assert (plan.verdict, plan.length) == (Verdict.NEEDS_IO, 16)
    # The first one has lost nothing by that.
    plan = session.match([*CHAT, 0])
    assert (plan.verdict, plan.length) == (Verdict.NEEDS_IO, len(CHAT))
    executor.shutdown()


def test_what_was_told_late_and_given_up_since_is_not_used(some):
    objects = chain(some)
    session, executor = far(some, objects, 0.03, 0.12)
    late(session, [*CHAT, 0])
    give_up(objects, some.identity)
    plan = session.match([*CHAT, 0])
    assert (plan.verdict, plan.length) == (Verdict.NEEDS_FULL_RECOMPUTE, 0)
    executor.shutdown()


def test_what_was_told_late_and_is_gone_since_fails_as_a_load(some):
    objects = chain(some)
    session, executor = far(some, objects, 0.03, 0.12)
    late(session, [*CHAT, 0])
    for name in objects.names("packs/"):
        objects.delete(name)
    assert load(session, [*CHAT, 0]).failed
    assert session.match([*CHAT, 0]).verdict == Verdict.NEEDS_FULL_RECOMPUTE
    executor.shutdown()


def test_a_chain_is_led_along_by_names_and_opened_all_at_once(some):
    session, executor = far(some, chain(some), 0.05, 30.0)
    assert session.match([*CHAT, 0]).length == len(CHAT)
    executor.shutdown()
    calls = [call for call, *_ in session.objects.calls]
    # Of every record its folder, then whether it is too large, and all of it.
    assert calls == ["names"] * 6 + ["get"] * 12
    assert session.objects.most == 6
