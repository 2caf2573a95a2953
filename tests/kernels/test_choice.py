"""Which implementation reads a pool: by backend, by contract, or as asked for."""

import types

import jax
import jax.numpy as jnp
import pytest
import twin

import hybridcache_jax as hc
from hybridcache_jax.entry import Entry, Plane
from hybridcache_jax.reads import reads
from pallas_kernels.choice import Kernel, choose
from pallas_kernels.contracts import KERNELS
from pallas_kernels.mosaic_gpu.cards import check_cards
from pallas_kernels.paged_decode.api import paged_attention
from pallas_kernels.source import Source

WIDE = twin.Pool(Entry.kv(1, 128, "bfloat16"), 64)
REFUSED = {
    "neither 8, 16 nor a multiple of 16; blocks of 32 tokens": twin.Pool(
        Entry.kv(1, 128, "bfloat16"), 8, 2
    ),
    "dtype float16 is not one of": twin.Pool(Entry.kv(1, 128, "float16"), 64),
    "head dim 2048 exceeds 1024": twin.Pool(Entry.kv(1, 2048), 64),
    "plane s: scales of dtype float8_e5m2 are not one of": twin.Pool(
        Entry(
            (
                Plane("k", 1, 128, "int8", scale="s", run=64),
                Plane("s", 1, 2, "float8_e5m2"),
            )
        ),
        64,
    ),
}
ACCEPTED = (
    twin.Pool(Entry.kv(1, 64), 64),
    twin.Pool(
        Entry(
            (
                Plane("k", 1, 448, "float8_e4m3fn", scale="s", run=64),
                Plane("s", 1, 8, "float8_e8m0fnu"),
                Plane("r", 1, 64, "bfloat16"),
            ),
            key=("k", "r"),
        ),
        64,
        4,
    ),
)


@pytest.mark.parametrize("operation", ["window_decode", "paged_decode"])
def test_tpus_take_their_kernel_and_others_xla(operation):
    found = {
        backend: choose(operation, WIDE, backend=backend)
        for backend in ("cpu", "gpu", "tpu")
    }
    assert found["tpu"].implementation == "mosaic_tpu"
    assert not found["tpu"].interpret
    assert found["cpu"].implementation == "xla"
    assert "no kernel for cpu" in found["cpu"].reason
    assert found["gpu"].implementation == "xla"
    assert "has never run on a GPU; kernels='mosaic_gpu'" in found["gpu"].reason
    asked = choose(operation, WIDE, backend="tpu", wanted="xla")
    assert (asked.implementation, asked.reason) == ("xla", "XLA was asked for")


@pytest.mark.parametrize("pool", ACCEPTED)
def test_planes_of_any_width_are_read_by_the_tpu_kernel(pool):
    found = choose("paged_decode", pool, backend="tpu")
    assert found.implementation == "mosaic_tpu", found.reason


@pytest.mark.parametrize("why", REFUSED)
def test_what_a_kernel_does_not_accept_is_xlas_and_said(why):
    found = choose("paged_decode", REFUSED[why], backend="tpu")
    assert found.implementation == "xla"
    assert why in found.reason
    with pytest.raises(ValueError, match=why):
        choose("paged_decode", REFUSED[why], backend="tpu", wanted="mosaic_tpu")


def test_the_interpreter_takes_short_blocks_on_any_backend():
    (short, *_) = REFUSED.values()
    found = choose("window_decode", short, backend="cpu", wanted="interpret")
    assert (found.implementation, found.interpret) == ("mosaic_tpu", True)
    half = REFUSED["dtype float16 is not one of"]
    found = choose("window_decode", half, backend="cpu", wanted="interpret")
    assert found.implementation == "xla"
    assert "float16" in found.reason


def test_operations_without_a_kernel_say_so():
    found = choose("other_decode", WIDE, backend="tpu")
    assert (found.implementation, found.reason) == (
        "xla",
        "other_decode has no mosaic_tpu kernel",
    )


