"""The GPU kernel behind windows and whole histories, interpreted.

Mosaic GPU's interpreter runs copies, barriers and shared memory, and finds races; the
tensor cores' instructions are replaced by what they stand for
(``test_mosaic_gpu_fragments.py`` has those), and ``test_mosaic_gpu_compiles.py``
compiles everything for real cards.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from gpu_pools import check, interpreter, pool_of, table_of
from hypothesis import given, settings
from hypothesis import strategies as st
from twin import Pool as Layout

from hybridcache_jax.entry import Entry, Plane
from pallas_kernels.mosaic_gpu.blocks import read_blocks
from pallas_kernels.mosaic_gpu.parts import part_at, parts_of_tile, tile_range
from pallas_kernels.mosaic_gpu.sizes import BlockSizes
from pallas_kernels.reach import Reach

WINDOW, ENTRIES, WIDTH, GROUP = 40, 220, 2, 3
FP8 = "float8_e4m3fn"
LATENT = Entry(
    (Plane("c", 1, 128, "bfloat16"), Plane("r", 1, 64, "bfloat16")),
    key=("c", "r"),
    value=("c",),
)
JOINED = Entry(
    (Plane("a", 1, 64, "float32"), Plane("r", 1, 64, "float32")),
    key=("a", "r"),
    value=("a", "r"),
)
RUNS = Entry(
    (
        Plane("k", 1, 256, FP8, scale="s", run=64),
        Plane("s", 1, 4, "float32"),
        Plane("r", 1, 64, "bfloat16"),
    ),
    key=("k", "r"),
    value=("k", "r"),
)
ONE_SCALE = Entry(
    (Plane("k", 1, 64, "int8", scale="s", run=64), Plane("s", 1, 1, "float32"))
)
HEADS = Entry(
    (
        Plane("k", 4, 64, FP8, scale="ks", run=64),
        Plane("v", 4, 64, FP8, scale="vs", run=64),
        Plane("ks", 4, 1, "float32"),
        Plane("vs", 4, 1, "float32"),
    )
)

# Layout, window, soft cap, splits, stages.
CASES = {
    "float32, blocks of 16": (Layout(Entry.kv(2, 64), 16), None, None, 1, 2),
    "float32, a tile a block, window": (Layout(JOINED, 64), WINDOW, 5.0, 1, 3),
    "bfloat16, blocks of 128": (
        Layout(Entry.kv(1, 64, "bfloat16"), 128), None, None, 3, 2,
    ),
    "latents, entries of 4 tokens": (Layout(LATENT, 32, 4), None, None, 1, 1),
    "bfloat16, small blocks, window": (
        Layout(Entry.kv(2, 64, "bfloat16"), 8), WINDOW, None, 2, 2,
    ),
    "fp8, a scale for each 64": (Layout(RUNS, 32), None, None, 1, 2),
    "int8, a scale for each entry": (Layout(ONE_SCALE, 32), None, None, 2, 2),
    "fp8, scales of heads": (Layout(HEADS, 16), WINDOW, 20.0, 1, 2),
}  # fmt: skip


def lengths(layout, window, most):
    """Around nothing, a window, a block and a tile; with and without a start."""
    block, tile = layout.block_tokens, 64 * layout.entry_tokens
    some = {0, 1, WINDOW - 1, WINDOW, WINDOW + 1, block - 1, block, block + 1}
    some |= {tile, tile + 1, most}
    some = sorted(n for n in some if n <= most)
    # A ring holds what a window needs, not more.
    return some + ([] if window is None else [most + 3 * block, most + block - 1])


@settings(max_examples=60)
@given(
    size=st.sampled_from([8, 16, 32, 64, 128, 256]),
    tokens=st.sampled_from([1, 4]),
    since=st.integers(0, 1500),
    length=st.integers(0, 1500),
    ring=st.booleans(),
)
def test_only_what_a_row_needs_is_copied(size, tokens, since, length, ring):
    """Parts of blocks that hold a position that counts, each once, in order."""
    layout = Layout(Entry.kv(1, 64), size * tokens, tokens)
    end = since + length
    # A ring has room for what is read, not for what lies before it.
    columns = -(-(length if ring else end) // layout.block_tokens) + 1
    table = np.random.default_rng(size).permutation(columns + 3)[None, :columns]
    table[0, -(since % columns) :] += 1000 * (since % 2)
    at = jnp.asarray([since], jnp.int32), jnp.asarray([end], jnp.int32)
    first, stop = (int(x[0]) for x in tile_range(layout, *at))
    got = []
    for number in range(first, stop):
        for n in range(parts_of_tile(layout)):
            (block, entry, count), there = part_at(
                layout, table, 0, since, end, jnp.int32(number), n,
                blocks=columns + 3, ring=ring,
            )  # fmt: skip
            if there:
                got.append((int(block), int(entry), count))
    count = min(size, 64)
    needed = sorted({at // tokens // count for at in range(since, end)})
    places = [
        (table[0, n * count // size % columns], n * count % size, count) for n in needed
    ]
    assert got == [place for place in places if place[0] < columns + 3]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_attention_over_blocks(name):
    layout, window, soft_cap, splits, stages = CASES[name]
    random = np.random.default_rng(list(name.encode()))
    interpret = interpreter()
    # At least four tiles, so that each place in shared memory is used again.
    columns = -(-ENTRIES // layout.block_entries)
    end = np.array(lengths(layout, window, columns * layout.block_tokens))
    count = np.minimum(end, random.integers(1, WIDTH + 1, end.shape))
    position = end - count
    since = np.where(random.random(end.shape) < 0.3, position // 2, 0)
    rows, heads = len(end), layout.entry.key_planes[0].heads
    table = table_of(random, rows, columns, 0.15)

    def sees(row, at):
        """Entries that one query sees, by the definition."""
        low = since[row]
        if window is not None:
            low = max(low, position[row] + at - window + 1)
        stop = min(end[row], position[row] + at + 1)
        tokens = layout.entry_tokens
        first = -(-low // tokens)
        return range(first, max(first, stop // tokens))

    live = {
        (row, n) for row in range(rows) for at in range(WIDTH) for n in sees(row, at)
    }
    pool = pool_of(random, layout, table, live)
    dim = sum(plane.dim for plane in layout.entry.key_planes)
    exact = layout.entry.key_planes[0].dtype == "float32"
    query = random.normal(size=(rows, WIDTH, heads, GROUP, dim)).astype(np.float32)
    reach = Reach()
    if window is not None:
        most = min(-(-(window + WIDTH) // layout.block_tokens) + 1, columns)
        reach = Reach(lambda at: at - window + 1, most=most, ring=True)
    part = read_blocks(
        jnp.asarray(query),
        pool.source,
        jnp.asarray(table, jnp.int32),
        **{
            name: jnp.asarray(x, jnp.int32)
            for name, x in [("position", position), ("since", since), ("end", end)]
        },
        scale=dim**-0.5,
        soft_cap=soft_cap,
        reach=reach,
        sizes=BlockSizes(queries=8, stages=stages, splits=splits),
        interpret=interpret,
    )
    worst = check(
        part,
        pool,
        query,
        lambda row, at, head: sees(row, at),
        scale=dim**-0.5,
        soft_cap=soft_cap,
        tolerance=1e-5 if exact else 1e-2,
    )
    print(f"{name}: largest error {worst:.1e}")
