"""K22: integer width.

For all page counts, strides and lengths that a plan accepts, addresses and counters
are exact; what int32 cannot hold is refused at construction.  The same with JAX's
64-bit mode on or off.
"""

import dataclasses
import pathlib
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridcache_jax as hc
from hybridcache_jax import Entry, LayerSpec, Plane, Retention, Window
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Reason
from hybridcache_jax.state import tick
from hybridcache_jax.validate import alignment
from pallas_kernels.contracts import XLA

LAST = 2**31 - 1
ROW = Entry.kv(1, 1)
NEAR = LayerSpec(local=Window(4, ROW))


def aligned(block_bytes, ids, unit, xp=np):
    """Layer 4 of a pool whose blocks have so many bytes, against whole numbers."""
    plane = Plane("k", 1, block_bytes, "uint8")
    spec = hc.CacheSpec.from_layers(
        [LayerSpec(local=Window(1, Entry((plane,))))], block_tokens=1
    )
    contract = dataclasses.replace(XLA, block_alignment=unit)
    found = alignment(spec, 0, xp.asarray(np.array(ids, np.int32)), contract)
    want = [
        Reason.OK
        if number * block_bytes % unit == 0 and block_bytes % unit == 0
        else Reason.MISALIGNED
        for number in ids
    ]
    assert np.asarray(found).tolist() == want
    return want


def test_b84_page_times_stride_beyond_32_bits():
    """1048577 x 16384 = 17179885568 wraps to page 1; 131072 x 16384 is 2^31 exactly."""
    pages = [1, 131_072, 1_048_577]
    addresses = [16_384, 2**31, 17_179_885_568]
    assert [page * 16_384 for page in pages] == addresses
    # In 32 bits these are pages 1, none and 1 again.
    wrapped = np.array(addresses).astype(np.int32)
    assert wrapped.tolist() == [16_384, -(2**31), 16_384]
    for xp in (np, jnp):
        assert aligned(16_384, pages, 16_384, xp) == [Reason.OK] * 3
        assert aligned(16_380, pages, 32_768, xp) == [Reason.MISALIGNED] * 3


@pytest.mark.kind("K22")
@settings(max_examples=40)
@given(
    block_bytes=st.integers(1, 2**24),
    ids=st.lists(st.integers(0, LAST), min_size=1, max_size=4),
    unit=st.integers(1, 2**15),
)
def test_addresses_are_those_of_whole_numbers(block_bytes, ids, unit):
    aligned(block_bytes, ids, unit)
    aligned(block_bytes // unit * unit or unit, ids, unit)


@pytest.mark.parametrize("unit", [0, -4, 2**15 + 1, 2**31])
def test_an_alignment_whose_products_wrap_is_refused(unit):
    with pytest.raises(ValueError, match="block_alignment"):
        dataclasses.replace(XLA, block_alignment=unit)


def plan(layers, blocks, *, size=4, **more):
    spec = hc.CacheSpec.from_layers(layers, block_tokens=size)
    sizes = {"max_sequences": 1, "max_length": 64, "max_chunk": 8, **more}
    return CapacityPlan(spec=spec, blocks=blocks, backend="cpu", **sizes)


@pytest.mark.kind("K22")
@settings(max_examples=60)
@given(
    size=st.integers(1, 2**20),
    blocks=st.integers(40, 2**32),
    length=st.integers(64, 2**32),
    window=st.integers(1, 2**33),
)
def test_every_position_of_an_accepted_plan_fits(size, blocks, length, window):
    """Either a plan is refused, or the largest numbers it leads to are in range."""
    layer = LayerSpec(local=Window(window, ROW))
    try:
        made = plan([layer, layer], (blocks,), size=size, max_length=length)
    except ValueError:
        fits = blocks * size <= LAST and 2 * window <= LAST
        fits = fits and length + 8 + 2 * size <= LAST
        # Refused for its blocks alone: too few for its rows.
        assert not fits or blocks < 3 + -(-(2 * window + 16) // size)
        return
    number = (made.max_length - 1 + made.max_chunk) // size + 1
    for largest in (
        made.blocks[0],  # the id of padding
        made.blocks[0] * size,  # one past the last position of a pool
        (number + 1) * size,  # what a step asks a block's end for
        made.max_length + made.max_chunk,
        sum(layer.local.reach for layer in made.spec.layers if layer.local),
        made.index_tokens,
    ):
        assert 0 <= largest <= LAST


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_length": LAST}, "int32 range of positions"),
        ({"stored_tokens": 2**31}, "whole number from 0 to 2147483647"),
        ({"blocks": (2**29,)}, "plan fewer blocks"),
    ],
)
def test_what_cannot_be_held_is_refused(change, message):
    made = plan([NEAR], (40,))
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(made, **change)


