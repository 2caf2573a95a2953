"""Quantising and reading back, against float64 arithmetic on tables of codes.

A table holds every finite value of a dtype, so the nearest one is found by looking,
not by casting.  What storage itself must keep is tested with the faults of K11.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridcache_jax.entry import Entry, Plane
from hybridcache_jax.planes import quantise, to_storage
from pallas_kernels.contracts import XLA
from pallas_kernels.dtypes import element_bits, named_dtype
from pallas_kernels.values import dequantise, from_storage, keys_and_values

DTYPES = sorted(XLA.dtypes)
# Scales are for these; the range of wider ones needs none.
NARROW = [name for name in DTYPES if element_bits(name) <= 8] + ["float16"]
E8M0 = "float8_e8m0fnu"
SCALES = [E8M0, "float32", "float8_e4m3fn", "bfloat16"]
PAIRS = list(itertools.product(NARROW, SCALES))
HEADS, DIM, RUN, ROWS = 2, 8, 4, 64
RUNS = DIM // RUN


@functools.cache
def scaled(dtype, scale_dtype):
    """Two runs of four per head; the scales' third place belongs to none."""
    key = Plane("k", HEADS, DIM, dtype, scale="s", run=RUN)
    return Entry((key, Plane("s", HEADS, RUNS + 1, scale_dtype)))


@functools.cache
def plain(dtype):
    return Entry((Plane("k", HEADS, DIM, dtype),))


@functools.partial(jax.jit, static_argnames="entry")
def cycle(entry, values):
    """Values quantised, stored and loaded: all planes, and what ``k`` reads as."""
    planes = quantise(entry, {"k": values})
    loaded = {
        plane.name: from_storage(plane, to_storage(plane, planes[plane.name], "cpu"))
        for plane in entry.planes
    }
    return loaded, dequantise(entry, loaded, "k")


def read_back(entry, values):
    """``[R, H, D]`` to the scales of each run and the values read, in float64.

    Few rows are repeated to the number that is compiled anyway.
    """
    values = np.asarray(values, np.float32)
    rows = np.resize(values, (max(ROWS, len(values)), HEADS, DIM))
    loaded, read = cycle(entry, jnp.asarray(rows))
    assert read.dtype == jnp.float32
    read = np.asarray(read, np.float64)[: len(values)]
    if "s" not in loaded:
        return np.ones((*read.shape[:-1], RUNS)), read
    with np.errstate(invalid="ignore"):
        scales = np.asarray(loaded["s"]).astype(np.float64)[: len(values)]
    assert (scales[..., RUNS:] == 1).all()
    return scales[..., :RUNS], read


def runs_of(values):
    return values.reshape(*values.shape[:-1], RUNS, RUN)


@functools.cache
def codes(dtype):
    """Every finite value, ascending, in float64."""
    bits = element_bits(dtype)
    patterns = np.arange(1 << bits).astype("uint16" if bits == 16 else "uint8")
    with np.errstate(invalid="ignore"):
        found = patterns.view(named_dtype(dtype)).astype(np.float64)
    found = np.unique(found[np.isfinite(found)])
    # int8 keeps to a symmetric range.
    return found[found >= -found[-1]]


def gap(dtype, values):
    """How far each value is from the nearest code."""
    table = codes(dtype)
    place = np.clip(np.searchsorted(table, values), 1, len(table) - 1)
    return np.minimum(*(np.abs(table[place - side] - values) for side in (0, 1)))


def random_runs(dtype, scale_dtype):
    """Values small and large, of which the least scale lies in the scale's range."""
    random = np.random.default_rng(3)
    shape = (ROWS, HEADS, RUNS, RUN)
    values = random.uniform(-1, 1, shape) * 2.0 ** random.integers(-12, 1, shape)
    values /= np.abs(values).max(axis=-1, keepdims=True)
    low, high = (-5, 8) if scale_dtype == "float8_e4m3fn" else (-100, 108)
    needed = 2.0 ** random.uniform(low, high, shape[:-1])
    values *= (needed * codes(dtype)[-1])[..., None]
    return values.reshape(ROWS, HEADS, DIM).astype(np.float32).astype(np.float64)


