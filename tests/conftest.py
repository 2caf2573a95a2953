"""Strict settings for every test: exact float32 products, no silent promotion."""

import gc
import os
import pathlib

import jax
import pytest
from hypothesis import Phase, settings

# Compile times make hypothesis' deadlines meaningless; a fixed seed keeps CI's verdict
# a function of the code alone.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
# For tests that are meant to fail: the first failure will do.
settings.register_profile(
    "unshrunk", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("ci")


# Most of the time is XLA's.  Whoever sets flags of their own (an empty string will do)
# compiles everything as users do; the slow suite does so for whole models and engines.
QUICK_TO_COMPILE = "--xla_backend_optimization_level=0"
AS_USERS_COMPILE = ("models", "serving")


def pytest_configure(config):
    """Compiled code is shared by the workers of a run and by later runs."""
    if config.option.markexpr == "not slow":
        os.environ.setdefault("XLA_FLAGS", QUICK_TO_COMPILE)
    folder = config.rootpath / ".pytest_cache" / "jax"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


@pytest.fixture(autouse=True, scope="module")
def quick_to_compile(request):
    """Elsewhere the slow suite, too, asserts nothing about what users compile."""
    folder = request.path.relative_to(request.config.rootpath).parts[1]
    slow = request.config.option.markexpr == "slow"
    quick = slow and folder not in AS_USERS_COMPILE and "XLA_FLAGS" not in os.environ
    jax.config.update("jax_disable_most_optimizations", quick)


@pytest.fixture(autouse=True, scope="session")
def exact_products():
    """Full float32 matrix products: the goldens were computed with them."""
    with jax.default_matmul_precision("highest"):
        yield


# XLA maps memory for every compiled program; Linux allows a process 65,530 maps by
# default, and XLA dies of one more.
MAPS = pathlib.Path("/proc/self/maps")
MANY_MAPS = 25_000


@pytest.fixture(autouse=True, scope="module")
def room_for_programs():
    """Lets go of compiled programs between files where there are very many."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY_MAPS:
        jax.clear_caches()
        gc.collect()
