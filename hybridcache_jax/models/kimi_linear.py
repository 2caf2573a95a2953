"""Kimi Linear decoder in Flax NNX, talking to a cache view.

Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture" (2025): three
layers of Kimi Delta Attention, a gated delta rule whose decay differs per channel, then
one of latent attention without position embedding, and a mixture of experts with
sigmoid routing.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.configs.kimi_linear import SPARSE, KimiLinearConfig
from hybridcache_jax.configs.recurrent import LINEAR
from hybridcache_jax.models.decoder import CausalDecoder
from hybridcache_jax.models.deepseek_moe import DeepseekMoE
from hybridcache_jax.models.delta_rule import INITIAL_STEP, delta_attention
from hybridcache_jax.models.latent_attention import LatentAttention
from hybridcache_jax.models.modules import (
    GatedMLP,
    Linear,
    RMSNorm,
    swiglu,
)
from hybridcache_jax.models.moe import expert_recipes
from hybridcache_jax.models.parameters import parameter_shapes
from hybridcache_jax.models.protocol import CacheView
from hybridcache_jax.models.recipes import Recipe, joined, renamed
from hybridcache_jax.models.short_conv import ShortConvolution


class ForgetGate(nnx.Module):
    """How much of the state each channel keeps, through a bottleneck.

    Attributes:
      A_log: ``[1, 1, heads, 1]`` float32, logarithm of each head's decay rate.
      dt_bias: ``[heads * dim]`` float32, added to the decay before its softplus.
    """

    def __init__(self, config: KimiLinearConfig, *, rngs: nnx.Rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        heads, dim = config.linear_heads, config.linear_dim
        self.dim = dim
        self.f_a_proj = Linear(config.hidden_size, dim, **options)
        self.f_b_proj = Linear(dim, heads * dim, **options)
        self.A_log = nnx.Param(jnp.zeros((1, 1, heads, 1), jnp.float32))
        self.dt_bias = nnx.Param(jnp.full((heads * dim,), INITIAL_STEP, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps ``x [B, T, hidden]`` to ``[B, T, heads, dim]``, the gate's logarithm."""
        step = self.f_b_proj(self.f_a_proj(x)) + self.dt_bias[...]
        step = step.reshape(*x.shape[:2], -1, self.dim)
        return -jnp.exp(self.A_log[...]) * jax.nn.softplus(step)


