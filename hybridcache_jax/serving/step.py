"""The compiled step: check leases, run the model, sample; the cache is donated."""

import copy
import dataclasses
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax._compat import compiled_variants
from hybridcache_jax.append import StepInputs
from hybridcache_jax.models.protocol import Decoder
from hybridcache_jax.serving.sampling import SamplingInputs, sample
from hybridcache_jax.state import HybridCache
from hybridcache_jax.view import StepView, begin_step, end_step


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepOutput:
    """What a step gives; only rows with status OK have values.

    Attributes:
      status: ``[B]`` int32 ``codes.Status``.
      tokens: ``[B]`` int32, sampled after each row's last token; -1 unless OK.
      logits: ``[B, V]`` float32 after each row's last token; NaN unless OK.
    """

    status: jax.Array
    tokens: jax.Array
    logits: jax.Array


class CompiledStep:
    """One jitted function for prefill chunks and decode steps alike."""

    def __init__(self, model: Decoder, vocab_size: int):
        """Splits the model; its state is an argument of the compiled function."""
        self._graph, self._state = nnx.split(model)
        graph = self._graph

        def run(state, cache, inputs, sampling):
            start = begin_step(cache, inputs, vocab_size)
            # Ids are checked by begin_step; foreign ones must not reach a lookup.
            tokens = jnp.clip(inputs.tokens, 0, vocab_size - 1)
            model = nnx.merge(graph, state)
            hidden, after = model(tokens, start)
            last = jnp.maximum(start.step.count - 1, 0)
            hidden = jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]
            logits = model.logits(hidden)
            chosen = sample(logits, sampling, start.step.end)
            output = StepOutput(
                status=start.status,
                tokens=start.only_ok(chosen, -1),
                logits=start.only_ok(logits),
            )
            return end_step(cast(StepView, after)), output

        self._run = jax.jit(run, donate_argnums=1)

    def with_model(self, model: Decoder) -> "CompiledStep":
        """The same compiled function with the weights of another model.

        Args:
          model: of the same structure, shapes and dtypes.

        Raises:
          ValueError: if the structure differs.
        """
        graph, state = nnx.split(model)
        if graph != self._graph:
            raise ValueError(
                "The model's structure differs from the one that was compiled; make a "
                "new CompiledStep for it."
            )
        other = copy.copy(self)
        other._state = state
        return other

    def place(self, cache: HybridCache) -> HybridCache:
        """The cache bound to the device of the parameters.

        What a step gives is bound to a device as soon as one input is.  A cache that
        is not bound from the start would make every function compile twice.
        """
        devices = {
            device
            for leaf in jax.tree.leaves(self._state)
            if isinstance(leaf, jax.Array)
            for device in leaf.devices()
        }
        return jax.device_put(cache, devices.pop()) if len(devices) == 1 else cache

    @property
    def variants(self) -> int:
        """Shapes compiled so far."""
        return compiled_variants(self._run)

    def __call__(
        self, cache: HybridCache, inputs: StepInputs, sampling: SamplingInputs
    ) -> tuple[HybridCache, StepOutput]:
        """Runs one step.  ``cache`` is donated: do not use it afterwards."""
        return self._run(self._state, cache, inputs, sampling)

    def lower(self, cache, inputs: StepInputs, sampling: SamplingInputs):
        """The step lowered for the shapes of its arguments, for inspection."""
        return self._run.lower(self._state, cache, inputs, sampling)
