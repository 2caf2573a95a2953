"""Strict settings for every test: exact float32 products, no silent promotion."""

import jax
import pytest
from hypothesis import settings

# Compile times make hypothesis' deadlines meaningless; a fixed seed keeps CI's verdict
# a function of the code alone.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci")


@pytest.fixture(autouse=True, scope="session")
def exact_products():
    """Full float32 matrix products: the goldens were computed with them."""
    with jax.default_matmul_precision("highest"):
        yield
