"""Models read through the TPU kernels, interpreted, give the reference too."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import hybridcache_jax as hc
from hybridcache_jax.models.load import load_model
from hybridcache_jax.reads import reads
from hybridcache_jax.testing.audit import RowState, row_state
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


NARROW = ("deepseek_v32", "deepseek_v4_tiny")

# Of two runs that differ in the order of their sums only.  Now and then such a sum lies
# where an entry is rounded the other way; then one element differs by one step of its
# format, and the logits of those who read it by this share of the largest.
ROUNDED_OTHERWISE, ITS_WEIGHT = 0.1, 2.0**-10


def run_once(run: ParityRun) -> tuple[np.ndarray, list[RowState]]:
    """Logits ``[B, T, V]`` of a step over all tokens, and what each row holds then."""
    cache, leases = run.cold(hc.init(run.plan), hc.PrefixCache(run.plan))
    length = run.reference.tokens.shape[1]
    cache, logits = run.step(cache, leases, [(0, length)] * len(leases))
    return logits, [row_state(cache, lease.row) for lease in leases]


@pytest.mark.slow
@pytest.mark.parametrize("name", NARROW)
def test_the_kernels_read_the_published_format_as_xla_does(name):
    """8 bits with scales, and bfloat16 for what is rotated."""
    loaded = load_model(GOLDENS / name)
    layers = loaded.config.layers("fp8")
    expected = load_file(GOLDENS / name / "expected.safetensors")
    reference = Reference(expected["tokens"], expected["logits"])
    run = ParityRun(loaded.model, layers, reference, kernels="interpret")
    assert any(pool.entry.scale_planes for pool in run.spec.pools)
    for number in range(len(run.spec.pools)):
        for read in reads(run.spec, number):
            assert run.plan.kernel(number, read).interpret
    got, held = run_once(run)
    want, wanted = run_once(ParityRun(loaded.model, layers, reference, kernels="xla"))
    gap = np.abs(got - want).max(axis=-1)
    assert np.mean(gap > default_tolerance(layers)) <= ROUNDED_OTHERWISE, gap
    assert gap.max() <= ITS_WEIGHT * np.abs(want).max(), gap
    for mine, theirs in zip(held, wanted, strict=True):
        for pool in run.spec.pools:
            for plane in pool.entry.planes:
                a, b = (state[pool.name][plane.name] for state in (mine, theirs))
                if plane.dtype != "float32":
                    assert np.mean(a != b) <= ROUNDED_OTHERWISE**2, (pool, plane)
