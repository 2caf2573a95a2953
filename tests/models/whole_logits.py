"""Logits of whole sequences in one compiled call, without a cache."""

import jax
import numpy as np
from flax import nnx

from hybridcache_jax.models.whole_sequence import WholeSequenceView


def whole_sequence_logits(model, layers, tokens):
    """``[B, T]`` ids to ``[B, T, V]`` logits of a model with these layers."""
    graph, state = nnx.split(model)

    @jax.jit
    def run(state, tokens):
        model = nnx.merge(graph, state)
        view = WholeSequenceView.start(layers, *tokens.shape)
        hidden, _ = model(tokens, view)
        return model.logits(hidden)

    return np.asarray(run(state, tokens))
