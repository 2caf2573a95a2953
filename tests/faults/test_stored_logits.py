"""Next-token logits in a record: those of exactly this prompt, or none.

An exact repeat is answered from them: the token that is chosen of them is the only
position to run.
"""

import numpy as np
import pytest
import toy
from ml_dtypes import bfloat16
from saved import Saved, Tiered

import hybridcache_jax as hc
from hybridcache_jax import Verdict
from hybridcache_jax.store.collection import collect
from hybridcache_jax.store.exports import export_records
from hybridcache_jax.store.imports import import_records
from hybridcache_jax.store.inventory import take_inventory
from hybridcache_jax.store.ticks import last_used
from hybridcache_jax.store.verification import verify
from hybridcache_jax.testing.stores import MemoryStore

P = list(toy.P)[:8]


def logits_of(tokens, dtype=np.float32):
    """Nobody else's."""
    noise = np.random.default_rng([len(tokens), *tokens]).normal(size=11)
    return noise.astype(dtype)


def publish(session, tokens, *, logits="own", cold=False):
    """A row that runs a prompt and publishes it with its logits."""
    plan = session.prefixes.cold_plan(tokens, session.model.identity)
    lease = session.acquire(plan) if cold else session.admit(tokens)
    session.feed(lease, tokens[lease.plan.start :])
    given = logits_of(tokens) if isinstance(logits, str) else logits
    session.put(session.prefixes.publish(session.cache, lease, logits=given))
    return lease


def stored(tokens=P, some=None, **options):
    session = Saved(some or toy.fine())
    lease = publish(session, tokens, **options)
    session.save()
    session.release(lease)
    session.save()
    return session


def read(session, tokens, identity=None, **options):
    identity = identity or session.model.identity
    return session.prefixes.stored_logits(tokens, identity, **options)


def test_an_exact_repeat_runs_the_chosen_token_alone():
    second = stored().restarted()
    got = read(second, P)
    np.testing.assert_array_equal(got, logits_of(P))
    assert not got.flags.writeable
    # Nothing was loaded for it; what goes on needs the one token more.
    assert second.match(P).length < len(P)
    chosen = int(got.argmax())
    assert second.load([*P, chosen]).ready
    plan = second.match([*P, chosen])
    assert (plan.verdict, plan.start) == (Verdict.RESUMABLE, len(P))
    assert plan.tokens_to_run == 1
    assert second.answer([*P, chosen]).start == len(P)


@pytest.mark.parametrize("dtype", [np.float32, bfloat16, np.float16])
def test_they_come_back_as_they_were_given(dtype):
    given = logits_of(P, dtype)
    given[3] = -np.inf
    got = read(stored(logits=given), P)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, given)


def test_other_prompts_and_producers_get_none():
    session = stored()
    other = hc.Identity("another", "c", session.model.plan.spec.fingerprint)
    for tokens in (P[:4], [*P, 1], [*P[:7], P[7] + 1], P[::-1], [], P[:7]):
        assert read(session, tokens) is None
    assert read(session, P, other) is None
    spans = [(2, 3, "picture")]
    assert read(session, P, contents=spans) is None
    assert read(session, P) is not None


def test_logits_of_equal_names_stay_apart():
    """The record of one prompt under the name of another one's."""
    other = [*P[:4], *P[:4]]
    session = Saved(toy.fine())
    for tokens in (P, other):
        session.release(publish(session, tokens, cold=True), publish=False)
        session.save()
    store = session.objects
    names = [n for n in store.objects if n.startswith("records/")]
    for one in names:
        for two in names:
            swapped = MemoryStore({**store.objects, one: store.objects[two]})
            again = Saved(session.model, swapped)
            for tokens in (P, other):
                got = read(again, tokens)
                assert got is None or np.array_equal(got, logits_of(tokens))


def test_a_row_off_the_grid_keeps_none_and_a_longer_save_takes_none_away():
    session = stored([*P, 9], toy.only_full())
    assert read(session, [*P, 9]) is None
    assert read(session, P) is None
    # The prompt's save waits for its turn behind another when its answer is published.
    session = Saved(toy.fine())
    session.store([5, 5, 5, 5])
    lease = publish(session, P)
    session.feed(lease, [1, 2, 3, 4])
    session.release(lease)
    assert session.prefixes.saving == 3
    session.save()
    np.testing.assert_array_equal(read(session, P), logits_of(P))
    assert read(session, [*P, 1, 2, 3, 4]) is None


