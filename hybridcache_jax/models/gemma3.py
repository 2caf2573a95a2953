"""Gemma 3 text decoder in Flax NNX, talking to a cache view.

Architecture: Gemma Team, "Gemma 3 Technical Report" (2025), as published in the
Hugging Face checkpoints.  Grouped-query attention with normed queries and keys,
window and full layers with rotary bases of their own, four zero-centred RMS norms
per block, a tanh-GELU gated MLP, and a head tied to the embedding.

Parameters have the names and ``[out, in]`` shapes of the checkpoints, without their
prefix, so that loading is a copy.  The residual stream, norms and rotary embedding
are float32.  A matrix product takes its input in the dtype of its weight and
accumulates in float32; with float32 parameters it is as exact as the caller's
``jax.default_matmul_precision``.
"""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.layers import Entries, Entry, LayerSpec, Window
from hybridcache_jax.models import rope
from hybridcache_jax.models.checkpoint import check_tensors
from hybridcache_jax.models.config import FULL, SLIDING, Gemma3Config
from hybridcache_jax.models.protocol import CacheView

_INIT_STDDEV = 0.02


def layer_specs(config: Gemma3Config, dtype: str = "float32") -> tuple[LayerSpec, ...]:
    """What each layer keeps in the cache.

    Args:
      config: the model.
      dtype: logical dtype of stored keys and values.

    Returns:
      One record per layer: a window of ``config.sliding_window`` keys, or entries
      over the whole history.
    """
    entry = Entry.kv(config.num_kv_heads, config.head_dim, dtype)
    window = LayerSpec(local=Window(config.sliding_window, entry))
    full = LayerSpec(global_=Entries(entry))
    return tuple(window if kind == SLIDING else full for kind in config.layer_types)


