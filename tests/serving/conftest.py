"""Engines over one small model, whose step is compiled once per session."""

import dataclasses

import pytest
from small_model import BUCKETS, IDENTITY, PLAN, SHARED, VOCABULARY, random_model

from hybridcache_jax.serving.engine import Engine
from hybridcache_jax.serving.step import CompiledStep


@pytest.fixture(scope="session")
def compiled():
    return CompiledStep(random_model(0), VOCABULARY)


@pytest.fixture
def make_engine(compiled):
    """Engines that share the compiled step; each has an empty cache."""

    def make(tier=None, store=None, write_back=False, **changes):
        plan = dataclasses.replace(PLAN, **changes)
        return Engine(
            compiled,
            plan,
            IDENTITY,
            vocab_size=VOCABULARY,
            buckets=BUCKETS,
            policy=SHARED,
            tier=tier,
            store=store,
            write_back=write_back,
        )

    return make