class KimiDeltaAttention(nnx.Module):
    """Linear attention by the delta rule, with one decay per channel.

    Attributes:
      conv1d: over queries, keys and values of all heads, one after another.
      b_proj: to the strength of each head's correction.
    """

    def __init__(self, config: KimiLinearConfig, *, rngs: nnx.Rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden, heads, dim = config.hidden_size, config.linear_heads, config.linear_dim
        self.config = config
        self.q_proj = Linear(hidden, heads * dim, **options)
        self.k_proj = Linear(hidden, heads * dim, **options)
        self.v_proj = Linear(hidden, heads * dim, **options)
        self.conv1d = ShortConvolution(
            config.linear_channels, config.conv_kernel, **options
        )
        self.forget_gate = ForgetGate(config, **options)
        self.b_proj = Linear(hidden, heads, **options)
        self.g_a_proj = Linear(hidden, dim, **options)
        self.g_b_proj = Linear(dim, heads * dim, **options)
        self.o_norm = RMSNorm(dim, config.rms_norm_eps, param_dtype=param_dtype)
        self.o_proj = Linear(heads * dim, hidden, **options)

    def __call__(
        self, x: jax.Array, view: CacheView, layer: int
    ) -> tuple[jax.Array, CacheView]:
        """Reads the layer's state, folds this step's tokens into it, writes it.

        Args:
          x: ``[B, T, hidden]`` float32, normed.
          view: the cache.
          layer: 0-based index of this layer in the model.

        Returns:
          ``[B, T, hidden]`` float32, and the view with the new state.
        """
        config = self.config
        out, view = delta_attention(
            view,
            layer,
            jnp.concatenate([self.q_proj(x), self.k_proj(x), self.v_proj(x)], axis=-1),
            self.conv1d,
            decay=self.forget_gate(x),
            beta=jax.nn.sigmoid(self.b_proj(x)),
            key_heads=config.linear_heads,
            key_dim=config.linear_dim,
            value_dim=config.linear_dim,
        )
        gate = self.g_b_proj(self.g_a_proj(x)).reshape(out.shape)
        out = self.o_norm(out) * jax.nn.sigmoid(gate)
        return self.o_proj(out.reshape(*x.shape[:2], -1)), view


class Block(nnx.Module):
    """One decoder layer: a norm before attention, a norm before MLP or experts."""

    def __init__(self, config: KimiLinearConfig, layer: int, *, rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, param_dtype=param_dtype)
        if config.layer_types[layer] == LINEAR:
            self.self_attn = KimiDeltaAttention(config, **options)
        else:
            self.self_attn = LatentAttention(
                config.latent, hidden=hidden, num_heads=config.num_heads, **options
            )
        self.post_attention_layernorm = RMSNorm(hidden, eps, param_dtype=param_dtype)
        if config.mlp_types[layer] == SPARSE:
            self.mlp = DeepseekMoE(config.routing, hidden, **options)
        else:
            self.mlp = GatedMLP(
                hidden, config.intermediate_size, activation=swiglu, **options
            )

    def __call__(
        self, x: jax.Array, view: CacheView, layer: int
    ) -> tuple[jax.Array, CacheView]:
        """Runs the layer on ``x [B, T, hidden]``; arguments as of the attention."""
        mixed, view = self.self_attn(self.input_layernorm(x), view, layer)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), view


class KimiLinear(CausalDecoder):
    """Kimi Linear decoder.

    Args:
      config: the model.
      rngs: source of the random initial parameters.
      param_dtype: dtype in which parameters are kept and multiplied, but for those of
        the router, decay rates and their bias, which stay float32.
    """

    def __init__(
        self, config: KimiLinearConfig, *, rngs: nnx.Rngs, param_dtype=jnp.float32
    ):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        super().__init__(
            config,
            lambda layer: Block(config, layer, **options),
            **options,
        )
        self.config = config

    def __call__(
        self, tokens: jax.Array, view: CacheView
    ) -> tuple[jax.Array, CacheView]:
        """Runs one step: any number of tokens per sequence.

        Args:
          tokens: ``[B, T]`` int32 ids at ``view.positions``.
          view: the cache.

        Returns:
          Hidden states after the final norm, ``[B, T, hidden]`` float32, and the
          view with the entries and states of these tokens in every layer.
        """
        x = self.embed_tokens(tokens)
        for layer, block in enumerate(self.layers):
            x, view = block(x, view, layer)
        return self.norm(x), view


def published_names(config: KimiLinearConfig) -> dict[str, Recipe]:
    """How parameters are made of published tensors.

    Those have the forget gate within the attention, a convolution each for queries,
    keys and values, ``block_sparse_moe`` in place of ``mlp``, and one tensor per
    expert.  Dense layers are there in exports of transformers; in the publisher's own
    files they have the names of the parameters.
    """
    recipes = {
        name: renamed(
            name.replace(".forget_gate.", ".").replace(".mlp.", ".block_sparse_moe.")
        )
        for name in parameter_shapes(KimiLinear, config)
    }
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}"
        if config.layer_types[layer] == LINEAR:
            attention = f"{prefix}.self_attn"
            recipes[f"{attention}.conv1d.weight"] = joined(
                [f"{attention}.{part}_conv1d.weight" for part in "qkv"]
            )
        if config.mlp_types[layer] == SPARSE:
            recipes |= expert_recipes(
                f"{prefix}.mlp.experts",
                f"{prefix}.block_sparse_moe.experts",
                config.routing.num_experts,
                ("w1", "w3", "w2"),
            )
    return recipes
