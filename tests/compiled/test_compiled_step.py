"""Whole decode steps with pools of gigabytes leave the pools where they are.

``pytest -s tests/compiled/test_step.py`` prints what each takes.  Beside 6 GiB of pools
that was 0 to 19 MB on v5e and v6e, and up to 60 MB on an H200, where plain XLA gathers.
"""

import pytest

from hybridcache_jax.testing.compiled_step import compile_step
from pallas_kernels.compiled.environment import ENVIRONMENT
from pallas_kernels.compiled.matrix import process
from pallas_kernels.compiled.targets import missing

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "target", "kernels"),
    [
        ("heads", "v5e", "auto"),
        ("compressed", "v6e", "auto"),
        ("latents", "h200", "xla"),
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
