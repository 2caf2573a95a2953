"""Single entries and columns of a ring, against plain indexing."""

import jax
import jax.numpy as jnp
import numpy as np

import hybridcache_jax as hc
from hybridcache_jax import Entries, Entry, Form, LayerSpec
from hybridcache_jax.rows import block_numbers
from pallas_kernels.gather import at_positions


def test_every_position_finds_its_entry_in_the_ring():
    """Blocks of six tokens and of three entries; two columns, block j in j % 2."""
    row = Entry.kv(1, 1)
    spec = hc.CacheSpec.from_layers(
        [LayerSpec(global_=Entries(row, 2, raw=row))],
        block_tokens={Form.COMPRESSED_KV: 6, Form.UNCOMPRESSED_TAIL: 2},
    )
    (pool,) = (pool for pool in spec.pools if pool.form == Form.COMPRESSED_KV)
    stored = np.arange(5 * 3, dtype=np.float32).reshape(1, 5, 3, 1)
    memory = {plane.name: jnp.asarray(stored) for plane in pool.entry.planes}
    blocks = np.array([[4, 1], [5, 2]], np.int32)  # 5 is past the end
    positions = np.tile(np.arange(-2, 24, dtype=np.int32), (2, 1))
    read = jax.jit(at_positions, static_argnums=(0, 2, 5))
    loaded, there = read(pool, memory, 0, blocks, positions, 5)
    for line, columns in enumerate(blocks):
        for place, position in enumerate(positions[line]):
            block = columns[position // 6 % 2]
            assert bool(there[line, place]) == (position >= 0 and block < 5)
            if there[line, place]:
                for name in memory:
                    got = float(loaded[name][line, place].item())
                    assert got == stored[0, block, position % 6 // 2, 0]


def test_a_column_stands_for_the_last_block_that_fell_to_it():
    for columns in (1, 2, 3, 5):
        extents = np.arange(0, 40, dtype=np.int32)
        numbers = block_numbers(extents, 4, columns)
        for extent, row in zip(extents.tolist(), numbers.tolist(), strict=True):
            blocks = range(-(-extent // 4))
            for column, number in enumerate(row):
                mine = [block for block in blocks if block % columns == column]
                assert number == mine[-1] if mine else number < 0
