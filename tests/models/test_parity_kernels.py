"""Models read through the TPU kernels, interpreted, give the reference too."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import hybridcache_jax as hc
from hybridcache_jax.models.load import load_model
from hybridcache_jax.reads import reads
from hybridcache_jax.testing.parity import default_tolerance
from hybridcache_jax.testing.parity_run import ParityRun, Reference

GOLDENS = Path(__file__).parents[1] / "goldens"
MODELS = ("gemma3_text", "gpt_oss", "deepseek_v32", "deepseek_v4_tiny")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_kernels_give_the_reference(name):
    loaded = load_model(GOLDENS / name)
    expected = load_file(GOLDENS / name / "expected.safetensors")
    reference = Reference(expected["tokens"], expected["logits"])
    run = ParityRun(loaded.model, loaded.layers, reference, kernels="interpret")
    plain = ParityRun(loaded.model, loaded.layers, reference, kernels="xla")
    for number in range(len(run.spec.pools)):
        for read in reads(run.spec, number):
            assert run.plan.kernel(number, read).interpret
            assert plain.plan.kernel(number, read).implementation == "xla"
    # One prefill, then token by token: two shapes, for the interpreter compiles slowly.
    length = reference.tokens.shape[1]
    way = run.way("kernels", [[length - 9, *[1] * 9]], lambda *_: None)
    assert way.difference <= default_tolerance(loaded.layers), way


def in_float32(record: Any) -> Any:
    """Layers without bfloat16, where queries are rounded: a later layer's entries would
    then be quantised to another number."""
    if isinstance(record, tuple):
        return tuple(map(in_float32, record))
    if isinstance(record, hc.Plane) and record.dtype == "bfloat16":
        return dataclasses.replace(record, dtype="float32")
    if not dataclasses.is_dataclass(record) or isinstance(record, type):
        return record
    fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    return dataclasses.replace(record, **{n: in_float32(x) for n, x in fields.items()})


NARROW = ("deepseek_v32", "deepseek_v4_tiny")


@pytest.mark.slow
@pytest.mark.parametrize("name", NARROW)
def test_the_kernels_read_scaled_entries_as_xla_does(name):
    loaded = load_model(GOLDENS / name)
    layers = in_float32(loaded.config.layers("fp8"))
    expected = load_file(GOLDENS / name / "expected.safetensors")
    reference = Reference(expected["tokens"], expected["logits"])
    plain = ParityRun(loaded.model, layers, reference, kernels="xla")
    length = reference.tokens.shape[1]
    cache, leases = plain.cold(hc.init(plain.plan), hc.PrefixCache(plain.plan))
    _, logits = plain.step(cache, leases, [(0, length)] * len(leases))
    reference = Reference(expected["tokens"], np.asarray(logits))
    run = ParityRun(loaded.model, layers, reference, kernels="interpret")
    assert any(pool.entry.scale_planes for pool in run.spec.pools)
    for number in range(len(run.spec.pools)):
        for read in reads(run.spec, number):
            assert run.plan.kernel(number, read).interpret
    way = run.way("kernels", [[length]], lambda *_: None)
    assert way.difference <= default_tolerance(layers), way
