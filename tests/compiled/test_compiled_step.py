"""Whole decode steps with pools of gigabytes leave the pools where they are."""

import pytest

from hybridcache_jax.testing.compiled_matrix import (
    WRITTEN,
    combinations,
    kept,
    markdown,
)
from hybridcache_jax.testing.compiled_step import STEPS, compile_step
from pallas_kernels.compiled.accelerators import GPUS, TPUS
from pallas_kernels.compiled.environment import ENVIRONMENT
from pallas_kernels.compiled.matrix import process
from pallas_kernels.compiled.targets import missing


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target", "kernels"),
    [
        ("heads", "v5e", "auto"),
        ("latents", "v5p", "auto"),
        ("compressed", "v6e", "auto"),
        ("heads", "7x", "auto"),
        ("latents", "a100", "auto"),
        ("latents", "h200", "auto"),
        ("heads", "b200", "mosaic_gpu"),
    ],
)
def test_a_step_keeps_its_pools_in_place(name, target, kernels, monkeypatch):
    if missing(target) is not None:
        pytest.skip(str(missing(target)))
    # The compilers read it before JAX is imported: in a process of its own.
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    with process() as executor:
        made = executor.submit(compile_step, name, target, kernels=kernels).result()
    print(name, target, made)
    assert made.moves == ()
    assert made.pools > 5 * 2**30
    assert made.aliased >= made.pools
    assert made.temporary < 64 * 2**20
    (known,) = (
        each
        for each in kept()
        if (each.step, each.target, each.wanted) == (name, target, kernels)
    )
    assert (made.pools, made.kernels) == (known.pools, known.kernels)
    # Other versions of a compiler may need a little more.
    assert made.temporary < known.temporary + 8 * 2**20


def test_every_step_is_kept_for_every_target_and_stays_in_place():
    assert WRITTEN.read_text() == markdown(kept())
    found = [(each.step, each.target, each.wanted) for each in kept()]
    assert found == combinations(STEPS)
    assert {target for _, target, _ in found} == {*TPUS, *GPUS}
    for each in kept():
        assert each.good, each
        assert each.pools > 5 * 2**30
        by = {text.split(": ")[1] for text in each.kernels}
        if each.target in TPUS:
            assert by == {"mosaic_tpu"}
        else:
            assert by == {"xla" if each.wanted == "auto" else each.wanted}
