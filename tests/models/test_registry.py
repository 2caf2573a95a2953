"""The tables of models: complete, lazy, and clear about what is not in them."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hybridcache_jax.configs.reading import DecoderConfig
from hybridcache_jax.configs.registry import CONFIG_CLASSES, load_config, read_config
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models.registry import MODEL_CLASSES

GOLDENS = Path(__file__).parents[1] / "goldens"


@pytest.mark.parametrize("model_type", CONFIG_CLASSES)
def test_every_config_class_is_there(model_type):
    module, name = CONFIG_CLASSES[model_type]
    module = importlib.import_module(f"hybridcache_jax.configs.{module}")
    assert issubclass(getattr(module, name), DecoderConfig)


@pytest.mark.parametrize("model_type", MODEL_CLASSES)
def test_every_model_class_is_there(model_type):
    module, name = MODEL_CLASSES[model_type]
    module = importlib.import_module(f"hybridcache_jax.models.{module}")
    assert callable(getattr(module, name).logits)
    assert model_type in CONFIG_CLASSES


@pytest.mark.parametrize(
    "name", sorted(p.name for p in GOLDENS.iterdir() if p.is_dir())
)
def test_one_config_from_folder_file_and_content(name):
    file = GOLDENS / name / "config.json"
    config = read_config(json.loads(file.read_text()))
    assert load_config(file) == load_config(str(file.parent)) == config
    assert len(config.layers()) == config.num_layers


def test_an_unknown_model_is_named_with_those_that_are_known():
    with pytest.raises(CheckpointError) as caught:
        read_config({"model_type": "rwkv"})
    assert "'rwkv'" in str(caught.value)
    assert all(name in str(caught.value) for name in CONFIG_CLASSES)


def test_a_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_config(tmp_path)
    with pytest.raises(CheckpointError, match="nowhere"):
        load_config(tmp_path / "nowhere")


def test_reading_a_config_imports_neither_jax_nor_flax():
    code = (
        "import sys\n"
        "import hybridcache_jax.models.registry\n"
        "from hybridcache_jax.configs.registry import load_config\n"
        f"load_config({str(GOLDENS / 'gpt_oss')!r})\n"
        "assert not {'jax', 'flax', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