def parameter_shapes(config: Gemma3Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, found without allocating any."""
    return _shapes(nnx.split(_abstract(config, jnp.float32))[1])


class RMSNorm(nnx.Module):
    """Zero-centred RMS norm over the last axis: ``x / rms(x) * (1 + weight)``."""

    def __init__(self, dim: int, eps: float, *, param_dtype):
        self.weight = nnx.Param(jnp.zeros((dim,), param_dtype))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """Norms ``x [..., dim]``; float32 out."""
        x = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        scale = 1.0 + self.weight[...].astype(jnp.float32)
        return x * jax.lax.rsqrt(mean_square + self.eps) * scale


class Linear(nnx.Module):
    """``x @ weight.T + bias`` with float32 accumulation.

    Attributes:
      weight: ``[out_dim, in_dim]``.
      bias: ``[out_dim]`` or None.
    """

    def __init__(
        self, in_dim: int, out_dim: int, *, rngs, param_dtype, use_bias: bool = False
    ):
        init = nnx.initializers.normal(_INIT_STDDEV)
        self.weight = nnx.Param(init(rngs.params(), (out_dim, in_dim), param_dtype))
        self.bias = nnx.Param(jnp.zeros((out_dim,), param_dtype)) if use_bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps ``x [..., in_dim]`` to ``[..., out_dim]`` float32."""
        out = _project(x, self.weight[...])
        if self.bias is not None:
            out = out + self.bias[...].astype(jnp.float32)
        return out


class Embedding(nnx.Module):
    """Table of token vectors; also the output head when tied.

    Attributes:
      weight: ``[vocab_size, hidden_size]``.
    """

    def __init__(self, vocab_size: int, hidden_size: int, *, rngs, param_dtype):
        init = nnx.initializers.normal(_INIT_STDDEV)
        self.weight = nnx.Param(
            init(rngs.params(), (vocab_size, hidden_size), param_dtype)
        )

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Vectors of ``tokens [B, T]``, scaled by sqrt(hidden_size); float32."""
        weight = self.weight[...]
        rows = jnp.take(weight, tokens, axis=0).astype(jnp.float32)
        return rows * jnp.float32(math.sqrt(weight.shape[1]))


class Attention(nnx.Module):
    """Grouped-query attention whose keys and values live in the cache."""

    def __init__(self, config: Gemma3Config, *, rngs, param_dtype):
        self.config = config
        hidden, dim = config.hidden_size, config.head_dim
        options = {
            "rngs": rngs,
            "param_dtype": param_dtype,
            "use_bias": config.attention_bias,
        }
        self.q_proj = Linear(hidden, config.num_heads * dim, **options)
        self.k_proj = Linear(hidden, config.num_kv_heads * dim, **options)
        self.v_proj = Linear(hidden, config.num_kv_heads * dim, **options)
        self.o_proj = Linear(config.num_heads * dim, hidden, **options)
        self.q_norm = RMSNorm(dim, config.rms_norm_eps, param_dtype=param_dtype)
        self.k_norm = RMSNorm(dim, config.rms_norm_eps, param_dtype=param_dtype)

    def __call__(
        self,
        x: jax.Array,
        view: CacheView,
        layer: int,
        cos: jax.Array,
        sin: jax.Array,
    ) -> tuple[jax.Array, CacheView]:
        """Appends this step's keys and values, then attends.

        Args:
          x: ``[B, T, hidden]`` float32, normed.
          view: the cache.
          layer: 0-based index of this layer in the model.
          cos: ``[B, T, 1, head_dim // 2]``, the rotation of this layer's kind.
          sin: the same shape.

        Returns:
          ``[B, T, hidden]`` float32, and the view with the entries appended.
        """
        config = self.config
        heads = (*x.shape[:2], -1, config.head_dim)
        q = rope.rotate(self.q_norm(self.q_proj(x).reshape(heads)), cos, sin)
        k = rope.rotate(self.k_norm(self.k_proj(x).reshape(heads)), cos, sin)
        v = self.v_proj(x).reshape(heads)
        view = view.append(layer, k=k, v=v)
        out = view.attend(
            layer,
            q,
            scale=config.query_scale,
            soft_cap=config.attn_logit_softcapping,
        )
        return self.o_proj(out.reshape(*x.shape[:2], -1)), view


class MLP(nnx.Module):
    """Gated MLP: ``down(gelu_tanh(gate(x)) * up(x))``."""

    def __init__(self, config: Gemma3Config, *, rngs, param_dtype):
        hidden, inner = config.hidden_size, config.intermediate_size
        options = {"rngs": rngs, "param_dtype": param_dtype}
        self.gate_proj = Linear(hidden, inner, **options)
        self.up_proj = Linear(hidden, inner, **options)
        self.down_proj = Linear(inner, hidden, **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps ``x [B, T, hidden]`` to the same shape; float32."""
        gate = jax.nn.gelu(self.gate_proj(x), approximate=True)
        return self.down_proj(gate * self.up_proj(x))


class Block(nnx.Module):
    """One decoder layer: norms before and after both attention and MLP."""

    def __init__(self, config: Gemma3Config, *, rngs, param_dtype):
        options = {"rngs": rngs, "param_dtype": param_dtype}

        def norm() -> RMSNorm:
            return RMSNorm(
                config.hidden_size, config.rms_norm_eps, param_dtype=param_dtype
            )

        self.input_layernorm = norm()
        self.self_attn = Attention(config, **options)
        self.post_attention_layernorm = norm()
        self.pre_feedforward_layernorm = norm()
        self.mlp = MLP(config, **options)
        self.post_feedforward_layernorm = norm()

    def __call__(
        self,
        x: jax.Array,
        view: CacheView,
        layer: int,
        cos: jax.Array,
        sin: jax.Array,
    ) -> tuple[jax.Array, CacheView]:
        """Runs the layer on ``x [B, T, hidden]``; arguments as of attention."""
        attended, view = self.self_attn(self.input_layernorm(x), view, layer, cos, sin)
        x = x + self.post_attention_layernorm(attended)
        mixed = self.mlp(self.pre_feedforward_layernorm(x))
        return x + self.post_feedforward_layernorm(mixed), view


class Gemma3(nnx.Module):
    """Gemma 3 text decoder.

    ``nnx.split(model)`` gives a hashable graph definition and a pytree of
    parameters, so that a step can be a pure jitted function of parameters, tokens
    and view.

    Args:
      config: the model.
      rngs: source of the random initial parameters.
      param_dtype: dtype in which parameters are kept and multiplied.
    """

    def __init__(
        self, config: Gemma3Config, *, rngs: nnx.Rngs, param_dtype=jnp.float32
    ):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, **options)
        self.layers = nnx.List(
            [Block(config, **options) for _ in range(config.num_layers)]
        )
        self.norm = RMSNorm(
            config.hidden_size, config.rms_norm_eps, param_dtype=param_dtype
        )
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else Linear(config.hidden_size, config.vocab_size, **options)
        )

    @classmethod
    def from_params(
        cls,
        config: Gemma3Config,
        params: Mapping[str, jax.Array],
        *,
        param_dtype=jnp.float32,
    ) -> "Gemma3":
        """A model made of given parameters; no random ones are ever allocated.

        Args:
          config: the model.
          params: one array per name of :func:`parameter_shapes`.
          param_dtype: dtype in which parameters are kept; others are converted.

        Raises:
          CheckpointError: if a parameter is missing, unknown or of another shape.
        """
        graph, state = nnx.split(_abstract(config, param_dtype))
        check_tensors(
            _shapes(state),
            {name: tuple(array.shape) for name, array in params.items()},
            "the parameters given",
        )

        def fill(path, leaf):
            return leaf.replace(jnp.asarray(params[_name(path)], param_dtype))

        return nnx.merge(graph, nnx.map_state(fill, state))

    def __call__(
        self, tokens: jax.Array, view: CacheView
    ) -> tuple[jax.Array, CacheView]:
        """Runs one step: any number of tokens per sequence.

        Args:
          tokens: ``[B, T]`` int32 ids at ``view.positions``.
          view: the cache.

        Returns:
          Hidden states after the final norm, ``[B, T, hidden]`` float32, and the
          view with the entries of these tokens in every layer.
        """
        config = self.config
        rotations = {
            kind: rope.rotation(
                view.positions,
                rope.inverse_frequencies(
                    config.head_dim, settings.theta, settings.factor
                ),
            )
            for kind, settings in (
                (SLIDING, config.rope_sliding),
                (FULL, config.rope_full),
            )
        }
        x = self.embed_tokens(tokens)
        for layer, block in enumerate(self.layers):
            x, view = block(x, view, layer, *rotations[config.layer_types[layer]])
        return self.norm(x), view

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Scores of the next token.

        Args:
          hidden: ``[..., hidden]`` states from a step; pass only the positions whose
            prediction is wanted, for the head is most of the work of a prefill.

        Returns:
          ``[..., vocab_size]`` float32, soft-capped if the model is.
        """
        if self.lm_head is None:
            out = _project(hidden, self.embed_tokens.weight[...])
        else:
            out = self.lm_head(hidden)
        cap = self.config.final_logit_softcapping
        return out if cap is None else cap * jnp.tanh(out / cap)


def _project(x: jax.Array, weight: jax.Array) -> jax.Array:
    """``x [..., in] @ weight [out, in].T`` in the weight's dtype, float32 out."""
    return jnp.einsum(
        "...i,oi->...o",
        x.astype(weight.dtype),
        weight,
        preferred_element_type=jnp.float32,
    )


def _abstract(config: Gemma3Config, param_dtype) -> Gemma3:
    """The model with shapes in place of arrays."""
    return nnx.eval_shape(
        lambda: Gemma3(config, rngs=nnx.Rngs(0), param_dtype=param_dtype)
    )


def _shapes(state: nnx.State) -> dict[str, tuple[int, ...]]:
    return {_name(path): tuple(leaf.shape) for path, leaf in nnx.to_flat_state(state)}


def _name(path) -> str:
    return ".".join(str(part) for part in path)
