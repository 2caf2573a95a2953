"""A block that its only row writes again is another block to every older plan."""

import pytest
import toy

import hybridcache_jax as hc


def test_an_older_plan_does_not_meet_a_block_that_was_written_again():
    """No store holds it any more, its place and position are those of before."""
    model, prompt = toy.only_full(), toy.P[:9]
    session = toy.Session(model)
    prefixes = hc.PrefixCache(model.plan, policy=hc.ReusePolicy("request"))
    session.prefixes = prefixes

    def match(tokens):
        return prefixes.match(session.cache, tokens, model.identity, request="r")

    first = session.acquire(match(prompt))
    session.feed(first, prompt)
    session.release(first)
    old = match(prompt)
    assert (old.verdict, old.length) == (hc.Verdict.RESUMABLE, 8)
    lease = session.acquire(match(prompt))
    # The request is over; what the row pins stays, and is nobody's but the row's.
    prefixes.end_request(old)
    session.evict(hc.Form.FULL_KV)
    before = session.cache.rows.blocks[0][lease.row, 1]
    cache, lease = prefixes.rewind(session.cache, lease, 6)
    session.put(cache)
    assert cache.rows.blocks[0][lease.row, 1] == before
    other = [*prompt[:6], 0, 0]
    session.feed(lease, other[6:])
    session.check(lease, other)
    with pytest.raises(hc.LeaseError, match="match again"):
        prefixes.acquire(session.cache, old)
