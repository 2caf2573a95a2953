"""Logits of whole sequences in one compiled call, without a cache."""

import jax
import numpy as np
from flax import nnx

from hybridcache_jax.models.whole_sequence import WholeSequenceView


def whole_sequence_logits(loaded, tokens):
    """``[B, T]`` ids to ``[B, T, V]`` logits of a loaded model."""
    graph, state = nnx.split(loaded.model)

    @jax.jit
    def run(state, tokens):
        model = nnx.merge(graph, state)
        view = WholeSequenceView.start(loaded.layers, *tokens.shape)
        hidden, _ = model(tokens, view)
        return model.logits(hidden)

    return np.asarray(run(state, tokens))
