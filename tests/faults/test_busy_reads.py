"""Reads that take long do not hide from other prompts what there is of them."""

import threading

import toy
from saved import Saved

from hybridcache_jax import Verdict
from hybridcache_jax.testing.stores import MemoryStore


class Slow(MemoryStore):
    """Gives no pack before it is told to."""

    def __init__(self, objects):
        super().__init__(objects)
        self.go = threading.Event()

    def get(self, name, start=0, stop=None):
        if name.startswith("packs/"):
            self.go.wait(60)
        return super().get(name, start, stop)


def test_a_prompt_is_found_while_others_are_read():
    prompts = [[first, *range(8), *[first] * 3] for first in range(1, 7)]
    first = Saved(toy.only_full())
    for prompt in prompts:
        first.store(prompt)
        first.save()
    slow = Slow(first.objects.objects)
    session = Saved(toy.only_full(), slow, executor=None)
    try:
        for prompt in prompts[:5]:
            session.ask([*prompt, 0])
        assert session.match([*prompts[5], 0]).verdict == Verdict.NEEDS_IO
    finally:
        slow.go.set()
        session.prefixes.close()
