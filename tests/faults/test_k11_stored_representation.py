"""K11: the stored representation.

What was written is read back exactly, for every dtype and layout of scales, whatever
lay in the memory before.  Any difference in dtype, scale, convention, layer count or
shape between record and reader is a refusal before anything is written.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridcache_jax as hc
from hybridcache_jax import (
    Chunk,
    Entries,
    Entry,
    IndexKeys,
    LayerSpec,
    Plane,
    Window,
)
from hybridcache_jax.append import write
from hybridcache_jax.planes import quantise, storage_dtype, storage_width, to_storage
from hybridcache_jax.testing.toy_step import layer_of
from pallas_kernels.dtypes import element_bits, named_dtype
from pallas_kernels.gather import at_positions, whole_blocks
from pallas_kernels.values import dequantise, from_storage

BACKENDS = ["cpu", "gpu", "tpu"]
DTYPES = [
    *("float32", "float16", "bfloat16", "int8", "int32"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn"),
]
E8M0 = "float8_e8m0fnu"


def scaled(dtype, run, scales, scale_dtype, heads=1, dim=8):
    """Values ``k`` with their scales ``s``, and a plane ``v`` that has none."""
    return Entry(
        (
            Plane("k", heads, dim, dtype, scale="s", run=run),
            Plane("s", heads, scales, scale_dtype),
            Plane("v", heads, 2, "bfloat16"),
        )
    )


LAYOUTS = {
    "fp8, power of two per 4": scaled("float8_e4m3fn", 4, 2, E8M0),
    "fp8, scales padded": scaled("float8_e4m3fn", 4, 8, E8M0),
    "fp8, one float32": scaled("float8_e4m3fn", 8, 1, "float32"),
    "fp8 e5m2, two heads": scaled("float8_e5m2", 2, 4, "bfloat16", heads=2),
    "fp4, power of two": scaled("float4_e2m1fn", 4, 2, E8M0),
    "fp4, fp8 scales": scaled("float4_e2m1fn", 2, 4, "float8_e4m3fn", heads=2),
    "int8, float32": scaled("int8", 4, 2, "float32"),
    "int8, float16": scaled("int8", 8, 1, "float16"),
}


def codes_of(name):
    """Every value of a dtype, NaN among them; of those wider than 16 bits a sample."""
    bits = element_bits(name)
    if bits == 4:
        codes = jnp.arange(16, dtype=jnp.uint4)
        return np.asarray(jax.lax.bitcast_convert_type(codes, named_dtype(name)))
    count = min(1 << bits, 1 << 16)
    codes = np.arange(count, dtype=np.uint64) * ((1 << bits) // count)
    return codes.astype(f"uint{bits}").view(named_dtype(name))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", DTYPES)
def test_every_bit_pattern_survives_storage(name, backend):
    """NaN payloads, infinities, subnormals and negative zeros among them."""
    plane = Plane("k", 2, 4, name)
    value = jnp.asarray(codes_of(name)).reshape(-1, 2, 4)
    stored = to_storage(plane, value, backend)
    assert stored.shape == (len(value), storage_width(plane))
    assert stored.dtype == storage_dtype(name, backend)
    assert stored.nbytes == len(value) * plane.nbytes
    back = from_storage(plane, stored)
    assert back.dtype == value.dtype
    assert np.asarray(back).tobytes() == np.asarray(value).tobytes()


@pytest.mark.parametrize("width", [1, 3, 5])
def test_an_odd_number_of_half_bytes_is_refused_or_exact(width):
    """Two elements share a byte; the last of an odd number has one for itself."""
    try:
        plane = Plane("k", 1, width, "float4_e2m1fn")
    except ValueError:
        return  # refused when it is declared, which is as good
    value = jnp.arange(width, dtype=jnp.float32).reshape(1, 1, width)
    value = value.astype(named_dtype(plane.dtype))
    stored = to_storage(plane, value, "cpu")
    assert stored.shape == (1, storage_width(plane))
    np.testing.assert_array_equal(
        np.asarray(from_storage(plane, stored), np.float32),
        np.asarray(value, np.float32),
    )


@st.composite
def representable(draw, entry, rows):
    """Values that a layout holds exactly: codes times scales, one code the largest."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    plane, scale = entry["k"], entry["s"]
    codes = codes_of(plane.dtype).astype(np.float32)
    codes = codes[np.isfinite(codes)]
    largest = codes.max()
    codes = codes[codes >= -largest]
    runs = (rows, plane.heads, plane.dim // plane.run)
    chosen = random.choice(codes, (*runs, plane.run)).astype(np.float64)
    place = random.integers(0, plane.run, runs)
    sign = random.choice([-1.0, 1.0], (*runs, 1))
    np.put_along_axis(chosen, place[..., None], sign * largest, axis=-1)
    # A run of nothing but zeros needs no scale.
    chosen[random.random(runs) < 0.2] = 0
    power = 2.0 ** random.integers(-5, 6, runs)
    digits = 1.0 if scale.dtype == E8M0 else random.integers(4, 8, runs) / 4
    values = chosen * (power * digits)[..., None]
    return values.reshape(rows, plane.heads, plane.dim).astype(np.float32)


@functools.cache
def through_memory(layout):
    """Compiled: writes planes into memory and reads them back, two ways."""
    pool = pool_of(LAYOUTS[layout])

    def run(memory, table, k, v):
        positions = jnp.arange(k.shape[0], dtype=jnp.int32)[None]
        ids = jnp.take_along_axis(table, positions // 4, axis=1)
        planes = {"k": k[None], "v": v[None]}
        memory = write(pool, memory, 0, ids, positions, planes, "cpu")
        loaded, there = at_positions(pool, memory, 0, table, positions, 3)
        by_block = whole_blocks(pool, memory, 0, table)
        back = {name: dequantise(pool.entry, loaded, name)[0] for name in ("k", "v")}
        return memory, there, back, dequantise(pool.entry, by_block, "k")[0]

    return jax.jit(run)


def pool_of(entry):
    """One pool of a window of 4, in blocks of 4."""
    layer = LayerSpec(local=Window(4, entry))
    return hc.CacheSpec.from_layers([layer], block_tokens=4).pools[0]


@pytest.mark.kind("K11")
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=10)
@given(data=st.data())
def test_representable_values_come_back_exactly(layout, data):
    """Out of a pool full of other bits, at the positions they were written to."""
    entry = LAYOUTS[layout]
    random = np.random.default_rng(0)
    rows, blocks = 6, 3
    k = data.draw(representable(entry, rows))
    v = random.integers(-8, 9, (rows, entry["v"].heads, 2)).astype(np.float32)
    memory = {
        plane.name: random.integers(0, 256, (1, blocks, 4, plane.nbytes), np.uint8)
        .view(storage_dtype(plane.dtype, "cpu"))
        .reshape(1, blocks, 4, storage_width(plane))
        for plane in entry.planes
    }
    table = np.array([data.draw(st.permutations(range(blocks)))], np.int32)
    run = through_memory(layout)
    written, there, back, by_block = jax.device_get(run(memory, table, k, v))
    assert there.all()
    np.testing.assert_array_equal(back["k"], k)
    np.testing.assert_array_equal(back["v"], v)
    np.testing.assert_array_equal(by_block[:rows], k)
    # The rest of the memory is as it was, bit for bit.
    _, last, unused = table[0]
    for name, after in written.items():
        before = memory[name]
        assert before[:, unused].tobytes() == after[:, unused].tobytes()
        assert before[:, last, 2:].tobytes() == after[:, last, 2:].tobytes()


@pytest.mark.parametrize(
    "layout", [name for name, entry in LAYOUTS.items() if entry["s"].dtype == E8M0]
)
def test_reading_back_and_writing_again_changes_nothing(layout):
    """What powers of two made of any values is representable; it is near them too."""
    entry = LAYOUTS[layout]
    random = np.random.default_rng(0)
    shape = (200, entry["k"].heads, entry["k"].dim)
    scale = 2.0 ** random.integers(-40, 40, (200, 1, 1))
    k = jnp.asarray(scale * random.standard_normal(shape), jnp.float32)
    v = jnp.zeros((200, entry["v"].heads, 2))

    @jax.jit
    def there_and_back(k):
        return dequantise(entry, quantise(entry, {"k": k, "v": v}), "k")

    once = there_and_back(k)
    np.testing.assert_array_equal(once, there_and_back(once))
    # A quarter of the run's largest is the widest step of its codes, halved.
    runs = np.abs(np.asarray(k)).reshape(*shape[:2], -1, entry["k"].run)
    gaps = np.abs(np.asarray(once - k)).reshape(runs.shape)
    assert (gaps <= runs.max(axis=-1, keepdims=True) / 4).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", E8M0, "float8_e4m3fn"])
def test_too_large_for_the_scale_is_not_read_as_small(dtype):
    """Beyond the scale's range values saturate or show as not finite."""
    entry = scaled("float4_e2m1fn", 4, 2, dtype)
    k = jnp.full((1, 1, 8), 1e6, jnp.float32)
    planes = quantise(entry, {"k": k, "v": jnp.zeros((1, 1, 2))})
    back = np.asarray(dequantise(entry, planes, "k"))
    largest = min(1e6, 6 * float(ml_dtypes.finfo(named_dtype(dtype)).max))
    assert (~np.isfinite(back) | (back >= 0.6 * largest)).all()


WRONG_PLANES = {
    "scales are given": {"k": (1, 2, 1, 8), "s": (1, 2, 1, 2), "v": (1, 2, 1, 2)},
    "a plane is missing": {"k": (1, 2, 1, 8)},
    "a plane is unknown": {"k": (1, 2, 1, 8), "v": (1, 2, 1, 2), "x": (1, 2, 1, 2)},
    "heads and dim are swapped": {"k": (1, 2, 8, 1), "v": (1, 2, 1, 2)},
    "heads are folded": {"k": (1, 2, 8), "v": (1, 2, 1, 2)},
}


@pytest.mark.parametrize("what", WRONG_PLANES)
def test_planes_of_another_layout_are_refused(what):
    entry = LAYOUTS["fp8, power of two per 4"]
    pool = pool_of(entry)
    memory = {
        plane.name: jnp.zeros((1, 2, 4, plane.nbytes), jnp.uint8)
        for plane in entry.planes
    }
    planes = {name: jnp.ones(shape) for name, shape in WRONG_PLANES[what].items()}
    where = jnp.zeros((1, 2), jnp.int32)
    with pytest.raises(ValueError, match=pool.name):
        write(pool, memory, 0, where, where, planes, "cpu")


# The façade: other layouts.

KINDS = toy.CSA[:1]  # a window of 3, entries of 4 with overlap, pooled keys, top 2


def base():
    """The layer records that are changed in one thing."""
    kinds = KINDS * 2
    return [layer_of(kinds, n, 24, chain=False, entry=Entry.kv(1, 4)) for n in (0, 1)]


def layouts():
    """Fingerprints of specs that differ from that of ``base`` in one thing."""
    layers = base()
    (layer, _), entry, replace = layers, Entry.kv(1, 4), dataclasses.replace
    k, v = entry.planes

    def local(planes, **roles):
        window = Window(3, Entry(planes, **roles))
        return [replace(layer, local=window), replace(layer, local=window)]

    def alone(planes):
        return [LayerSpec(local=Window(3, Entry(planes)))] * 2

    def both(**changes):
        return [replace(layer, **changes)] * 2

    history, index, select = layer.global_, layer.index, layer.select
    assert history is not None
    assert index is not None
    assert select is not None
    raw = Entry((Plane("x", 1, 1, "bfloat16"),))
    by = replace(k, dtype="float8_e4m3fn", scale="s", run=2)
    changed = {
        "dtype": local((replace(k, dtype="bfloat16"), v)),
        "dtype of equal width": local((replace(k, dtype="int32"), v)),
        "scales": local((by, v, Plane("s", 1, 2))),
        "scales of longer runs": local((replace(by, run=4), v, Plane("s", 1, 2))),
        "scales of another dtype": local((by, v, Plane("s", 1, 2, "bfloat16"))),
        "convention": local((k, v), convention="rotated by pairs"),
        "value is the key": local((k, v), value=("k",)),
        "heads": alone((replace(k, heads=2, dim=2), replace(v, heads=2, dim=2))),
        "dim": alone((k, replace(v, dim=2))),
        "order of planes": local((v, k)),
        "window one more": both(local=Window(4, entry)),
        "window one less": both(local=Window(2, entry)),
        "chunk": both(local=Chunk(3, entry)),
        "ratio": both(global_=replace(history, ratio=2), index=index),
        "overlap": both(global_=replace(history, overlap=0)),
        "raw rows": both(global_=replace(history, raw=raw)),
        "index overlap": both(index=replace(index, overlap=0)),
        "index without raw rows": both(index=IndexKeys(index.entry, 4)),
        "no index": both(index=None, select=None),
        "selection": both(select=replace(select, k=3)),
        "window alone": alone((k, v)),
        "layer count": [layer],
        "one layer more": [layer, *layers],
        "owner": [layer, replace(layer, local=None, global_=None, kv_owner=0)],
    }
    prints = {name: fingerprint(records) for name, records in changed.items()}
    return {**prints, "blocks": fingerprint(layers, 8)}


def fingerprint(layers, size=4):
    return hc.CacheSpec.from_layers(layers, block_tokens=size).fingerprint


def test_every_difference_is_another_fingerprint():
    prints = [*layouts().values(), fingerprint(base())]
    assert len(set(prints)) == len(prints)
    # And nothing but a difference is.
    assert fingerprint(base()) == prints[-1]


@functools.cache
def record():
    """A session that stored P under the layout of ``base``."""
    some = toy.three_forms()
    identity = dataclasses.replace(some.identity, layout=fingerprint(base()))
    session = toy.Session(dataclasses.replace(some, identity=identity))
    session.store(toy.P)
    assert session.match([*toy.P, 1]).verdict == hc.Verdict.RESUMABLE
    return session


def assert_refused(session, layout):
    """Nothing is claimed for another layout, which is named; what is stored stays."""
    cache, records = session.cache, toy.kept_bytes(session.cache)
    reader = dataclasses.replace(session.model.identity, layout=layout)
    plan = session.prefixes.match(cache, [*toy.P, 1], reader)
    assert plan.verdict == hc.Verdict.NEEDS_FULL_RECOMPUTE
    assert (plan.length, plan.claimed_length) == (0, 0)
    assert (plan.reason, plan.changed) == (hc.Reason.PRODUCER_CHANGED, ("layout",))
    assert "differs in: layout" in plan.explain()
    lease = session.acquire(plan)
    assert session.length(lease) == 0
    session.release(lease, publish=False)
    assert toy.kept_bytes(session.cache) == records


@pytest.mark.parametrize("name", sorted(layouts()))
def test_another_layout_never_hits(name):
    assert_refused(record(), layouts()[name])


@pytest.mark.parametrize("names", [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_b44_another_dtype_is_refused_in_both_directions(names):
    writer, reader = (
        hc.CacheSpec.from_layers([LayerSpec(local=Window(4, Entry.kv(1, 4, name)))])
        for name in names
    )
    some = toy.three_forms()
    identity = dataclasses.replace(some.identity, layout=writer.fingerprint)
    session = toy.Session(dataclasses.replace(some, identity=identity))
    session.store(toy.P)
    assert_refused(session, reader.fingerprint)


OTHER_PLANS = {
    "dtype": [LayerSpec(global_=Entries(Entry.kv(1, 4, "bfloat16")))],
    "shape": [LayerSpec(global_=Entries(Entry.kv(2, 4)))],
    "layer count": [LayerSpec(global_=Entries(Entry.kv(1, 4)))] * 2,
    "convention": [
        LayerSpec(
            global_=Entries(dataclasses.replace(Entry.kv(1, 4), convention="other"))
        )
    ],
}


@pytest.mark.parametrize("call", ["match", "acquire"])
@pytest.mark.parametrize("name", OTHER_PLANS)
def test_a_cache_of_another_plan_is_refused_before_any_write(name, call):
    """The claims of one plan mean nothing in the memory of another."""
    layer = LayerSpec(global_=Entries(Entry.kv(1, 4)))
    cache, other = (
        hc.init(
            hc.plan_capacity(
                hc.CacheSpec.from_layers(layers, block_tokens=4),
                budget="1MiB",
                max_sequences=1,
                max_length=24,
                stored_tokens=24,
            )
        )
        for layers in ([layer], OTHER_PLANS[name])
    )
    prefixes = hc.PrefixCache(other.plan, policy=hc.ReusePolicy("namespace"))
    identity = hc.Identity("weights", "config", other.plan.spec.fingerprint)
    calls = {
        "match": lambda: prefixes.match(cache, toy.P, identity),
        "acquire": lambda: prefixes.acquire(cache, prefixes.cold_plan(toy.P, identity)),
    }
    with pytest.raises((ValueError, hc.HybridCacheError), match="plan"):
        calls[call]()