@pytest.mark.parametrize(("dtype", "scale_dtype"), PAIRS)
def test_scaled_values_are_read_as_the_nearest_code(dtype, scale_dtype):
    """The nearest multiple of the scale, under which the whole run has a code."""
    values, top = random_runs(dtype, scale_dtype), codes(dtype)[-1]
    scales, read = read_back(scaled(dtype, scale_dtype), values)
    needed = np.abs(runs_of(values)).max(axis=-1) / top
    assert (scales >= needed * (1 - 1e-6)).all()
    assert (scales <= needed * (2 if scale_dtype == E8M0 else 1.25)).all()
    exact = values / np.repeat(scales, RUN, axis=-1)
    codes_read = read / np.repeat(scales, RUN, axis=-1)
    # Float32 division may fall on the other side of a tie.
    slack = 1e-6 * np.abs(exact)
    assert (gap(dtype, codes_read) <= slack).all()
    assert (np.abs(codes_read - exact) <= gap(dtype, exact) + slack).all()


@pytest.mark.parametrize("scale_dtype", SCALES)
def test_scales_are_the_least_that_will_do(scale_dtype):
    """Up to the rounding of a float32 division."""
    values = random_runs("int8", scale_dtype)
    scales, _ = read_back(scaled("int8", scale_dtype), values)
    needed = np.abs(runs_of(values)).max(axis=-1) / codes("int8")[-1]
    if scale_dtype == "float32":
        np.testing.assert_allclose(scales, needed, rtol=1e-6)
        return
    table = codes(scale_dtype)
    least = table[np.searchsorted(table, needed * (1 - 1e-6))]
    more = table[np.searchsorted(table, needed * (1 + 1e-6))]
    assert ((scales == least) | (scales == more)).all()


@pytest.mark.parametrize("share", [1.25, 1.4, 2.25, 2.75, 7.25])
def test_no_run_is_clipped_by_the_least_scales(share):
    """Runs that need ``share`` times the least scale that float8_e4m3fn has."""
    values = np.full((1, HEADS, DIM), 127 * 2.0**-9 * share)
    _, read = read_back(scaled("int8", "float8_e4m3fn"), values)
    np.testing.assert_allclose(read, values, rtol=0.01)


@pytest.mark.parametrize("dtype", NARROW[:-1])
def test_runs_out_of_the_scales_range(dtype):
    """Too large: the largest there is.  Too small: multiples of the least scale."""
    top, least, most = codes(dtype)[-1], 2.0**-9, 448
    values = np.full((2, HEADS, DIM), least * top / 4)
    values[1] = np.resize([4, -4, 1, 0.5], DIM) * most * top
    _, read = read_back(scaled(dtype, "float8_e4m3fn"), values)
    assert (np.abs(read[0] - values[0]) <= gap(dtype, top / 4) * least).all()
    assert (np.abs(read[1, :, :3]) == most * top).all()
    np.testing.assert_array_equal(np.sign(read[1]), np.sign(values[1]))
    np.testing.assert_allclose(read[1, :, 3], values[1, :, 3], rtol=0.01)


