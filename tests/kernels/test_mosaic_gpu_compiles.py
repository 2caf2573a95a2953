"""The GPU kernels compiled to machine code for cards that are not here.

``pytest -s -m slow tests/kernels/test_mosaic_gpu_compiles.py`` prints, for each case,
seconds and temporary bytes.  A decode step that writes a donated pool and reads it must
leave the pool where it is.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401 (NumPy learns the names of narrow floats)
import numpy as np
import pytest
from twin import Pool

from hybridcache_jax.entry import Entry, Plane
from pallas_kernels.compiled.copies import large_moves
from pallas_kernels.compiled.environment import ENVIRONMENT
from pallas_kernels.compiled.matrix import process as own_process
from pallas_kernels.compiled.targets import compile_for, missing
from pallas_kernels.contracts import MOSAIC_GPU, MOSAIC_GPU_ENTRIES
from pallas_kernels.indexed_decode.mosaic_gpu import selected_attention
from pallas_kernels.indexer_scores.mosaic_gpu import top_units
from pallas_kernels.paged_decode.mosaic_gpu import paged_attention
from pallas_kernels.source import Source
from pallas_kernels.window_decode.mosaic_gpu import window_attention

ROWS, COLUMNS, LAYERS, BLOCKS, SELECTED = 4, 64, 2, 1024, 512
FP8 = "float8_e4m3fn"
# Partial results of a few shares; a pool has a hundred times more.
TEMPORARY = 20 << 20


def rows_of(nope, rope, dtype, value=None):
    """One joined row: shared keys and values, or latents."""
    planes = (Plane("k", 1, nope, dtype), Plane("r", 1, rope, dtype))
    return Entry(planes, key=("k", "r"), value=value or ("k", "r"))


def scaled_latents():
    return Entry(
        (
            Plane("k", 1, 512, FP8, scale="s", run=128),
            Plane("s", 1, 4),
            Plane("r", 1, 64, "bfloat16"),
        ),
        key=("k", "r"),
        value=("k",),
    )


def scaled_heads():
    return Entry(
        (
            Plane("k", 8, 128, FP8, scale="ks", run=128),
            Plane("v", 8, 128, FP8, scale="vs", run=128),
            Plane("ks", 8, 1),
            Plane("vs", 8, 1),
        )
    )


def index_keys(dtype):
    if dtype != FP8:
        return Entry((Plane("k", 1, 128, dtype),))
    return Entry((Plane("k", 1, 128, FP8, scale="s", run=128), Plane("s", 1, 1)))


# Entry, block tokens, tokens of an entry, query heads of a KV head.
LAYOUTS = {
    "8 heads of 64": (lambda dtype: Entry.kv(8, 64, dtype), 64, 1, 8),
    "8 heads of 128": (lambda dtype: Entry.kv(8, 128, dtype), 16, 1, 4),
    "1 head of 256": (lambda dtype: Entry.kv(1, 256, dtype), 128, 1, 4),
    "rows of 448 + 64": (lambda dtype: rows_of(448, 64, dtype), 256, 4, 64),
    "latents of 512 + 64": (
        lambda dtype: rows_of(512, 64, dtype, ("k",)), 64, 1, 128,
    ),
    "scaled latents": (lambda _: scaled_latents(), 64, 1, 128),
    "scaled heads": (lambda _: scaled_heads(), 64, 1, 8),
}  # fmt: skip
CASES = [
    (name, dtype)
    for name in LAYOUTS
    for dtype in ("bfloat16", "float32", FP8)
    if ("scaled" in name) == (dtype == FP8)
]


@pytest.fixture(scope="module", params=["h200", "b200"])
def process(request):
    """A card, and a process of its own to compile in."""
    reason = missing(request.param)
    if reason is not None:
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        with own_process() as executor:
            yield lambda run, *rest: executor.submit(run, request.param, *rest).result()


def read(operation, query, source, table, selected, positions, since, end):
    rows = {"positions": positions, "since": since, "end": end, "scale": 0.1}
    if operation == "indexed":
        return selected_attention(query, source, table, selected, **rows)
    if operation == "paged":
        return paged_attention(query, source, table, **rows)
    return window_attention(
        query, source, table, first_visible=lambda at: at - 511, reach=511, **rows
    )


def step(operation, pool, planes, new, places, *arguments):
    """Writes an entry of each row, and reads."""
    block, slot = places
    planes = {
        name: array.at[1, block, slot].set(new[name], mode="drop")
        for name, array in planes.items()
    }
    query, *rest = arguments
    return planes, read(operation, query, Source(planes, 1, pool), *rest)


def shapes(pool, group, width):
    shape, entry = jax.ShapeDtypeStruct, pool.entry
    planes = {
        p.name: shape((LAYERS, BLOCKS, pool.block_entries, p.width), np.dtype(p.dtype))
        for p in entry.planes
    }
    new = {name: shape((ROWS, x.shape[-1]), x.dtype) for name, x in planes.items()}
    heads = entry.key_planes[0].heads
    dim = sum(plane.dim for plane in entry.key_planes)
    row, at = shape((ROWS,), jnp.int32), shape((ROWS, width), jnp.int32)
    query = shape((ROWS, width, heads, group, dim), jnp.float32)
    table = shape((ROWS, COLUMNS), jnp.int32)
    selected = shape((ROWS, width, 1, SELECTED), jnp.int32)
    return planes, new, (row, row), query, table, selected, at, row, row


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of compiling; sizes in bytes."""

    words: str
    refusal: str | None = None
    temporary: int = 0
    aliased: int = 0
    pool: int = 0
    moves: tuple[str, ...] = ()