def test_a_record_that_is_there_gets_what_it_lacks():
    session = stored(logits=None)
    assert read(session, P) is None
    packs = [n for n in session.objects.objects if n.startswith("packs/")]
    session.release(publish(session, P, cold=True), publish=False)
    session.save()
    np.testing.assert_array_equal(read(session, P), logits_of(P))
    # No block was copied again, and the record is one.
    assert len([n for n in session.objects.objects if n.startswith("packs/")]) == (
        len(packs) + 1
    )
    assert len([n for n in session.objects.objects if n.startswith("records/")]) == 1
    before = dict(session.objects.objects)
    session.release(publish(session, P, cold=True), publish=False)
    session.save()
    assert session.objects.objects == before


def test_records_that_go_on_from_a_prompt_do_not_stand_for_it():
    longer = [*P, 9, 7, 9, 3]
    session = stored(longer)
    assert read(session, P) is None
    for given in (None, "own", "own"):
        session.release(publish(session, P, logits=given, cold=True), publish=False)
        session.save()
        got = read(session, P)
        assert got is None if given is None else np.array_equal(got, logits_of(P))
    np.testing.assert_array_equal(read(session, longer), logits_of(longer))
    again = session.restarted()
    for tokens in (P, longer):
        assert again.load([*tokens, 0]).ready
        assert again.answer([*tokens, 0]).start == len(tokens)


def test_every_flipped_byte_costs_the_logits_and_no_block():
    session = stored()
    store, before = session.objects, dict(session.objects.objects)
    (mine,) = (n for n, data in before.items() if data == logits_of(P).tobytes())
    again = session.restarted()
    for name, data in before.items():
        for place in range(len(data)):
            damaged = bytearray(data)
            damaged[place] ^= 1 << place % 8
            for wrong in (bytes(damaged), data[:place]):
                store.objects[name] = wrong
                got = read(again, P)
                again.tier.refused.clear()
                if name == mine or name.startswith("records/"):
                    assert got is None
                else:
                    np.testing.assert_array_equal(got, logits_of(P))
        store.objects[name] = data
    store.objects[mine] = bytes(44)
    assert again.load([*P, 0]).ready


def test_damaged_logits_are_not_asked_for_again_and_written_again():
    session = stored()
    store = session.objects
    (name,) = (n for n, d in store.objects.items() if d == logits_of(P).tobytes())
    whole, store.objects[name] = store.objects[name], bytes(44)
    again = session.restarted()
    assert read(again, P) is None
    store.objects[name] = whole
    assert read(again, P) is None
    store.objects[name] = bytes(44)
    again.release(publish(again, P, cold=True), publish=False)
    again.save()
    assert store.objects[name] == whole
    np.testing.assert_array_equal(read(again, P), logits_of(P))


def test_house_keeping_knows_them(tmp_path):
    session = stored()
    store = session.objects
    (record,) = take_inventory(store).records
    assert record.form_bytes["LOGITS"] == 44
    assert verify(store).sound
    for _ in range(3):
        collect(store)
    np.testing.assert_array_equal(read(session.restarted(), P), logits_of(P))
    export_records(store, tmp_path / "file.tar")
    other = MemoryStore()
    import_records(other, tmp_path / "file.tar")
    copied = Saved(session.model, other)
    np.testing.assert_array_equal(read(copied, P), logits_of(P))
    (name,) = (n for n, d in other.objects.items() if d == logits_of(P).tobytes())
    other.objects[name] = bytes(44)
    assert not verify(other).sound


def test_who_reads_them_uses_the_record():
    session = stored()
    again = session.restarted()
    tick = collect(session.objects).tick
    assert read(again, P[:4]) is None
    assert tick not in last_used(session.objects).values()
    assert read(again, P) is not None
    assert set(last_used(session.objects).values()) == {tick}


def test_what_are_no_logits_is_refused():
    session = Saved(toy.fine())
    lease = session.admit(P)
    session.feed(lease, P)
    bad = np.float32([0, np.nan])
    for wrong in (np.zeros((1, 11), np.float32), np.zeros(11), np.zeros(0), bad):
        with pytest.raises(ValueError, match="ogits"):
            session.prefixes.publish(session.cache, lease, logits=wrong)
    without = Tiered(toy.fine())
    with pytest.raises(ValueError, match="kept in a store alone"):
        publish(without, P)
