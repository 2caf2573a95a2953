"""Appending numbers in 8 bits with scales: every byte of the memory, against NumPy."""

import functools
import types
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax.append import write
from hybridcache_jax.entry import Entry, Plane
from hybridcache_jax.planes import block_in_memory

LAYERS, BLOCKS, ROWS, TOKENS, LANES = 2, 7, 3, 13, 128
E4M3, E8M0, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, ml_dtypes.bfloat16

# The published one (448 + 64: seven runs, and a spare scale), and heads with int8.
ENTRIES = {
    "latent": Entry(
        (
            Plane("kv", 1, 448, "float8_e4m3fn", scale="s", run=64),
            Plane("s", 1, 8, "float8_e8m0fnu"),
            Plane("r", 1, 64, "bfloat16"),
        ),
        key=("kv", "r"),
    ),
    "heads": Entry(
        (
            Plane("k", 2, 80, "int8", scale="t", run=80),
            Plane("t", 2, 1),
            Plane("v", 2, 96, "float8_e4m3fn", scale="u", run=32),
            Plane("u", 2, 3),
        ),
        key=("k",),
    ),
}


@functools.cache
def compiled(name: str, size: int) -> tuple[Any, Any]:
    pool: Any = types.SimpleNamespace(
        name="pool",
        entry=ENTRIES[name],
        block_tokens=size,
        entry_tokens=1,
        block_entries=size,
    )

    def call(memory, blocks, positions, planes):
        return write(pool, memory, 1, blocks, positions, planes, "cpu")

    return pool, jax.jit(call)


def quantised(plane: Plane, value: np.ndarray, scale: str) -> tuple[Any, Any]:
    """Codes ``[heads, dim]`` and scales ``[heads, runs]`` of one entry."""
    runs = value.reshape(plane.heads, -1, plane.run)
    largest = np.float32(127 if plane.dtype == "int8" else 448)
    scales = np.abs(runs).max(-1) / largest
    if scale == "float8_e8m0fnu":
        scales = 2.0 ** np.ceil(np.log2(np.where(scales == 0, 1, scales)))
    scales = np.where(scales == 0, 1, scales).astype(np.float32)
    codes = np.clip(runs / scales[..., None], -largest, largest)
    codes = np.rint(codes).astype(np.int8) if plane.dtype == "int8" else codes
    codes = codes.astype(np.int8 if plane.dtype == "int8" else E4M3)
    return codes.reshape(value.shape), scales


def entry_bytes(entry: Entry, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Plane to the bytes of one entry, from ``[heads, dim]`` float32."""
    out = {}
    for name, value in values.items():
        plane = entry[name]
        if plane.scale is None:
            out[name] = value.astype(BF16).view(np.uint8).ravel()
            continue
        scale = entry[plane.scale]
        codes, scales = quantised(plane, value, scale.dtype)
        full = np.ones((plane.heads, scale.dim), np.float32)
        full[:, : scales.shape[1]] = scales
        dtype = E8M0 if scale.dtype == "float8_e8m0fnu" else np.float32
        out[name] = codes.view(np.uint8).ravel()
        out[scale.name] = full.astype(dtype).view(np.uint8).ravel()
    return out


def put_entry(
    block: np.ndarray, data: np.ndarray, slot: int, size: int, **how: Any
) -> None:
    """The bytes of an entry into those of its block; zeros beside them."""
    if not how["lanes"]:
        block[slot * data.size : (slot + 1) * data.size] = data
    elif how["turned"]:
        for word in range(-(-data.size // 4)):
            piece = data[4 * word : 4 * word + 4]
            at = 4 * (word * size + slot)
            block[at : at + 4] = np.pad(piece, (0, 4 - piece.size))
    else:
        line = LANES * how["itemsize"]
        strip = int(np.gcd(size, 32 // how["itemsize"]))
        pieces = -(-data.size // line)
        for number in range(pieces):
            piece = data[number * line : (number + 1) * line]
            row = slot // strip * strip * pieces + number * strip + slot % strip
            at = row * line
            block[at : at + line] = np.pad(piece, (0, line - piece.size))


@pytest.mark.parametrize("lanes", [True, False])
@pytest.mark.parametrize(("name", "size"), [("latent", 8), ("heads", 24)])
@settings(max_examples=15, deadline=None)
@given(
    order=st.permutations(range(BLOCKS)),
    absent=st.lists(st.integers(0, BLOCKS - 1), max_size=2),
    foreign=st.sampled_from([-1, -BLOCKS, BLOCKS, BLOCKS + 3]),
    starts=st.lists(st.integers(0, 60), min_size=ROWS, max_size=ROWS),
    counts=st.lists(st.integers(0, TOKENS), min_size=ROWS, max_size=ROWS),
    seed=st.integers(0, 2**16),
)
def test_only_the_written_slots_change(
    name, size, lanes, order, absent, foreign, starts, counts, seed
):
    pool, call = compiled(name, size)
    entry, random = pool.entry, np.random.default_rng(seed)
    memory = {}
    for plane in entry.planes:
        like = block_in_memory(pool, plane, "cpu", lanes)
        shape = (LAYERS, BLOCKS, *like.shape[:-1], like.shape[-1] * like.dtype.itemsize)
        memory[plane.name] = random.integers(0, 256, shape, np.uint8).view(like.dtype)
    # Rows take blocks from one permutation, in turn: no block is of two rows.
    left = [foreign if at in absent else block for at, block in enumerate(order)]
    ids = np.full((ROWS, TOKENS), BLOCKS, np.int32)
    positions = np.asarray(starts)[:, None] + np.arange(TOKENS)
    for row, count in enumerate(counts):
        own: dict[int, int] = {}
        for token in range(count):
            number = int(positions[row, token]) // size
            if number not in own:
                own[number] = left.pop() if left else BLOCKS
            ids[row, token] = own[number]
    # Magnitudes of many kinds; entries of a few blocks are all zero.
    powers = (
        2.0 ** random.integers(-9, 9, (ROWS, TOKENS, 1, 1))
        * (ids % 4 > 0)[..., None, None]
    )
    values = {}
    for plane in entry.planes:
        if plane.name not in entry.scale_planes:
            value = random.normal(size=(ROWS, TOKENS, plane.heads, plane.dim)) * powers
            values[plane.name] = value.astype(np.float32)
    got = call(
        jax.tree.map(jnp.asarray, memory),
        jnp.asarray(ids),
        jnp.asarray(positions, jnp.int32),
        jax.tree.map(jnp.asarray, values),
    )
    want = {
        key: np.ascontiguousarray(value)
        .view(np.uint8)
        .reshape(LAYERS, BLOCKS, -1)
        .copy()
        for key, value in memory.items()
    }
    for row, token in zip(*np.nonzero((ids >= 0) & (ids < BLOCKS)), strict=True):
        one = {key: value[row, token] for key, value in values.items()}
        for key, data in entry_bytes(entry, one).items():
            put_entry(
                want[key][1, ids[row, token]],
                data,
                int(positions[row, token]) % size,
                size,
                lanes=lanes,
                turned=key in entry.scale_planes,
                itemsize=2 if entry[key].dtype == "bfloat16" else 1,
            )
    for key, expected in want.items():
        held = np.asarray(got[key]).view(np.uint8).reshape(expected.shape)
        assert np.array_equal(held, expected), key
