"""What every decoder of this package has around its layers: embedding, norm, head."""

from collections.abc import Callable

import jax
from flax import nnx

from hybridcache_jax.configs.reading import DecoderConfig
from hybridcache_jax.models.modules import Embedding, Linear, RMSNorm, project


class CausalDecoder(nnx.Module):
    """Embedding, layers, final norm, and a head that may be the embedding.

    ``nnx.split(model)`` gives a hashable graph definition and a pytree of parameters,
    so that a step can be a pure jitted function of parameters, tokens and view.  A
    subclass runs the layers in its ``__call__``.

    Args:
      config: the model.
      make_block: index of a layer to its module.
      norm_offset: of the final norm, see ``modules.RMSNorm``.
      norm_dtype: dtype of the final norm's weight; by default ``param_dtype``.
      rngs: source of the random initial parameters.
      param_dtype: dtype in which parameters are kept and multiplied.
    """

    def __init__(
        self,
        config: DecoderConfig,
        make_block: Callable[[int], nnx.Module],
        *,
        norm_offset: int = 0,
        norm_dtype=None,
        rngs: nnx.Rngs,
        param_dtype,
    ):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        vocab, hidden = config.vocab_size, config.hidden_size
        self.embed_tokens = Embedding(vocab, hidden, **options)
        self.layers = nnx.List([make_block(i) for i in range(config.num_layers)])
        self.norm = RMSNorm(
            hidden,
            config.rms_norm_eps,
            offset=norm_offset,
            param_dtype=param_dtype if norm_dtype is None else norm_dtype,
        )
        self.lm_head = (
            None if config.tie_word_embeddings else Linear(hidden, vocab, **options)
        )

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Scores of the next token.

        Args:
          hidden: ``[..., hidden]`` states from a step; pass only the positions whose
            prediction is wanted, for the head is much of the work of a prefill.

        Returns:
          ``[..., vocab_size]`` float32.
        """
        if self.lm_head is None:
            return project(hidden, self.embed_tokens.weight[...])
        return self.lm_head(hidden)
