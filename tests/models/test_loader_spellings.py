"""Every golden model loads alike under either spelling, whole and in shards."""

import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models.load import load_model
from hybridcache_jax.models.registry import find_model

GOLDENS = Path(__file__).parents[1] / "goldens"
MODELS = sorted(path.name for path in GOLDENS.iterdir() if path.is_dir())
RENAMED = [
    name for name in MODELS if (GOLDENS / name / "hub_names.safetensors").exists()
]
PUBLISHED = [
    name
    for name in MODELS
    if name in RENAMED or (GOLDENS / name / "hub_config.json").exists()
]
MULTIMODAL = {
    "gemma3_text": ("gemma3", "model.language_model.", "model.vision_tower."),
    "gemma4_text": ("gemma4", "model.language_model.", "model.embed_audio."),
    "llama4_text": ("llama4", "language_model.model.", "vision_model."),
}
EXTRA_LAYER = {
    "deepseek_v32": "model.layers.4.shared_head.norm.weight",
    "deepseek_v4_tiny": "mtp.0.attn.wkv.weight",
    "gemma4_text": "model.layers.5.self_attn.k_proj.weight",
    "glm_moe_dsa": "model.layers.5.eh_proj.weight",
    "mimo_v2_flash": "model.mtp.layers.0.eh_proj.weight",
    "qwen3_next": "mtp.fc.weight",
}


def read(name, file):
    return load_file(GOLDENS / name / file)


def stored_file(name):
    """The weights in the publisher's spelling."""
    return "hub_names.safetensors" if name in RENAMED else "model.safetensors"


def content(name):
    return json.loads((GOLDENS / name / "config.json").read_text())


def save(folder, config, weights):
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")


