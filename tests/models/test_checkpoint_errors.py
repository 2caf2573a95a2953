"""Safetensors checkpoints: every layout that loads, every damage that must not."""

import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models.checkpoint import check_tensors
from hybridcache_jax.models.load import load_model
from hybridcache_jax.models.safetensors_folder import SafetensorsFolder

TINY = Path(__file__).parents[1] / "goldens" / "gemma3_text"
NORM = "model.layers.3.self_attn.k_norm.weight"


@pytest.fixture(scope="module")
def weights():
    return load_file(TINY / "model.safetensors")


@pytest.fixture
def folder(tmp_path):
    shutil.copy(TINY / "config.json", tmp_path)
    return tmp_path


def save(folder, weights):
    save_file(weights, folder / "model.safetensors")


def save_shards(folder, weights):
    """Two shards and their index, which is returned."""
    names = sorted(weights)
    shards = {
        "model-00001-of-00002.safetensors": names[:30],
        "model-00002-of-00002.safetensors": names[30:],
    }
    for shard, members in shards.items():
        save_file({name: weights[name] for name in members}, folder / shard)
    index = {name: shard for shard, members in shards.items() for name in members}
    write_index(folder, index)
    return index


def write_index(folder, weight_map):
    content = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(content)


def parameters(folder):
    source = SafetensorsFolder(folder)
    return {name: source.read(name) for name in source.shapes}


def test_a_single_file(folder, weights):
    save(folder, weights)
    loaded = load_model(folder)
    assert loaded.tokenizer is None
    assert loaded.tokenizer_digest is None
    assert len(loaded.layers) == 6
    kernel = loaded.model.layers[3].self_attn.k_norm.weight[...]
    np.testing.assert_array_equal(kernel, weights[NORM])


@pytest.mark.parametrize(
    "prefix", ["", "language_model.model.", "model.language_model."]
)
def test_prefixes_and_vision_parts(folder, weights, prefix):
    renamed = {prefix + k.removeprefix("model."): v for k, v in weights.items()}
    for extra in ("vision_tower.a", "model.multi_modal_projector.b", "lm_head.weight"):
        renamed[extra] = np.zeros(3, np.float32)
    save(folder, renamed)
    loaded = parameters(folder)
    assert loaded.keys() == {name.removeprefix("model.") for name in weights}


def test_shards(folder, weights):
    save_shards(folder, weights)
    loaded = parameters(folder)
    assert len(loaded) == len(weights)
    for name, array in loaded.items():
        np.testing.assert_array_equal(array, weights[f"model.{name}"])
    assert len(load_model(folder).weights_digest) == 64


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_half_precision_files(folder, weights, dtype):
    save(folder, {name: array.astype(dtype) for name, array in weights.items()})
    for param_dtype in (jnp.float32, jnp.bfloat16):
        model = load_model(folder, param_dtype=param_dtype).model
        weight = model.layers[3].self_attn.k_norm.weight[...]
        assert weight.dtype == param_dtype
        wanted = weights[NORM].astype(dtype).astype(param_dtype)
        np.testing.assert_array_equal(weight, wanted)


def test_digest_and_progress(folder, weights):
    import hashlib

    save(folder, weights)
    calls = []
    loaded = load_model(folder, on_progress=lambda *call: calls.append(call))
    content = (folder / "model.safetensors").read_bytes()
    assert loaded.weights_digest == hashlib.sha256(content).hexdigest()
    assert ("digest", len(content), len(content)) in calls
    assert ("weights", len(weights), len(weights)) in calls
    known = load_model(folder, weights_digest="known")
    assert known.weights_digest == "known"


def test_nothing_there(folder, tmp_path):
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors"):
        load_model(folder)
    with pytest.raises(CheckpointError, match="does not exist"):
        load_model(tmp_path / "nowhere")
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_model(folder)


@pytest.mark.parametrize("content", ["{", "[]", "\x80"])
def test_damaged_config(folder, weights, content):
    save(folder, weights)
    (folder / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_model(folder)


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_truncated_file(folder, weights, kept):
    save(folder, weights)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match="damaged"):
        load_model(folder)