@pytest.mark.parametrize("dtype", sorted(set(DTYPES) - {"float32"}))
def test_values_without_a_scale_are_cast(dtype):
    """Every code comes back as it is, others as the nearest; int8 takes integers."""
    table = codes(dtype)
    _, read = read_back(plain(dtype), np.resize(table, (len(table) // 16 + 1, 2, 8)))
    np.testing.assert_array_equal(np.unique(read), table)
    if dtype != "int8":
        random = np.random.default_rng(0)
        values = table[-1] * random.uniform(-1, 1, (ROWS, HEADS, DIM)) ** 9
        values = values.astype(np.float32).astype(np.float64)
        _, read = read_back(plain(dtype), values)
        np.testing.assert_array_equal(np.abs(read - values), gap(dtype, values))


@pytest.mark.parametrize(("dtype", "scale_dtype"), PAIRS)
def test_zeros_and_what_is_next_to_nothing(dtype, scale_dtype):
    """Zeros stay zeros with scale 1, beside anything; the least is never enlarged."""
    values, some = np.zeros((3, HEADS, DIM)), codes(dtype)[-1] / 4
    values[1, 0, RUN:], values[2] = some, 1e-38
    values[0, 1] = -0.0
    scales, read = read_back(scaled(dtype, scale_dtype), values)
    zero = values == 0
    assert (read[zero] == 0).all()
    assert (scales[runs_of(zero).all(axis=-1)] == 1).all()
    if dtype != "int8":
        np.testing.assert_array_equal(np.signbit(read)[zero], np.signbit(values)[zero])
    assert (np.abs(read[2] - values[2]) <= values[2]).all()
    np.testing.assert_allclose(read[1, 0, RUN:], some, rtol=1e-6)


@pytest.mark.parametrize("scale_dtype", SCALES)
def test_each_run_and_head_has_its_own_scale(scale_dtype):
    entry, random = scaled("int8", scale_dtype), np.random.default_rng(1)
    values = random.normal(size=(ROWS, HEADS, DIM))
    before = runs_of(read_back(entry, values)[1])
    values[::2, 1, RUN:] *= 64
    after = runs_of(read_back(entry, values)[1])
    changed = np.zeros(after.shape, bool)
    changed[::2, 1, 1] = True
    np.testing.assert_array_equal(after[~changed], before[~changed])
    assert (after[changed] != before[changed]).mean() > 0.9


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_inputs_are_quantised_as_their_values(dtype):
    entry = scaled("float8_e4m3fn", "float32")
    values = np.random.default_rng(2).normal(size=(ROWS, HEADS, DIM)).astype(dtype)
    narrow, _ = cycle(entry, jnp.asarray(values))
    wide, _ = cycle(entry, jnp.asarray(values.astype(np.float32)))
    for name, plane in wide.items():
        assert np.asarray(plane).tobytes() == np.asarray(narrow[name]).tobytes()


def test_spare_scales_are_not_read():
    entry = scaled("float8_e4m3fn", E8M0)
    values = jnp.asarray(random_runs("float8_e4m3fn", E8M0), jnp.float32)
    loaded, read = cycle(entry, values)
    loaded["s"] = loaded["s"].at[..., RUNS:].set(jnp.nan)
    np.testing.assert_array_equal(dequantise(entry, loaded, "k"), read)


def test_two_elements_share_a_byte_the_earlier_one_low():
    """Heads one after the other, as in every plane."""
    plane = Plane("k", HEADS, DIM, "float4_e2m1fn")
    numbers = np.random.default_rng(4).permutation(16).astype(np.uint8)
    value = jax.lax.bitcast_convert_type(
        jnp.asarray(numbers, jnp.uint4), named_dtype(plane.dtype)
    ).reshape(HEADS, DIM)
    stored = to_storage(plane, value, "cpu")
    np.testing.assert_array_equal(stored, numbers[0::2] | (numbers[1::2] << 4))


@pytest.mark.parametrize("dtype", NARROW[:-1])
def test_numbers_beyond_a_narrow_range_become_its_ends(dtype):
    """Without a scale, too: there float8 would have NaN."""
    top = codes(dtype)[-1]
    values = np.resize([1.5 * top, -1.5 * top, 1e30, -1e30], (1, HEADS, DIM))
    _, read = read_back(plain(dtype), values)
    np.testing.assert_array_equal(read, top * np.sign(values))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", sorted(set(DTYPES) - {"float4_e2m1fn", "int8"}))
def test_what_is_not_finite_stays_so_without_a_scale(dtype, bad):
    values = np.ones((1, HEADS, DIM))
    values[0, 1, 3] = bad
    _, read = read_back(plain(dtype), values)
    np.testing.assert_array_equal(np.isfinite(read), np.isfinite(values))
    np.testing.assert_array_equal(read[np.isfinite(values)], 1)


def test_keys_and_values_are_joined_in_the_order_declared():
    """Scaled and unscaled planes of several widths and dtypes; Dv differs from D."""
    planes = (
        Plane("rope", 1, 2, "bfloat16"),
        Plane("nope", 1, 4, "float8_e4m3fn", scale="s", run=2),
        Plane("s", 1, 2),
        Plane("extra", 1, 3),
    )
    values = {
        "rope": jnp.asarray([[[1.0, 2.0]]]),
        "nope": jnp.asarray([[[448.0, 1.0, 7.0, 0.5]]]),
        "extra": jnp.asarray([[[3.0, 4.0, 5.0]]]),
    }
    nope, rope, extra = [448, 1, 7, 0.5], [1, 2], [3, 4, 5]
    for key_of, value_of, key, value in (
        (("nope", "rope"), ("nope",), nope + rope, nope),
        (("rope", "nope"), (), rope + nope, rope + nope),
        (("extra",), ("rope", "extra"), extra, rope + extra),
    ):
        entry = Entry(planes, key_of, value_of)
        read = keys_and_values(entry, quantise(entry, values))
        for got, want in zip(read, (key, value), strict=True):
            assert got.dtype == jnp.float32
            np.testing.assert_allclose(got, [[want]], rtol=1e-6)


def test_k_and_v_are_key_and_value_where_none_are_declared():
    entry = Entry.kv(1, 2)
    planes = {"v": jnp.asarray([[[1.0, 2.0]]]), "k": jnp.asarray([[[3.0, 4.0]]])}
    key, value = keys_and_values(entry, planes)
    np.testing.assert_array_equal((key, value), (planes["k"], planes["v"]))
    shared = Entry(entry.planes[:1])
    for read in keys_and_values(shared, {"k": planes["k"]}):
        np.testing.assert_array_equal(read, planes["k"])


@pytest.mark.parametrize("names", [(), ("v",), ("k", "v"), ("k", "s"), ("s",)])
def test_planes_of_other_names_are_refused(names):
    entry = scaled("int8", "float32")
    planes = {name: jnp.zeros((1, HEADS, DIM)) for name in names}
    with pytest.raises(ValueError, match=r"takes the planes \['k'\], got"):
        quantise(entry, planes)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("dtype", "scale_dtype"), PAIRS)
def test_a_run_that_is_not_finite_is_not_read_as_numbers(dtype, scale_dtype, bad):
    """Its neighbours share the scale; other runs do not notice."""
    top = codes(dtype)[-1]
    values = np.full((2, HEADS, DIM), 4 * top)
    values[1, 1, 2] = bad
    _, read = read_back(scaled(dtype, scale_dtype), values)
    assert not np.isfinite(read[1, 1, 2])
    beside = np.delete(read[1, 1, :RUN], 2)
    assert (beside[np.isfinite(beside)] == 4 * top).all()
    np.testing.assert_array_equal(read[1, 0], values[1, 0])
    np.testing.assert_array_equal(read[1, 1, RUN:], values[1, 1, RUN:])


def test_planes_that_share_their_scales_are_refused_or_read_right():
    planes = [Plane(name, 1, 2, "int8", scale="s", run=2) for name in "kv"]
    try:
        entry = Entry((*planes, Plane("s", 1, 1)))
    except ValueError:
        return
    values = {"k": jnp.full((1, 1, 2), 1.0), "v": jnp.full((1, 1, 2), 100.0)}
    read = keys_and_values(entry, quantise(entry, values))
    np.testing.assert_allclose(read, [values["k"], values["v"]], rtol=0.1)