def save_shards(folder, weights):
    """Three shards that cut through layers and experts, and their index."""
    index = {}
    for number in range(3):
        shard = f"model-0000{number + 1}-of-00003.safetensors"
        names = sorted(weights)[number::3]
        save_file({name: weights[name] for name in names}, folder / shard)
        index |= dict.fromkeys(names, shard)
    text = json.dumps({"weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)


def parameters(loaded):
    return {
        ".".join(map(str, path)): np.asarray(leaf[...])
        for path, leaf in nnx.to_flat_state(nnx.split(loaded.model)[1])
    }


def assert_equal(name, loaded, *, body="model."):
    """Parameters are, bit by bit, those that transformers wrote."""
    want = read(name, "model.safetensors")
    got = parameters(loaded)
    assert got.keys() == {key.removeprefix(body) for key in want}
    for key, array in want.items():
        np.testing.assert_array_equal(got[key.removeprefix(body)], array)


@pytest.mark.parametrize("name", MODELS)
def test_the_names_of_transformers(name):
    loaded = load_model(GOLDENS / name)
    assert_equal(name, loaded)
    assert loaded.config_digest == find_model(content(name)).config.digest
    assert len(loaded.layers) == loaded.config.num_layers


@pytest.mark.parametrize(
    "shards",
    [
        pytest.param(False, marks=pytest.mark.slow, id="one file"),
        pytest.param(True, id="three shards"),
    ],
)
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_spelling_of_the_publisher(tmp_path, name, shards):
    published = GOLDENS / name / "hub_config.json"
    if not published.exists():
        published = GOLDENS / name / "config.json"
    shutil.copy(published, tmp_path / "config.json")
    weights = read(name, stored_file(name))
    if shards:
        save_shards(tmp_path, weights)
    else:
        save_file(weights, tmp_path / "model.safetensors")
    loaded = load_model(tmp_path)
    assert_equal(name, loaded)
    assert loaded.config_digest == find_model(content(name)).config.digest


def test_a_publisher_may_mix_both_spellings(tmp_path):
    """Kimi's own files name the dense layer as transformers does, the others not."""
    weights = {
        key.replace("layers.0.block_sparse_moe.", "layers.0.mlp."): array
        for key, array in read("kimi_linear", "hub_names.safetensors").items()
    }
    save(tmp_path, content("kimi_linear"), weights)
    assert_equal("kimi_linear", load_model(tmp_path))


@pytest.mark.parametrize("name", MULTIMODAL)
def test_the_text_part_of_a_multimodal_checkpoint(tmp_path, name):
    model_type, prefix, other = MULTIMODAL[name]
    weights = {
        (
            prefix + key.removeprefix("model.") if key.startswith("model.") else key
        ): array
        for key, array in read(name, "model.safetensors").items()
    }
    if "lm_head.weight" in weights:
        weights["language_model.lm_head.weight"] = weights.pop("lm_head.weight")
    weights[other + "a"] = np.zeros(3, np.int8)
    config = {"model_type": model_type, "text_config": content(name)}
    save(tmp_path, config, weights)
    assert_equal(name, load_model(tmp_path))


@pytest.mark.parametrize("name", EXTRA_LAYER)
def test_what_a_checkpoint_brings_beside_the_model(tmp_path, name):
    more = {EXTRA_LAYER[name]: np.zeros((2, 2), np.float32)}
    save(tmp_path, content(name), read(name, stored_file(name)) | more)
    assert_equal(name, load_model(tmp_path))
    assert find_model(content(name)).ignored


def test_what_one_model_brings_is_unexpected_in_another(tmp_path):
    more = {"mtp.0.attn.wkv.weight": np.zeros((2, 2), np.float32)}
    save(tmp_path, content("olmo3"), read("olmo3", "model.safetensors") | more)
    with pytest.raises(CheckpointError, match=r"Unexpected: mtp\.0\.attn\.wkv"):
        load_model(tmp_path)


def test_integer_parameters_stay_integers(tmp_path):
    name = "deepseek_v4_tiny"
    loaded = load_model(GOLDENS / name, param_dtype=jnp.bfloat16)
    dtypes = {array.dtype.name for array in parameters(loaded).values()}
    assert {"int32", "bfloat16"} <= dtypes
    assert loaded.param_dtype == "bfloat16"
    weights = read(name, "hub_names.safetensors")
    weights["layers.0.ffn.gate.tid2eid"][0, 0] = 2**40
    save(tmp_path, content(name), weights)
    with pytest.raises(CheckpointError, match="do not fit int32"):
        load_model(tmp_path)


def test_integers_are_not_taken_for_floats(tmp_path):
    name = "olmo3"
    weights = read(name, "model.safetensors")
    weights["model.norm.weight"] = np.zeros(32, np.int64)
    save(tmp_path, content(name), weights)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has dtype I64"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", RENAMED)
def test_everything_wrong_is_listed_at_once(tmp_path, name):
    """Missing, unexpected and mis-shaped, before any parameter is placed."""
    weights = read(name, "hub_names.safetensors")
    expert = next(key for key in sorted(weights) if ".experts.1." in key)
    other = next(key for key in sorted(weights) if ".experts.2." in key)
    table = next(key for key in weights if "embed" in key)
    del weights[expert]
    weights["model.layers.0.mystery.weight"] = np.zeros((2, 3), np.float32)
    weights[table] = weights[table][:, 1:].copy()
    weights[other] = weights[other][1:].copy()
    save(tmp_path, content(name), weights)
    placed = []
    with pytest.raises(CheckpointError) as caught:
        load_model(tmp_path, on_progress=lambda *call: placed.append(call))
    message = str(caught.value)
    assert f"Missing: {expert.removeprefix('model.')}" in message
    assert "Unexpected: layers.0.mystery.weight [2, 3]." in message
    assert f"{table.removeprefix('model.')} is [64, 31], expected [64, 32]" in message
    assert not placed


@pytest.mark.parametrize("name", RENAMED)
def test_one_expert_of_another_shape(tmp_path, name):
    weights = read(name, "hub_names.safetensors")
    expert = next(key for key in sorted(weights) if ".experts.1." in key)
    weights[expert] = weights[expert][1:].copy()
    save(tmp_path, content(name), weights)
    with pytest.raises(
        CheckpointError, match=r"Wrong shape: layers\.\d.*cannot be made"
    ):
        load_model(tmp_path)


@pytest.mark.parametrize("name", RENAMED)
def test_config_and_weights_of_different_sizes(tmp_path, name):
    config = content(name) | {"vocab_size": 60}
    save(tmp_path, config, read(name, "hub_names.safetensors"))
    with pytest.raises(CheckpointError, match=r"is \[64, 32\], expected \[60, 32\]"):
        load_model(tmp_path)


def test_one_shard_cut_short(tmp_path):
    shutil.copy(GOLDENS / "qwen3_next" / "config.json", tmp_path)
    save_shards(tmp_path, read("qwen3_next", "hub_names.safetensors"))
    shard = tmp_path / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=r"00002-of-00003.*truncated"):
        load_model(tmp_path)
