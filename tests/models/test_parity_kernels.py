"""Models read through the TPU kernels, interpreted, give the reference too."""

from pathlib import Path

import pytest
from safetensors.numpy import load_file

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