def test_the_last_plan_that_fits_and_the_first_that_does_not():
    """A step looks two blocks past its last token."""
    size = 2**20
    longest = LAST - 8 - 2 * size
    assert plan([NEAR], (40,), size=size, max_length=longest).max_length == longest
    with pytest.raises(ValueError, match="int32 range of positions"):
        plan([NEAR], (40,), size=size, max_length=longest + 1)


def test_windows_that_reach_too_far_together_are_refused():
    layer = LayerSpec(local=Window(2**30, ROW))
    plan([layer], (40,))
    with pytest.raises(ValueError, match="declare layers that see everything"):
        plan([layer, layer], (40,))


def test_the_clock_stands_still_at_its_end():
    assert int(tick(jnp.int32(7))) == 8
    assert int(tick(jnp.int32(LAST - 1))) == LAST
    assert int(tick(jnp.int32(LAST))) == LAST
    session = toy.Session(toy.only_full())
    late = dataclasses.replace(session.cache, clock=jnp.int32(LAST - 2))
    session.cache = late
    prompt = list(toy.P)
    session.store(prompt)
    lease = session.admit([*prompt, 7])
    assert lease.plan.length == 12
    assert int(session.cache.clock) == LAST
    assert (np.asarray(session.cache.tables[0].used) >= 0).all()


def test_epochs_that_wrap_are_still_told_apart():
    """Epochs are compared for equality alone: the one after the last is another."""
    session = toy.Session(toy.only_full())
    (table,) = session.cache.tables
    table = dataclasses.replace(table, epoch=jnp.full_like(table.epoch, LAST - 1))
    session.cache = dataclasses.replace(session.cache, tables=(table,))
    session.store(list(toy.P))
    plan = session.match([*toy.P, 7])
    assert plan.length == 12
    cache = session.prefixes.evict(session.cache, hc.Form.FULL_KV)
    assert (np.asarray(cache.tables[0].epoch).min()) < 0
    with pytest.raises(hc.LeaseError):
        session.prefixes.acquire(cache, plan)


WIDE = """
import sys; sys.path.insert(0, "tests/faults")
import jax; jax.config.update("jax_enable_x64", True)
import toy
session = toy.Session(toy.fine())
session.store(list(toy.P))
lease = session.admit([*toy.P, 7])
session.feed(lease, [*toy.P, 7][lease.plan.start:])
session.check(lease, [*toy.P, 7])
kinds = {str(x.dtype) for x in jax.tree.leaves((session.cache.tables,
    session.cache.rows, session.cache.clock))}
print(lease.plan.length, *sorted(kinds))
"""


@pytest.mark.slow
def test_the_same_in_64_bit_mode():
    root = pathlib.Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", WIDE], cwd=root, capture_output=True, text=True
    )
    assert done.stdout.split() == ["12", "bool", "int32"], done.stderr


@pytest.mark.parametrize("tokens", [2**31, 2**40])
def test_a_distance_beyond_the_range_is_refused(tokens):
    with pytest.raises(ValueError, match="distance"):
        Retention.every(tokens)
