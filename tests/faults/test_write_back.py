"""Write-back: a prefix is saved when it begins to leave the device, or by a flush."""

import numpy as np
import pytest
import toy
from saved import Saved

import hybridcache_jax as hc
from hybridcache_jax import Verdict
from hybridcache_jax.offload import held_back

P = list(toy.P)
CHAT = [*P, 9, 7, 9, 3]
OTHER = [2, 7, 1, 8, 2, 8, 1, 8, 2, 8]


def session(some=None, **options):
    return Saved(some or toy.fine(), write_back=True, **options)


def records(one):
    return len([name for name in one.objects.objects if name.startswith("records/")])


def polled(one, times=400):
    for _ in range(times):
        one.poll()


def test_what_is_not_evicted_is_not_written_and_lost_with_the_process():
    one = session()
    one.store(CHAT, each=True)
    polled(one)
    assert one.objects.objects == {}
    # Of its chunks the last one has all.
    assert one.prefixes.saving == 1
    again = one.restarted()
    assert again.match([*CHAT, 0]).verdict == Verdict.NEEDS_FULL_RECOMPUTE
    assert again.answer([*CHAT, 0]).start == 0


@pytest.mark.parametrize("name", toy.marked(toy.EVERY_KIND, "fine"))
def test_what_was_evicted_is_resumed_by_another_process(name):
    one = session(toy.EVERY_KIND[name]())
    one.store(CHAT, each=True)
    one.move_out()
    polled(one)
    assert one.prefixes.saving == 0
    again = one.restarted()
    assert again.match([*CHAT, 0]).verdict == Verdict.NEEDS_IO
    assert again.load([*CHAT, 0]).ready
    assert again.answer([*CHAT, 0]).start == one.match([*CHAT, 0]).length


def test_an_eviction_saves_the_prefix_that_it_is_of_and_no_other():
    one = session(toy.only_full())
    one.store(OTHER)
    one.store(CHAT)
    free = [int(table.num_free) for table in one.cache.tables]
    one.put(one.prefixes.make_room(one.cache, [free[0] + 1]))
    polled(one)
    assert records(one) == one.prefixes.saving == 1
    again = one.restarted()
    found = [again.match([*tokens, 0]).length for tokens in (OTHER, CHAT)]
    assert [bool(length) for length in found] == [True, False]


def test_a_flush_saves_all_that_was_published():
    one = session()
    for tokens in (CHAT, OTHER):
        one.store(tokens)
    one.save()
    assert one.prefixes.saving == 0
    again = one.restarted()
    for tokens in (CHAT, OTHER):
        assert again.load([*tokens, 0]).ready
        again.answer([*tokens, 0])
    # From here on things are held back again.
    one.store_cold([5, *CHAT])
    polled(one)
    assert one.prefixes.saving == 1


def test_no_more_are_held_back_than_are_remembered(monkeypatch):
    monkeypatch.setattr(held_back, "MOST_HELD", 1)
    one = session()
    one.store(CHAT)
    one.store(OTHER)
    polled(one)
    assert one.prefixes.saving == 1
    assert one.restarted().match([*CHAT, 0]).verdict == Verdict.NEEDS_IO


def test_a_producer_that_was_narrowed_has_nothing_to_be_saved():
    one = session()
    one.store(CHAT)
    one.prefixes.set_scope(one.model.identity, hc.Scope.SESSION)
    assert one.prefixes.saving == 0
    one.save()
    assert records(one) == 0


def test_logits_wait_with_their_prefix():
    one, given = session(), np.float32(range(5))
    lease = one.admit(P[:8])
    one.feed(lease, P[:8])
    one.put(one.prefixes.publish(one.cache, lease, logits=given))
    one.feed(lease, [1, 1])
    one.release(lease)
    # The answer goes on from the prompt, and does not have its logits.
    assert one.prefixes.saving == 2
    one.move_out()
    polled(one)
    got = one.restarted().prefixes.stored_logits(P[:8], one.model.identity)
    np.testing.assert_array_equal(got, given)


def test_it_takes_a_store():
    with pytest.raises(ValueError, match="give a store"):
        hc.PrefixCache(toy.fine().plan, write_back=True)