@pytest.mark.parametrize("operation", KERNELS["mosaic_gpu"])
def test_gpus_run_their_kernel_when_asked(operation):
    def ask(pool, wanted="mosaic_gpu"):
        return choose(operation, pool, backend="gpu", wanted=wanted)

    assert ask(WIDE) == Kernel("mosaic_gpu", "mosaic_gpu was asked for")
    half = REFUSED["dtype float16 is not one of"]
    with pytest.raises(ValueError, match="plane k: dtype float16 is not one of"):
        ask(half)
    assert "plane k: dtype float16" in ask(half, "auto").reason
    with pytest.raises(ValueError, match="run on TPUs, this is a plan for 'gpu'"):
        ask(WIDE, "mosaic_tpu")
    with pytest.raises(ValueError, match="run on GPUs, this is a plan for 'tpu'"):
        choose(operation, WIDE, backend="tpu", wanted="mosaic_gpu")


def test_gpu_kernels_refuse_cards_that_they_are_not_made_for(monkeypatch):
    def with_card(name, capability):
        card = types.SimpleNamespace(device_kind=name, compute_capability=capability)
        monkeypatch.setattr(jax, "local_devices", lambda backend: [card])
        check_cards()

    with_card("NVIDIA H200", "9.0")
    with_card("NVIDIA B200", "10.0")
    with pytest.raises(ValueError, match=r"and 10\.0, NVIDIA A100 has 8\.0"):
        with_card("NVIDIA A100", "8.0")
    query = jax.ShapeDtypeStruct((1, 1, 1, 8, 128), "float32")
    with pytest.raises(ValueError, match=r"NVIDIA A100 has 8\.0"):
        jax.eval_shape(read_with_gpu_kernel, query)


def read_with_gpu_kernel(query):
    planes = {name: jnp.zeros((1, 4, 64, 128), "bfloat16") for name in "kv"}
    row = jnp.zeros(1, "int32")
    return paged_attention(
        query,
        Source(planes, 0, WIDE),
        row[:, None],
        positions=row[:, None],
        since=row,
        end=row,
        scale=1.0,
        soft_cap=None,
        kernel=Kernel("mosaic_gpu", "asked for"),
    )


SELECTING = [
    hc.LayerSpec(
        local=hc.Window(64, Entry.kv(1, 128, "bfloat16")),
        global_=hc.Entries(Entry.kv(1, 128, "bfloat16")),
        index=hc.IndexKeys(Entry((Plane("k", 1, 64, "bfloat16"),))),
        select=hc.TopK(8),
    ),
    hc.LayerSpec(global_=hc.Entries(Entry.kv(1, 64, "bfloat16")), recurrent=None),
]


def test_every_read_of_a_pool_has_a_kernel():
    spec = hc.CacheSpec.from_layers(SELECTING, block_tokens=32)
    found = {
        spec.pools[number].name: reads(spec, number)
        for number in range(len(spec.pools))
    }
    assert found == {
        "swa_window.0": ("window_decode",),
        "full_kv.0": ("indexed_decode",),
        "indexer_state.0": ("indexer_scores",),
        "full_kv.1": ("paged_decode",),
    }


def plan(max_length=64, **options):
    spec = hc.CacheSpec.from_layers(
        [
            hc.LayerSpec(local=hc.Window(64, Entry.kv(1, 128, "bfloat16"))),
            hc.LayerSpec(global_=hc.Entries(Entry.kv(1, 64, "float16"))),
        ],
        block_tokens=32,
    )
    return hc.plan_capacity(
        spec,
        budget="1GiB",
        max_sequences=1,
        max_length=max_length,
        stored_tokens=0,
        **options,
    )


def test_a_plan_tells_what_reads_each_pool():
    made = plan(backend="tpu")
    kernels = [made.kernel(number, reads(made.spec, number)[0]) for number in range(2)]
    assert [each.implementation for each in kernels] == ["mosaic_tpu", "xla"]
    assert "dtype float16" in kernels[1].reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernels": "fast"}, "no kernels 'fast'; expected one of auto"),
        ({"kernels": "mosaic_tpu", "backend": "cpu"}, "run on TPUs"),
        ({"kernels": "mosaic_tpu", "backend": "tpu"}, "dtype float16"),
        ({"kernels": "mosaic_gpu", "backend": "cpu"}, "run on GPUs"),
        (
            {"kernels": "mosaic_gpu", "backend": "gpu", "max_length": 2**30},
            "count positions up to 1073741824",
        ),
    ],
)
def test_plans_refuse_kernels_that_cannot_read_them(options, message):
    with pytest.raises(ValueError, match=message):
        plan(**options)
