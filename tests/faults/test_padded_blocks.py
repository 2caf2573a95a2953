"""What a cache with padded blocks saves, one without resumes, and the other way round.

A plan for TPUs, run on the CPU: blocks lie in rows of 128 lanes, scales are turned.
Whatever is in the padding, records are the same bytes.
"""

import dataclasses

import jax
import numpy as np
import pytest
import toy
from saved import Saved

import hybridcache_jax as hc
from hybridcache_jax.testing.audit import places_in_lanes, row_state, state_difference

PROMPT = [*toy.P, 9, 7, 9, 3]
KINDS = {
    "scaled": toy.three_forms,
    "compressed": toy.compressed,
    "stacked": toy.stacked,
    "state": toy.recurrent,
}


def in_lanes(some):
    """The same model on a TPU, as far as memory goes; padding is all ones."""
    plan = dataclasses.replace(some.plan, backend="tpu", kernels="xla")
    cache = hc.init(plan)
    pools = []
    for pool, memory in zip(plan.spec.pools, cache.pools, strict=True):
        pools.append({})
        for plane in pool.entry.planes:
            array = memory[plane.name]
            held = np.full((*array.shape[:2], array[0, 0].nbytes), 0xFF, np.uint8)
            places = places_in_lanes(pool, plane)
            wide = held.view(np.dtype(f"V{plane.nbytes * 8 // plane.width // 8}"))
            wide[:, :, places.reshape(-1)] = wide.dtype.type(0)
            pools[-1][plane.name] = held.view(array.dtype).reshape(array.shape)
    pools = tuple(jax.tree.map(jax.numpy.asarray, pools))
    return dataclasses.replace(
        some, plan=plan, empty=dataclasses.replace(cache, pools=pools)
    )


def stored(some):
    session = Saved(some)
    session.store(PROMPT, each=True)
    session.save()
    return session


def state_of(session):
    lease = session.admit([*PROMPT, 0])
    assert lease.plan.length
    return lease.plan.start, row_state(session.cache, lease.row)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_resumes_on_the_other_backend(kind):
    some = KINDS[kind]()
    padded = in_lanes(some)
    assert padded.plan.pool_bytes > some.plan.pool_bytes
    first, second = stored(some), stored(padded)
    assert first.objects.objects == second.objects.objects
    others = Saved(padded, first.objects), Saved(some, second.objects)
    for session in others:
        assert session.load([*PROMPT, 0]).ready
    states = [state_of(session) for session in (first, *others)]
    start, state = states[0]
    assert start
    for other in states[1:]:
        assert other[0] == start
        assert state_difference(other[1], state) == 0
