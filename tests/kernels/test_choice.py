"""Which implementation reads a pool: by backend, by contract, or as asked for."""

import pytest
import twin

import hybridcache_jax as hc
from hybridcache_jax.entry import Entry, Plane
from pallas_kernels.choice import choose

WIDE = twin.Pool(Entry.kv(1, 128, "bfloat16"), 64)
REFUSED = {
    "64 elements per entry are no multiple of 128": twin.Pool(Entry.kv(1, 64), 64),
    "8 entries per block are no multiple of 16": twin.Pool(
        Entry.kv(1, 128, "bfloat16"), 8
    ),
    "dtype float16 is not one of": twin.Pool(Entry.kv(1, 128, "float16"), 64),
    "head dim 2048 exceeds 1024": twin.Pool(Entry.kv(1, 2048), 64),
    "plane s: 2 elements per entry": twin.Pool(
        Entry((Plane("k", 1, 128, "int8", scale="s", run=64), Plane("s", 1, 2))), 64
    ),
}


@pytest.mark.parametrize("operation", ["window_decode", "paged_decode"])
def test_tpus_take_their_kernel_and_others_xla(operation):
    found = {
        backend: choose(operation, WIDE, backend=backend)
        for backend in ("cpu", "gpu", "tpu")
    }
    assert found["tpu"].implementation == "mosaic_tpu"
    assert not found["tpu"].interpret
    for backend in ("cpu", "gpu"):
        assert found[backend].implementation == "xla"
        assert f"no kernel for {backend}" in found[backend].reason
    asked = choose(operation, WIDE, backend="tpu", wanted="xla")
    assert (asked.implementation, asked.reason) == ("xla", "XLA was asked for")


@pytest.mark.parametrize("why", REFUSED)
def test_what_a_kernel_does_not_accept_is_xlas_and_said(why):
    found = choose("paged_decode", REFUSED[why], backend="tpu")
    assert found.implementation == "xla"
    assert why in found.reason
    with pytest.raises(ValueError, match=why):
        choose("paged_decode", REFUSED[why], backend="tpu", wanted="mosaic_tpu")


def test_the_interpreter_takes_narrow_pools_on_any_backend():
    narrow = REFUSED["64 elements per entry are no multiple of 128"]
    found = choose("window_decode", narrow, backend="cpu", wanted="interpret")
    assert (found.implementation, found.interpret) == ("mosaic_tpu", True)
    half = REFUSED["dtype float16 is not one of"]
    found = choose("window_decode", half, backend="cpu", wanted="interpret")
    assert found.implementation == "xla"
    assert "float16" in found.reason


def test_operations_without_a_kernel_say_so():
    found = choose("indexed_decode", WIDE, backend="tpu")
    assert (found.implementation, found.reason) == (
        "xla",
        "indexed_decode has no kernel",
    )


def plan(**options):
    spec = hc.CacheSpec.from_layers(
        [
            hc.LayerSpec(local=hc.Window(64, Entry.kv(1, 128, "bfloat16"))),
            hc.LayerSpec(global_=hc.Entries(Entry.kv(1, 64))),
        ],
        block_tokens=32,
    )
    return hc.plan_capacity(
        spec, budget="1GiB", max_sequences=1, max_length=64, stored_tokens=0, **options
    )


def test_a_plan_tells_what_reads_each_pool():
    made = plan(backend="tpu")
    kernels = [made.kernel(number) for number in range(2)]
    assert [each.implementation for each in kernels] == ["mosaic_tpu", "xla"]
    assert "no multiple of 128" in kernels[1].reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernels": "fast"}, "no kernels 'fast'; expected one of auto"),
        ({"kernels": "mosaic_tpu", "backend": "cpu"}, "run on TPUs"),
        ({"kernels": "mosaic_tpu", "backend": "tpu"}, "no multiple of 128"),
    ],
)
def test_plans_refuse_kernels_that_cannot_read_them(options, message):
    with pytest.raises(ValueError, match=message):
        plan(**options)
