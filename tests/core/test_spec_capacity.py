"""From layer records to pools, bytes and fingerprints, and from a budget to a plan."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridcache_jax as hc
from hybridcache_jax.block_counts import minimum_blocks
from hybridcache_jax.budget import plan_capacity
from hybridcache_jax.byte_sizes import format_bytes, parse_bytes
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.entry import Entry, Plane
from hybridcache_jax.forms import Form
from hybridcache_jax.layers import (
    Chunk,
    Entries,
    IndexKeys,
    LayerSpec,
    RecurrentState,
    TopK,
    Window,
)
from hybridcache_jax.planes import storage_dtype
from hybridcache_jax.spec import CacheSpec, Part

ROW = Entry.kv(1, 4)
WINDOW = LayerSpec(local=Window(6, ROW))
FULL = LayerSpec(global_=Entries(ROW))
HYBRID = CacheSpec.from_layers([WINDOW, FULL, WINDOW], block_tokens=4)


def opaque(nbytes):
    """An entry of so many bytes."""
    return Entry((Plane("k", 1, nbytes, "uint8"),))


# --- layer records ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Plane("not a name", 1, 1), "identifier"),
        (lambda: Plane("k", 0, 1), "heads >= 1"),
        (lambda: Plane("k", 1, 0), "dim >= 1"),
        (lambda: Plane("k", 1, 1, "float33"), "float33"),
        (lambda: Entry(()), "at least one plane"),
        (lambda: Entry((Plane("k", 1, 1), Plane("k", 1, 2))), "distinct"),
        (lambda: Entries(ROW, 0), "ratio >= 1"),
        (lambda: Entries(ROW, 4, 2, raw=ROW), "overlap 0 or 1"),
        (lambda: Entries(ROW, 4), "raw rows"),
        (lambda: Entries(ROW, 1, raw=ROW), "no raw rows"),
        (lambda: IndexKeys(ROW, 4, 1), "overlap 0"),
        (lambda: IndexKeys(ROW, 0), "ratio >= 1"),
        (lambda: TopK(0), "k >= 1"),
        (lambda: TopK(1, per="layer"), "kv_group"),
        (LayerSpec, "keeps something"),
        (lambda: LayerSpec(local=Window(2, ROW), kv_owner=0), "must not"),
    ],
)
def test_layer_records_refuse_what_they_cannot_mean(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_entry_bytes():
    assert Entry.kv(8, 64, "bfloat16").nbytes == 2_048
    assert Plane("k", 8, 64, "bfloat16").width == 512
    # Values and scales of a quantised row are one entry.
    quantised = Entry((Plane("k", 1, 512, "float8_e4m3fn"), Plane("s", 1, 4)))
    assert quantised.nbytes == 512 + 16


# --- grouping, grid, owners ---------------------------------------------------------


def test_layers_of_one_kind_share_a_group_and_its_pools():
    layers = [WINDOW, FULL, WINDOW, LayerSpec(local=Window(7, ROW)), FULL]
    spec = CacheSpec.from_layers(layers)
    assert [group.layers for group in spec.groups] == [(0, 2), (1, 4), (3,)]
    assert [group.kind for group in spec.groups] == [WINDOW, FULL, layers[3]]
    assert [pool.name for pool in spec.pools] == [
        "swa_window.0",
        "full_kv.1",
        "swa_window.2",
    ]
    assert [pool.layers for pool in spec.pools] == [(0, 2), (1, 4), (3,)]
    assert spec.find(2, Part.LOCAL) == (0, 1)
    assert spec.find(4, Part.ENTRIES) == (1, 1)
    assert spec.find(3, Part.LOCAL) == (2, 0)


def test_one_layer_may_leave_many_forms():
    layer = LayerSpec(
        local=Window(128, ROW),
        global_=Entries(ROW, 4, overlap=1, raw=ROW),
        index=IndexKeys(ROW, 4, overlap=1, raw=ROW),
        recurrent=RecurrentState(ROW),
    )
    spec = CacheSpec.from_layers([layer])
    assert [(pool.name, pool.form) for pool in spec.pools] == [
        ("swa_window.0", Form.SWA_WINDOW),
        ("compressed_kv.0", Form.COMPRESSED_KV),
        ("uncompressed_tail.0", Form.UNCOMPRESSED_TAIL),
        ("indexer_state.0", Form.INDEXER_STATE),
        ("uncompressed_tail.0.index", Form.UNCOMPRESSED_TAIL),
        ("recurrent_state.0", Form.RECURRENT_STATE),
    ]
    assert [pool.entry_tokens for pool in spec.pools] == [1, 4, 1, 4, 1, 32]
    assert [pool.geometry.halo for pool in spec.pools] == [0, 0, 4, 0, 4, 0]
    assert spec.groups[0].pools == tuple(range(6))
    names = [pool.name for pool in spec.pools]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("blocks", "grid"),
    [
        (32, 32),
        ({Form.SWA_WINDOW: 4, Form.FULL_KV: 6}, 12),
        ({Form.SWA_WINDOW: 64, Form.FULL_KV: 256}, 256),
        ({Form.SWA_WINDOW: 3}, 96),  # the other keeps the default of 32
    ],
)
def test_grid_is_the_least_common_multiple_of_block_sizes(blocks, grid):
    assert CacheSpec.from_layers([WINDOW, FULL], block_tokens=blocks).grid == grid


def test_grid_counts_ratios_too():
    layers = [
        LayerSpec(global_=Entries(ROW, 4, raw=ROW)),
        LayerSpec(global_=Entries(ROW, 128, raw=ROW)),
    ]
    sizes = {Form.COMPRESSED_KV: 128, Form.UNCOMPRESSED_TAIL: 128}
    spec = CacheSpec.from_layers(layers, block_tokens=sizes)
    assert spec.grid == 128
    assert [pool.block_entries for pool in spec.pools] == [32, 128, 1, 128]


@pytest.mark.parametrize("size", [0, -4, 6, 32])
def test_a_block_holds_whole_entries(size):
    layers = [LayerSpec(global_=Entries(ROW, 64, raw=ROW))]
    with pytest.raises(
        ValueError, match=r"multiple of its compression ratio 64|whole number"
    ):
        CacheSpec.from_layers(layers, block_tokens=size)


def test_readers_own_nothing_and_are_placed_at_their_owner():
    layers = [WINDOW, FULL, LayerSpec(kv_owner=1), LayerSpec(kv_owner=0)]
    spec = CacheSpec.from_layers(layers, block_tokens=4)
    assert [pool.layers for pool in spec.pools] == [(0,), (1,)]
    for reader, owner, part in ((2, 1, Part.ENTRIES), (3, 0, Part.LOCAL)):
        assert spec.find(reader, part) == spec.find(owner, part) is not None
    assert spec.find(2, Part.LOCAL) is spec.find(3, Part.ENTRIES) is None
    alone = CacheSpec.from_layers(layers[:2], block_tokens=4)
    assert spec.bytes_per_token() == alone.bytes_per_token()
    assert spec.fixed_bytes() == alone.fixed_bytes()
    for layer in (-1, 4):
        with pytest.raises(ValueError, match="0 to 3"):
            spec.find(layer, Part.LOCAL)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "at least one layer"),
        ([FULL, LayerSpec(kv_owner=1)], "earlier layer"),
        ([FULL, LayerSpec(kv_owner=2), FULL], "earlier layer"),
        ([FULL, LayerSpec(kv_owner=-1)], "earlier layer"),
        ([FULL, LayerSpec(kv_owner=0), LayerSpec(kv_owner=1)], "name layer 0"),
        ([FULL, LayerSpec(global_=Entries(ROW), index_owner=5)], "index_owner=5"),
        ([FULL, LayerSpec(global_=Entries(ROW), select_owner=1)], "select_owner=1"),
    ],
)
def test_owners_are_earlier_layers_that_own(layers, message):
    with pytest.raises(ValueError, match=message):
        CacheSpec.from_layers(layers)


@pytest.mark.parametrize(
    ("owner", "reader", "field"),
    [
        (
            LayerSpec(recurrent=RecurrentState(ROW)),
            LayerSpec(kv_owner=0),
            "kv_owner",
        ),
        (FULL, LayerSpec(global_=Entries(ROW), index_owner=0), "index_owner"),
    ],
)
def test_an_owner_has_what_its_reader_reads(owner, reader, field):
    """``from_layers`` promises: an earlier layer *which owns entries*."""
    with pytest.raises(ValueError, match=field):
        CacheSpec.from_layers([owner, reader])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: LayerSpec(
                global_=Entries(ROW), index=IndexKeys(ROW), index_owner=0
            ),
            "either index of its own or index_owner=0",
        ),
        (
            lambda: LayerSpec(
                global_=Entries(ROW),
                index=IndexKeys(ROW),
                select=TopK(2),
                select_owner=0,
            ),
            "either select of its own or select_owner=0",
        ),
        (
            lambda: LayerSpec(
                local=Window(4, Entry.kv(1, 4)), global_=Entries(Entry.kv(1, 8))
            ),
            "keys have 4 and 8 elements",
        ),
        (lambda: IndexKeys(Entry.kv(2, 4)), "one head, got 2"),
        (lambda: TopK(2, local_units=3), "3 local units do not fit among k=2"),
        (lambda: Plane("k", 1, 3, "float4_e2m1fn"), "even width"),
    ],
)
def test_records_that_no_read_could_serve(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_selection_per_head_is_read_by_as_many_heads():
    owner = LayerSpec(
        global_=Entries(Entry.kv(2, 4)),
        index=IndexKeys(ROW),
        select=TopK(3, per="kv_group"),
    )
    reader = LayerSpec(global_=Entries(Entry.kv(1, 4)), select_owner=0)
    with pytest.raises(ValueError, match="1 KV heads and reads a selection made for 2"):
        CacheSpec.from_layers([owner, reader])


INDEXED = LayerSpec(global_=Entries(ROW, 4, raw=ROW), index=IndexKeys(ROW, 4, raw=ROW))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([LayerSpec(local=Window(4, ROW), select=TopK(3))], "no entries to select"),
        ([LayerSpec(global_=Entries(ROW), select=TopK(3))], "nothing ranks"),
        ([dataclasses.replace(INDEXED, select=TopK(3, unit=2))], "entries' ratio 4"),
        (
            [
                LayerSpec(
                    global_=Entries(ROW),
                    index=IndexKeys(ROW, 4, raw=ROW),
                    select=TopK(3),
                )
            ],
            "index keys' ratio 4",
        ),
        (
            [
                LayerSpec(global_=Entries(ROW), index=IndexKeys(ROW), select=TopK(3)),
                LayerSpec(global_=Entries(ROW, 4, raw=ROW), select_owner=0),
            ],
            "Layer 1: a unit of 1 tokens",
        ),
    ],
)
def test_a_selection_has_entries_a_ranking_and_whole_units(layers, message):
    with pytest.raises(ValueError, match=message):
        CacheSpec.from_layers(layers)


def test_what_a_layer_reads_of_others_makes_no_group():
    own = LayerSpec(global_=Entries(ROW), index=IndexKeys(ROW), select=TopK(3))
    reader = LayerSpec(global_=Entries(ROW), select_owner=0)
    other = LayerSpec(global_=Entries(ROW), index_owner=0, select=TopK(2))
    spec = CacheSpec.from_layers([own, reader, reader, other])
    assert [group.layers for group in spec.groups] == [(0,), (1, 2, 3)]
    assert spec.find(3, Part.INDEX) == spec.find(0, Part.INDEX)
    assert spec.find(1, Part.INDEX) is None


def test_blocks_are_as_long_as_their_ratio_asks_for():
    layers = [LayerSpec(global_=Entries(ROW, ratio, raw=ROW)) for ratio in (6, 128)]
    spec = CacheSpec.from_layers(layers)
    assert [pool.block_tokens for pool in spec.pools] == [36, 32, 128, 32]


# --- fingerprints -------------------------------------------------------------------

RICH = LayerSpec(
    local=Window(6, Entry((Plane("k", 2, 4, "bfloat16"),))),
    global_=Entries(ROW, 4, overlap=1, raw=ROW),
    select=TopK(8, unit=4, local_units=1),
    index=IndexKeys(ROW, 4, overlap=1, raw=ROW),
)


def variants():
    """The same model with one thing changed."""
    change = dataclasses.replace
    plane = RICH.local.entry.planes[0]

    def local(**fields):
        entry = Entry((change(plane, **fields),))
        return LayerSpec(local=Window(6, entry))

    yield "window", change(RICH, local=Window(7, RICH.local.entry)), 4
    yield "chunk", change(RICH, local=Chunk(6, RICH.local.entry)), 4
    yield "a window alone", local(), 4
    yield "plane name", local(name="v"), 4
    yield "heads", local(heads=4), 4
    yield "dim", local(dim=8), 4
    yield "heads and dim", local(heads=4, dim=2), 4
    yield "dtype", local(dtype="float16"), 4
    entry = RICH.local.entry
    said = change(entry, convention="other")
    yield "convention", change(RICH, local=Window(6, said)), 4
    named = change(entry, key=("k",))
    yield "key", change(RICH, local=Window(6, named)), 4
    scaled = Entry((change(plane, scale="s", run=2), Plane("s", 2, 2, "bfloat16")))
    yield "scale", change(RICH, local=Window(6, scaled)), 4
    run = Entry((change(plane, scale="s", run=4), Plane("s", 2, 2, "bfloat16")))
    yield "run", change(RICH, local=Window(6, run)), 4
    yield "ratio", change(RICH, global_=change(RICH.global_, ratio=2)), 4
    yield "overlap", change(RICH, global_=change(RICH.global_, overlap=0)), 4
    yield "raw", change(RICH, global_=change(RICH.global_, raw=Entry.kv(1, 2))), 4
    yield "entry", change(RICH, global_=change(RICH.global_, entry=Entry.kv(2, 4))), 4
    yield "index ratio", change(RICH, index=change(RICH.index, ratio=2)), 4
    yield "index overlap", change(RICH, index=change(RICH.index, overlap=0)), 4
    yield "index pooling", change(RICH, index=IndexKeys(ROW, 4)), 4
    yield "top k", change(RICH, select=change(RICH.select, k=9)), 4
    yield "unit", change(RICH, select=change(RICH.select, unit=8)), 4
    yield "local units", change(RICH, select=change(RICH.select, local_units=0)), 4
    yield "open tail", change(RICH, select=change(RICH.select, open_tail=True)), 4
    yield "per", change(RICH, select=change(RICH.select, per="kv_group")), 4
    yield "no select", change(RICH, select=None), 4
    yield "recurrent", change(RICH, recurrent=RecurrentState(ROW)), 4
    yield "block size", RICH, 8
    yield "block size of one form", RICH, {Form.SWA_WINDOW: 8}


def fingerprint(layer, blocks=4, before=FULL):
    return CacheSpec.from_layers([before, layer], block_tokens=blocks).fingerprint


def test_every_field_is_in_the_fingerprint():
    prints = {"the model itself": fingerprint(RICH)}
    for name, layer, blocks in variants():
        prints[name] = fingerprint(layer, blocks)
    prints["other first layer"] = fingerprint(RICH, before=WINDOW)
    prints["owner 0"] = fingerprint(LayerSpec(kv_owner=0))
    for field in ("index_owner", "select_owner"):
        before = dataclasses.replace(RICH, recurrent=None)
        layer = dataclasses.replace(FULL, **{field: 0})
        prints[field] = fingerprint(layer, before=before)
        prints[f"no {field}"] = fingerprint(FULL, before=before)
    # The last two are the same model, told twice.
    assert prints.pop("no index_owner") == prints["no select_owner"]
    same = {}
    for name, text in prints.items():
        same.setdefault(text, []).append(name)
    assert [names for names in same.values() if len(names) > 1] == []


def test_order_of_layers_is_in_the_fingerprint():
    orders = ([WINDOW, FULL, FULL], [FULL, WINDOW, FULL], [FULL, FULL, WINDOW])
    prints = {CacheSpec.from_layers(order).fingerprint for order in orders}
    assert len(prints) == 3


def test_equal_specs_have_equal_fingerprints():
    def build():
        return CacheSpec.from_layers(
            [
                LayerSpec(global_=Entries(ROW), index=IndexKeys(ROW), select=TopK(3)),
                LayerSpec(local=Window(6, Entry.kv(1, 4))),
                LayerSpec(global_=Entries(Entry.kv(1, 4))),
            ],
            block_tokens=4,
        )

    assert build() == build()
    assert hash(build()) == hash(build())
    assert build().fingerprint == build().fingerprint
    assert len(build().fingerprint) == 64
    by_form = dict.fromkeys(Form, 4)
    spec = CacheSpec.from_layers(build().layers, block_tokens=by_form)
    assert spec.fingerprint == build().fingerprint
    lookback = LayerSpec(local=Window.from_lookback(5, ROW))
    assert fingerprint(lookback) == fingerprint(WINDOW)


# --- bytes of real models -----------------------------------------------------------

BF16 = "bfloat16"
RAW = opaque(1)


def models():
    gemma = Entry.kv(16, 128, BF16)
    gpt = Entry.kv(8, 64, BF16)
    csa = LayerSpec(
        local=Window(128, opaque(584)),
        global_=Entries(opaque(584), 4, 1, raw=RAW),
        index=IndexKeys(opaque(68), 4, 1, raw=RAW),
    )
    hca = LayerSpec(
        local=Window(128, opaque(584)), global_=Entries(opaque(584), 128, raw=RAW)
    )
    plain = LayerSpec(local=Window(128, opaque(584)))

    def layer(part, entry, size):
        if part == "window":
            return LayerSpec(local=Window(size, entry))
        return LayerSpec(global_=Entries(entry))

    mib = 2**20
    yield (
        "gemma-3-27b",
        [layer("window" if i % 6 != 5 else "full", gemma, 1024) for i in range(62)],
        81_920,
        416 * mib,
    )
    yield (
        "gpt-oss-120b",
        [layer("full" if i % 2 else "window", gpt, 128) for i in range(36)],
        36_864,
        4.5 * mib,
    )
    yield (
        "gpt-oss-20b",
        [layer("full" if i % 2 else "window", gpt, 128) for i in range(24)],
        24_576,
        3 * mib,
    )
    yield (
        "OLMo-3-32B",
        [
            layer("full" if i % 4 == 3 else "window", Entry.kv(8, 128, BF16), 4096)
            for i in range(64)
        ],
        65_536,
        768 * mib,
    )
    latent = LayerSpec(global_=Entries(opaque(656)), index=IndexKeys(opaque(132)))
    yield "DeepSeek-V3.2 FP8", [latent] * 61, 48_068, 0
    yield "DeepSeek-V4-Flash", [plain] * 2 + [csa, hca] * 20 + [csa], 3_514.25, None
    yield "DeepSeek-V4-Pro", [hca] * 2 + [csa, hca] * 29 + [csa], 5_031.4375, None
    owner = {
        ratio: LayerSpec(
            global_=Entries(opaque(288), ratio, raw=RAW if ratio > 1 else None),
            index=IndexKeys(opaque(68), ratio),
        )
        for ratio in (1, 2)
    }
    # Four owners of 40 layers: three with ratio 2, one per token.
    v41 = []
    for ratio in (2, 2, 2, 1):
        v41.append(owner[ratio])
        v41 += [LayerSpec(kv_owner=len(v41) - 1)] * 5
    yield "DeepSeek-V4.1-Flash", v41, 890, None


@pytest.mark.parametrize("name", [name for name, *_ in models()])
def test_bytes_of_real_models(name):
    _, layers, per_token, fixed = next(row for row in models() if row[0] == name)
    spec = CacheSpec.from_layers(layers, block_tokens=128)
    assert spec.bytes_per_token() == per_token
    if fixed is not None:
        assert spec.fixed_bytes() == fixed


def test_fixed_bytes_of_tails_and_states():
    layers = [
        LayerSpec(global_=Entries(ROW, 4, 1, raw=opaque(10))),  # 4 + 4 rows at most
        LayerSpec(global_=Entries(ROW, 8, raw=opaque(100))),  # 8 rows at most
        LayerSpec(recurrent=RecurrentState(opaque(1_000))),
    ]
    assert CacheSpec.from_layers(layers).fixed_bytes() == 8 * 10 + 8 * 100 + 1_000


# --- storage dtypes -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "backend", "want"),
    [
        ("bfloat16", "cpu", "uint16"),
        ("float8_e4m3fn", "cpu", "uint8"),
        ("float8_e5m2", "cpu", "uint8"),
        ("float32", "cpu", "float32"),
        ("float16", "cpu", "float16"),
        ("uint8", "cpu", "uint8"),
        ("bfloat16", "gpu", "bfloat16"),
        ("bfloat16", "tpu", "bfloat16"),
        ("float8_e4m3fn", "gpu", "float8_e4m3fn"),
    ],
)
def test_storage_dtypes(name, backend, want):
    dtype = storage_dtype(name, backend)
    assert dtype.name == want
    assert dtype.itemsize == Plane("k", 1, 1, name).nbytes


def test_unknown_dtype_is_named():
    with pytest.raises(ValueError, match="bfloat17"):
        storage_dtype("bfloat17", "cpu")


# --- capacity -----------------------------------------------------------------------


def plan(spec=HYBRID, budget="1MiB", **more):
    settings = {"max_sequences": 3, "max_length": 64, "max_chunk": 8, **more}
    return plan_capacity(spec, budget=budget, backend="cpu", **settings)


def index_bytes(made: CapacityPlan) -> int:
    """The stored tokens, all of which have their history, and the claims for them."""
    tokens = min(
        count * pool.block_tokens
        for pool, count in zip(made.spec.pools, made.blocks, strict=True)
        if pool.form != Form.SWA_WINDOW
    )
    claims = sum(tokens // pool.block_tokens for pool in made.spec.pools)
    sizes = {pool.block_tokens for pool in made.spec.pools}
    node = 512 + 192 * len(sizes) + 4 * made.spec.grid + 1408
    return 8 * claims + 8 * tokens + tokens // made.spec.grid * node


def device_bytes(made: CapacityPlan) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(hc.init(made)))


SHAPES = [
    {"max_sequences": 3, "max_length": 64, "max_chunk": 8},
    {"max_sequences": 1, "max_length": 4, "max_chunk": 1},
    {"max_sequences": 64, "max_length": 8, "max_chunk": 4},
    {"max_sequences": 2, "max_length": 300, "max_chunk": 64},
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("stored", [0, 40])
def test_a_plan_counts_every_byte(shape, stored):
    """Red line 1: pools, state tables, row tables and index are all paid for."""
    made = plan(stored_tokens=stored, **shape)
    assert sum(made.pool_bytes) + made.overhead_bytes == made.total_bytes
    real = device_bytes(made) + index_bytes(made)
    assert real <= made.total_bytes, "more is allocated than the plan says"
    assert real == made.total_bytes


def test_a_plan_counts_what_blocks_are_copied_through():
    """One batch of one pool, on the device and on the host, and a payload."""
    without, made = plan(stored_tokens=40), plan(stored_tokens=40, staging_blocks=3)
    largest = max(pool.block_bytes for pool in made.spec.pools)
    assert made.total_bytes - without.total_bytes == (3 + 3 + 1) * largest
    assert (without.staging_bytes, made.staging_bytes) == (0, 7 * largest)
    with pytest.raises(ValueError, match="staging_blocks"):
        plan(staging_blocks=-1)


@settings(max_examples=60)
@given(
    budget=st.integers(50_000, 400_000),
    sequences=st.integers(1, 6),
    length=st.integers(1, 80),
    chunk=st.integers(1, 100),
)
def test_a_plan_uses_its_budget_and_never_more(budget, sequences, length, chunk):
    shape = {"max_sequences": sequences, "max_length": length, "max_chunk": chunk}
    made = plan(budget=budget, **shape)
    assert made.total_bytes <= budget
    assert made.max_chunk == min(chunk, length)
    # One grid unit more in every pool would not have fitted.
    more = tuple(
        count + made.spec.grid // pool.block_tokens
        for count, pool in zip(made.blocks, made.spec.pools, strict=True)
    )
    assert dataclasses.replace(made, blocks=more).total_bytes > budget


def test_pool_bytes_are_those_of_the_arrays():
    spec = CacheSpec.from_layers(
        [LayerSpec(local=Window(6, Entry.kv(2, 4, "bfloat16"))), FULL, FULL],
        block_tokens={Form.SWA_WINDOW: 2, Form.FULL_KV: 8},
    )
    made = plan(spec)
    cache = hc.init(made)
    for number, pool in enumerate(cache.pools):
        assert sum(a.nbytes for a in pool.values()) == made.pool_bytes[number]
    assert cache.pools[0]["k"].dtype == np.uint16
    assert cache.pools[1]["v"].shape == (2, made.blocks[1], 8, 4)


def test_init_is_empty():
    made = plan()
    cache = hc.init(made)
    for table, count in zip(cache.tables, made.blocks, strict=True):
        assert int(table.num_free) == count
        assert sorted(np.asarray(table.free).tolist()) == list(range(count))
        assert not np.asarray(table.stage).any()
        assert not np.asarray(table.kept).any()
    assert not np.asarray(cache.rows.live).any()
    for number, blocks in enumerate(cache.rows.blocks):
        assert (np.asarray(blocks) == made.blocks[number]).all()
        assert blocks.shape == (3, made.columns(number))


def test_minimum_blocks_serve_every_row():
    made = plan(stored_tokens=0)
    # Growing: one sequence of 64 tokens, one block for each other row.
    assert made.blocks[1] == 64 // 4 + 2
    # Windows: 5 + 2 * 8 tokens of a row touch at most 7 blocks of 4.
    assert made.blocks[0] == 3 * 7
    assert made.columns(1) == 16
    assert made.columns(0) == 6
    short = plan(stored_tokens=0, max_length=5)
    assert short.blocks == (3 * 2, 2 + 2)
    assert short.columns(0) == 2


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_a_rows_window_always_fits_its_blocks(chunk):
    """Whatever the offset, the rows a chunk sees and writes touch few enough blocks."""
    made = plan(stored_tokens=0, max_chunk=chunk)
    pool = made.spec.pools[0]
    least = minimum_blocks(pool, 1, 64, chunk)
    for start in range(64 - chunk):
        low = max(0, start - 5)
        touched = {at // 4 for at in range(low, start + chunk)}
        assert len(touched) <= least


def test_stored_tokens_are_planned_for_on_top():
    base = plan(stored_tokens=0)
    for stored, units in [(1, 1), (4, 1), (5, 2), (64, 16)]:
        made = plan(stored_tokens=stored)
        for number, pool in enumerate(HYBRID.pools):
            grown = made.blocks[number] - base.blocks[number]
            assert grown == units * HYBRID.grid // pool.block_tokens


def test_report_shows_every_pool_and_the_total():
    made = plan()
    text = made.report()
    for pool in HYBRID.pools:
        assert pool.name in text
    assert "total" in text
    assert f"every {HYBRID.grid} tokens" in text
    assert "can never hit" in text


# --- refusals say how to mend it ----------------------------------------------------


def test_a_budget_that_is_too_small_says_what_is_needed():
    needed = plan(stored_tokens=0).total_bytes
    assert plan(budget=needed).total_bytes == needed
    with pytest.raises(ValueError, match="Raise the budget") as refused:
        plan(budget=needed - 1)
    assert format_bytes(needed) in str(refused.value)
    assert "max_length" in str(refused.value)


def test_stored_tokens_that_do_not_fit_are_not_cut_down_in_silence():
    budget = plan(stored_tokens=40).total_bytes
    with pytest.raises(ValueError, match="44 stored tokens need"):
        plan(budget=budget, stored_tokens=44)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 * 2**30),
        ("500MB", 500_000_000),
        (" 1.5 kib ", 1536),
        ("64", 64),
        ("64B", 64),
        ("2TiB", 2 * 2**40),
        ("3kB", 3000),
        (12, 12),
    ],
)
def test_budgets_that_can_be_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "8 gigs", "-1GiB", "1e9", "8GiB!", "1,5GB"]
)
def test_budgets_that_cannot_be_read(text):
    with pytest.raises(ValueError, match="8GiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", [0, -5, "0", "0.4B"])
def test_budgets_are_positive(text):
    with pytest.raises(ValueError, match="positive"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"), [(512, "512 B"), (1536, "1.5 KiB"), (3 * 2**40, "3 TiB")]
)
def test_bytes_for_people(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_sequences": 0}, "max_sequences must be a whole number from 1"),
        ({"max_length": 0, "max_chunk": 1}, "max_length must be a whole number from 1"),
        ({"max_chunk": 0}, "max_chunk must be a whole number from 1"),
        ({"max_chunk": 65}, "max_chunk 65 exceeds max_length 64"),
        ({"blocks": (40,)}, "one number per pool"),
        ({"blocks": (20, 40)}, r"swa_window\.0 needs at least 21 blocks"),
        ({"blocks": (21, 17)}, r"full_kv\.1 needs at least 18 blocks"),
        ({"blocks": (2**29, 40)}, "int32 range"),
    ],
)
def test_plans_that_cannot_be(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(plan(), **change)


def test_positions_fit_into_int32():
    """One block fewer is the last that fits."""
    made = plan()
    largest = (2**31 - 1) // 4
    fits = dataclasses.replace(made, blocks=(largest, made.blocks[1]))
    assert fits.blocks[0] * 4 <= 2**31 - 1
    with pytest.raises(ValueError, match="plan fewer blocks"):
        dataclasses.replace(made, blocks=(largest + 1, made.blocks[1]))
    with pytest.raises(ValueError, match="whole number"):
        plan(max_length=2**31, budget="64GiB")
