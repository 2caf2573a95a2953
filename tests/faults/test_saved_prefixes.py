"""What was published is in the store; another process resumes it, or says why not."""

import pytest
import toy
from saved import Saved

from hybridcache_jax import Verdict

P = list(toy.P)
CHAT = [*P, 9, 7, 9, 3]


@pytest.mark.parametrize("name", toy.marked(toy.EVERY_KIND, "fine"))
def test_another_process_resumes_what_was_stored(name):
    first = Saved(toy.EVERY_KIND[name]())
    first.store(CHAT, each=True)
    ready = first.match([*CHAT, 0])
    assert ready.verdict == Verdict.RESUMABLE
    first.save()
    assert set(first.ends()) <= {"saved", "there"}
    second = first.restarted()
    waits = second.match([*CHAT, 0])
    assert (waits.verdict, waits.length) == (Verdict.NEEDS_IO, ready.length)
    assert second.load([*CHAT, 0]).ready
    again = second.match([*CHAT, 0])
    assert (again.verdict, again.length) == (Verdict.RESUMABLE, ready.length)
    plan = second.answer([*CHAT, 0])
    assert plan.start == ready.length
