"""Gemma 3 against reference outputs, through a dense view."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_view import DenseView
from flax import nnx
from safetensors.numpy import load_file

from hybridcache_jax.configs.gemma3 import Gemma3Config
from hybridcache_jax.configs.json_file import read_json
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models.bundled import GEMMA3_270M_SHA256, bundled_gemma3_270m
from hybridcache_jax.models.gemma3 import Gemma3
from hybridcache_jax.models.load import load_model
from hybridcache_jax.models.parameters import from_params
from hybridcache_jax.models.safetensors_folder import SafetensorsFolder

GOLDENS = Path(__file__).parents[1] / "goldens"
TINY = GOLDENS / "gemma3_text"


@pytest.fixture(scope="module")
def expected():
    return load_file(TINY / "expected.safetensors")


def tiny_model(config_file="config.json", **changes):
    config = Gemma3Config.from_hf(read_json(TINY / config_file))
    config = dataclasses.replace(config, **changes)
    source = SafetensorsFolder(TINY)
    params = {name: source.read(name) for name in source.shapes}
    return from_params(Gemma3, config, params)


def jitted(model):
    graph, state = nnx.split(model)

    @jax.jit
    def step(state, tokens, view):
        model = nnx.merge(graph, state)
        hidden, view = model(tokens, view)
        return model.logits(hidden), view

    def call(tokens, view):
        with jax.default_matmul_precision("highest"):
            return step(state, jnp.asarray(tokens), view.step(tokens.shape[1]))

    return call


def run(model, tokens, chunks=None):
    """Logits of all tokens and the final view; ``chunks`` are step lengths."""
    step = jitted(model)
    view = DenseView.empty(model.config.layers("float32"), tokens.shape[0])
    outputs, start = [], 0
    for count in chunks or [tokens.shape[1]]:
        logits, view = step(tokens[:, start : start + count], view)
        outputs.append(logits)
        start += count
    return np.concatenate(outputs, axis=1), view


@pytest.mark.parametrize("config_file", ["config.json", "hub_config.json"])
def test_one_shot_logits(expected, config_file):
    logits, _ = run(tiny_model(config_file), expected["tokens"])
    np.testing.assert_allclose(logits, expected["logits"], atol=1e-4, rtol=0)


def test_ragged_chunks_give_the_same_logits(expected):
    chunks = [5, 1, 21, 45]
    logits, _ = run(tiny_model(), expected["tokens"], chunks)
    np.testing.assert_allclose(logits, expected["logits"], atol=1e-4, rtol=0)


def test_appended_keys_and_values(expected):
    _, view = run(tiny_model(), expected["tokens"])
    tensors = json.loads((TINY / "meta.json").read_text())["cache_tensors"]
    assert len(tensors) == 36
    for name, description in tensors.items():
        layer = int(name.split(".layer")[1].split(".")[0])
        arrays = view.keys if name.endswith("keys") else view.values
        first, end = description["positions"]
        rows = np.swapaxes(arrays[layer][:, first:end], 1, 2)
        np.testing.assert_allclose(rows, expected[name], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sliding_window": 7},
        {"sliding_window": 9},
        {"query_pre_attn_scalar": 16.0},
        {"layer_types": ("full_attention", *("sliding_attention",) * 5)},
    ],
    ids=str,
)
def test_wrong_settings_change_the_logits(expected, wrong):
    logits, _ = run(tiny_model(**wrong), expected["tokens"])
    assert np.abs(logits - expected["logits"]).max() > 0.1


@pytest.fixture(scope="module")
def gemma_270m():
    try:
        path = bundled_gemma3_270m()
    except CheckpointError as error:
        pytest.skip(f"weights of Gemma 3 270M are not installed: {error}")
    return load_model(path, weights_digest=GEMMA3_270M_SHA256)


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [0, 1])
def test_gemma3_270m(gemma_270m, prompt):
    """All greedy steps at once: prompt and continuation in one forward pass."""
    meta = json.loads((GOLDENS / "gemma3_270m_meta.json").read_text())
    golden = load_file(GOLDENS / "gemma3_270m_expected.safetensors")
    golden = {
        name.removeprefix(f"prompt{prompt}."): array
        for name, array in golden.items()
        if name.startswith(f"prompt{prompt}.")
    }
    ids = gemma_270m.tokenizer.encode(meta["prompts"][prompt]["text"])
    assert ids == golden["tokens"].tolist()

    continuation = golden["continuation"]
    tokens = np.array([[*ids, *continuation[:-1]]], np.int32)
    graph, state = nnx.split(gemma_270m.model)

    @jax.jit
    def forward(state, tokens, view):
        model = nnx.merge(graph, state)
        hidden, _ = model(tokens, view)
        return model.logits(hidden[0, -len(continuation) :])

    view = DenseView.empty(gemma_270m.layers, batch=1).step(tokens.shape[1])
    with jax.default_matmul_precision("highest"):
        logits = np.asarray(forward(state, tokens, view))
    values = np.take_along_axis(logits, golden["top5_ids"], axis=1)
    np.testing.assert_allclose(values, golden["top5_values"], atol=1e-3, rtol=0)
    np.testing.assert_array_equal(logits.argmax(axis=1), continuation)
    logsumexp = jax.nn.logsumexp(logits, axis=1)
    np.testing.assert_allclose(logsumexp, golden["logsumexp"], atol=1e-3, rtol=0)
