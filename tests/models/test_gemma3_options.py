"""Settings of Gemma 3 that the reference checkpoints leave at their defaults."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_view import DenseView
from flax import nnx

from hybridcache_jax.configs.gemma3 import Gemma3Config
from hybridcache_jax.configs.windowed import FULL, SLIDING
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models.gemma3 import Gemma3
from hybridcache_jax.models.parameters import from_params, parameter_shapes

CONFIG = Gemma3Config(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    sliding_window=3,
    layer_types=(SLIDING, FULL),
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    max_position_embeddings=64,
    bos_token_id=2,
    eos_token_ids=(1,),
)
TOKENS = jnp.array([[3, 1, 4, 1, 5, 9]], jnp.int32)


def random_model(config=CONFIG, param_dtype=jnp.float32):
    """A model whose parameters are large enough to matter."""
    rng = np.random.default_rng(0)
    params = {
        name: rng.normal(0, 0.5, shape).astype(np.float32)
        for name, shape in parameter_shapes(Gemma3, config).items()
    }
    return from_params(Gemma3, config, params, param_dtype=param_dtype)


def run(model, view_type=DenseView):
    layers = model.config.layers("float32")
    view = view_type.empty(layers, batch=1).step(TOKENS.shape[1])
    hidden, view = model(TOKENS, view)
    return hidden, model.logits(hidden), view


def test_final_soft_cap():
    _, plain, _ = run(random_model())
    model = random_model(dataclasses.replace(CONFIG, final_logit_softcapping=2.0))
    _, capped, _ = run(model)
    np.testing.assert_allclose(capped, 2 * np.tanh(plain / 2), atol=1e-5)


def test_attention_soft_cap_and_scale_reach_the_view():
    seen = []

    class Recording(DenseView):
        def attend(self, layer, q, **options):
            seen.append((layer, options))
            return super().attend(layer, q, **options)

    run(
        random_model(dataclasses.replace(CONFIG, attn_logit_softcapping=7.0)),
        Recording,
    )
    assert seen == [(i, {"scale": 1 / 16, "soft_cap": 7.0}) for i in range(2)]


def test_attention_bias():
    config = dataclasses.replace(CONFIG, attention_bias=True)
    model = random_model(config)
    projections = ("q_proj", "k_proj", "v_proj", "o_proj")
    names = parameter_shapes(Gemma3, config)
    biases = {name for name in names if name.endswith("bias")}
    assert biases == {
        f"layers.{i}.self_attn.{name}.bias" for i in range(2) for name in projections
    }
    _, with_bias, view = run(model)
    attention = model.layers[0].self_attn
    bias = attention.v_proj.bias[...].reshape(2, 8)
    attention.v_proj.bias[...] = jnp.zeros(16)
    _, without, plain_view = run(model)
    assert np.abs(with_bias - without).max() > 0.01
    difference = view.values[0] - plain_view.values[0]
    np.testing.assert_allclose(
        difference, jnp.broadcast_to(bias, difference.shape), atol=1e-5
    )


def test_separate_head():
    config = dataclasses.replace(CONFIG, tie_word_embeddings=False)
    model = random_model(config)
    hidden, logits, _ = run(model)
    with jax.default_matmul_precision("highest"):
        wanted = hidden @ model.lm_head.weight[...].T
    np.testing.assert_allclose(logits, wanted, atol=1e-5)


def test_logits_of_some_positions_only():
    model = random_model()
    hidden, logits, _ = run(model)
    np.testing.assert_allclose(model.logits(hidden[0, -1]), logits[0, -1], atol=1e-5)


def test_bfloat16_parameters_keep_float32_activations():
    model = random_model(param_dtype=jnp.bfloat16)
    leaves = jax.tree.leaves(nnx.split(model)[1])
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("bfloat16")}
    hidden, logits, view = run(model)
    assert {hidden.dtype, logits.dtype, view.keys[0].dtype} == {jnp.dtype("float32")}
    _, exact, _ = run(random_model())
    assert np.abs(logits - exact).max() < 0.1 * np.abs(exact).max()


def test_random_initialisation():
    model = Gemma3(CONFIG, rngs=nnx.Rngs(0))
    _, logits, _ = run(model)
    assert logits.shape == (1, 6, 32)
    assert np.isfinite(logits).all()


def test_parameters_must_fit():
    with pytest.raises(CheckpointError, match="the parameters given"):
        from_params(Gemma3, CONFIG, {})