def test_not_a_safetensors_file(folder):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (folder / "model.safetensors").write_text(pointer)
    with pytest.raises(CheckpointError, match="damaged or not a safetensors file"):
        load_model(folder)


def test_missing_unexpected_and_misshaped_tensors(folder, weights):
    changed = dict(weights)
    del changed[NORM]
    changed["model.layers.9.mystery.weight"] = np.zeros((2, 3), np.float32)
    changed["model.norm.weight"] = np.zeros(31, np.float32)
    save(folder, changed)
    with pytest.raises(CheckpointError) as caught:
        load_model(folder)
    message = str(caught.value)
    assert "Missing: layers.3.self_attn.k_norm.weight [16]." in message
    assert "Unexpected: layers.9.mystery.weight [2, 3]." in message
    assert "Wrong shape: norm.weight is [31], expected [32]." in message


def test_long_lists_are_cut():
    expected = {f"t{i}": (1,) for i in range(20)}
    with pytest.raises(CheckpointError, match="and 12 more"):
        check_tensors(expected, {}, "a test")


def test_quantised_tensor(folder, weights):
    save(folder, weights | {NORM: np.zeros(16, np.int8)})
    with pytest.raises(CheckpointError, match="dtype I8"):
        load_model(folder)


def test_blocks_of_a_quantised_checkpoint(folder, weights):
    blocks = {
        NORM.replace(".weight", f".{kind}"): np.zeros((2, 16), np.uint8)
        for kind in ("blocks", "scales")
    }
    save(folder, weights | blocks)
    with pytest.raises(
        CheckpointError, match=r"\(2\): .*blocks has dtype U8, .*scales"
    ):
        load_model(folder)


@pytest.mark.parametrize("nested", [False, True])
def test_quantised_config(folder, weights, nested):
    save(folder, weights)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "bits": 4}
    if nested:
        config = {"model_type": "gemma3", "text_config": config}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="quantised by 'mxfp4'"):
        load_model(folder)


@pytest.mark.parametrize("model_type", ["mamba", "gemma2", None, ["gpt_oss"], ...])
def test_a_model_that_cannot_be_run(folder, weights, model_type):
    save(folder, weights)
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = model_type
    if model_type is ...:
        del config["model_type"]
    (folder / "config.json").write_text(json.dumps(config))
    shown = repr(None if model_type is ... else model_type)
    with pytest.raises(CheckpointError) as caught:
        load_model(folder)
    assert f"of type {shown}; supported are deepseek_v32, deepseek_v4, gemma3" in str(
        caught.value
    )


def test_weights_of_another_model(folder):
    other = TINY.parent / "gpt_oss"
    shutil.copy(other / "model.safetensors", folder)
    with pytest.raises(CheckpointError, match=r"(?s)Missing: .*Unexpected: .*experts"):
        load_model(folder)


def test_one_parameter_under_two_names(folder, weights):
    double = {"language_model." + NORM: weights[NORM]}
    save(folder, weights | double)
    with pytest.raises(CheckpointError, match="under another name"):
        load_model(folder)


def test_missing_shard(folder, weights):
    save_shards(folder, weights)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"00002-of-00002.* is missing"):
        load_model(folder)


def test_index_and_shards_disagree(folder, weights):
    index = save_shards(folder, weights)
    shortened = dict(index)
    del shortened[NORM]
    write_index(folder, shortened)
    with pytest.raises(CheckpointError, match="does not list"):
        load_model(folder)
    write_index(folder, index | {"model.more": index[NORM]})
    with pytest.raises(CheckpointError, match=r"lacks tensors.*model\.more"):
        load_model(folder)


@pytest.mark.parametrize("shard", ["../model.safetensors", "/model.safetensors", 3])
def test_index_must_stay_in_its_folder(folder, shard):
    write_index(folder, {"model.norm.weight": shard})
    with pytest.raises(CheckpointError, match="plain file name"):
        load_model(folder)


def test_empty_index(folder):
    write_index(folder, {})
    with pytest.raises(CheckpointError, match="weight_map"):
        load_model(folder)
