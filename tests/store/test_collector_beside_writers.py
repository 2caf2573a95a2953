"""Writers, readers and the collector on one folder at once, for a while."""

import threading
import time
from random import Random

import pytest
from kept_records import GRID, length_read, write

from hybridcache_jax.store.collection import collect
from hybridcache_jax.store.objects import ObjectStore
from hybridcache_jax.store.verification import verify

WRITERS = 3


class Writer(threading.Thread):
    """Writes chains of records and reads each when it is written."""

    def __init__(self, path, number, ends):
        super().__init__()
        self.store, self.random = ObjectStore(path), Random(number)
        self.number, self.ends = number, ends
        self.done, self.missed, self.error, self.last = 0, 0, None, {}

    def run(self):
        try:
            while time.monotonic() < self.ends:
                self.one()
        except BaseException as error:
            self.error = error

    def one(self):
        # Few prompts, so that they come again when they were dropped and swept.
        number = self.random.randint(0, 40) * 1000 + self.number
        tokens = [self.number] * GRID + [number] * GRID * (1 + number % 4)
        write(self.store, tokens[:GRID])
        write(self.store, tokens, GRID)
        found = length_read(self.store, tokens)
        # Written in the moment in which its old self goes: it is missed, no more.
        assert found in (len(tokens), GRID), (found, tokens)
        self.missed += found != len(tokens)
        self.last[tuple(tokens)] = self.done = self.done + 1


@pytest.mark.slow
def test_what_is_written_beside_the_collector_reads_whole(tmp_path):
    """Between two runs every writer begins and ends a record at least."""
    ends = time.monotonic() + 10
    writers = [Writer(tmp_path, number, ends) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    store, runs, swept, dropped = ObjectStore(tmp_path), 0, 0, 0
    while all(writer.is_alive() for writer in writers):
        before = [writer.done for writer in writers]
        while any(
            writer.is_alive() and writer.done < count + 2
            for writer, count in zip(writers, before, strict=True)
        ):
            time.sleep(0.01)
        done = collect(store, keep_ticks=1)
        runs, swept, dropped = (
            runs + 1,
            swept + len(done.swept),
            dropped + len(done.dropped),
        )
    for writer in writers:
        writer.join()
        assert writer.error is None
        assert writer.missed <= 2
    assert min(runs, swept, dropped) > 5, (runs, swept, dropped)
    assert verify(store).problems == ()
    for _ in range(2):
        collect(store)
    assert verify(store).problems == ()
    # What was written since the run before the last is there, all of it.
    for writer in writers:
        latest = max(writer.last, key=writer.last.get)
        assert length_read(store, latest) == len(latest)
