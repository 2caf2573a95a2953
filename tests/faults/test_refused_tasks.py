"""An executor that takes no task costs what a store costs that fails."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import toy
from saved import Saved

from hybridcache_jax import Verdict

CHAT = [n % 9 + 1 for n in range(12)]
OTHER = [5] * 12


@pytest.mark.parametrize("whose", ["own", "the user's"])
def test_what_was_closed_is_a_miss_a_failed_load_and_a_failed_save(whose):
    first = Saved(toy.only_full())
    first.store(CHAT)
    first.save()
    threads = ThreadPoolExecutor(1)
    session = first.restarted(executor=None if whose == "own" else threads)
    waits = session.match([*CHAT, 0])
    assert waits.verdict == Verdict.NEEDS_IO
    session.prefixes.close() if whose == "own" else threads.shutdown()
    assert session.match([*OTHER, 0]).verdict == Verdict.NEEDS_FULL_RECOMPUTE
    assert session.prefixes.stored_logits(OTHER, session.model.identity) is None
    report = session.load([*CHAT, 0])
    assert report.failed
    session.store(OTHER)
    session.save()
    assert session.ends() == {"failed": 1}
    session.prefixes.set_scope(session.model.identity, "request")
    session.answer([*OTHER, 0])
