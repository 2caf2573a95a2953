"""Calls side by side: answers in order, few at once, and an end for errors."""

import threading

import pytest
from kept_records import Watched, write

from hybridcache_jax.store.collection import collect
from hybridcache_jax.store.inventory import take_inventory
from hybridcache_jax.store.parallel import in_order
from hybridcache_jax.store.usage import measure
from hybridcache_jax.store.verification import verify


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_answers_come_in_order_and_as_many_calls_go_on_as_there_are_threads(threads):
    running, most, lock = 0, 0, threading.Lock()
    # All threads meet, or it is given up.
    together = threading.Barrier(threads, timeout=10)

    def call(item):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait()
        with lock:
            running -= 1
        return item * item

    taken = []
    items = (taken.append(n) or n for n in range(20))
    for number, answer in enumerate(in_order(call, items, threads)):
        assert answer == number * number
        assert len(taken) <= number + threads
    assert number == 19
    assert most == threads


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_is_raised_where_it_belongs_and_ends_it(threads):
    called = []

    def call(item):
        called.append(item)
        if item == 4:
            raise KeyError(item)
        return item

    answers = in_order(call, range(100), threads)
    assert [next(answers) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(KeyError):
        next(answers)
    assert len(called) <= 5 + threads


def test_a_number_of_threads_that_is_none_is_refused():
    with pytest.raises(ValueError, match="threads must be positive"):
        next(in_order(int, [1], 0))


def test_house_keeping_is_the_same_with_many_threads():
    store = Watched()
    for last in range(12):
        write(store, [1] * 4 + [last] * 4)
    for pack in store.names("packs/")[:3]:
        store.objects[pack] += b"1"
    assert take_inventory(store, threads=5) == take_inventory(store)
    assert measure(store, threads=5) == measure(store)
    one, many = verify(store), verify(store, threads=5)
    assert one == many
    assert len(one.problems) == 3
    other = Watched(dict(store.objects))
    for _ in range(3):
        assert collect(store, quota=3000) == collect(other, quota=3000, threads=5)
    assert other.objects == store.objects