def outcome(words, card, function, arguments, donated):
    planes = arguments[0]
    sizes = [x.size * x.dtype.itemsize for x in planes.values()]
    compiled, seconds = compile_for(card, function, arguments, donated)
    memory = compiled.memory_analysis()
    assert memory is not None
    moves = large_moves(compiled, max(sizes) // 4)
    words = (
        f"{card} {words}: {seconds:.1f} s, {memory.temp_size_in_bytes:,} bytes, "
        f"{len(moves)} copies"
    )
    return Outcome(
        words,
        None,
        memory.temp_size_in_bytes,
        memory.alias_size_in_bytes,
        sum(sizes),
        moves,
    )


def compile_step(card, operation, name, dtype, width):
    make, tokens, per_entry, group = LAYOUTS[name]
    pool = Pool(make(dtype), tokens, per_entry)
    words = f"{operation} {name} {dtype}, {width} queries"
    function = functools.partial(step, operation, pool)
    arguments = shapes(pool, group, width)
    refusal = (MOSAIC_GPU_ENTRIES if operation == "indexed" else MOSAIC_GPU).refusal_of(
        pool
    )
    if refusal is not None:
        with pytest.raises(ValueError, match="do not accept this pool"):
            jax.eval_shape(function, *arguments)
        return Outcome(f"{card} {words}: refused, {refusal}", refusal)
    return outcome(words, card, function, arguments, (0,))


def compile_ranking(card, dtype):
    pool = Pool(index_keys(dtype), 64)
    planes, _, _, _, table, _, at, row, _ = shapes(pool, 1, 1)

    def rank(planes, query, weights, table, positions, since, end):
        return top_units(
            query,
            weights,
            Source(planes, 1, pool),
            table,
            scale=0.1,
            groups=1,
            k=512,
            unit=1,
            local_units=0,
            skip_open=False,
            positions=positions,
            since=since,
            end=end,
        )

    query = jax.ShapeDtypeStruct((ROWS, 1, 64, 128), jnp.float32)
    weights = jax.ShapeDtypeStruct((ROWS, 1, 64), jnp.float32)
    arguments = (planes, query, weights, table, at, row, row)
    return outcome(f"ranking {dtype}", card, rank, arguments, ())


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["paged", "window", "indexed"])
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_step_compiles_and_leaves_the_pool_in_place(process, name, dtype, operation):
    made = process(compile_step, operation, name, dtype, 1)
    print(made.words)
    assert made.refusal is None
    assert not made.moves
    assert made.aliased == made.pool
    assert made.temporary < TEMPORARY


@pytest.mark.slow
@pytest.mark.parametrize("width", [4, 128])
def test_chunks_compile(process, width):
    made = process(compile_step, "paged", "8 heads of 128", "bfloat16", width)
    print(made.words)
    assert not made.moves
    assert made.aliased == made.pool


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", FP8])
def test_ranking_compiles(process, dtype):
    made = process(compile_ranking, dtype)
    print(made.words)
    assert not made.moves
    assert made.temporary < TEMPORARY
