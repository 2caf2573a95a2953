"""What a model sees of the cache: append entries, attend over them.

The same two lines serve every layer kind::

    view = view.append(layer, k=k, v=v)
    out = view.attend(layer, q, scale=scale)
"""

import dataclasses

import jax

from hybridcache_jax import append as appendlib
from hybridcache_jax.append import Step, StepInputs
from hybridcache_jax.attend import attend
from hybridcache_jax.state import HybridCache


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepView:
    """One step over the cache, from :func:`begin_step` to :func:`end_step`."""

    cache: HybridCache
    step: Step

    @property
    def positions(self) -> jax.Array:
        """``[B, T]`` int32, absolute positions of the step's tokens."""
        return self.step.positions

    @property
    def status(self) -> jax.Array:
        """``[B]`` int32 ``codes.Status``; only OK rows have values."""
        return self.step.status

    def append(self, layer: int, **planes: jax.Array) -> "StepView":
        """Writes one layer's entries for the step's tokens.

        Args:
          layer: model layer, a Python int; it must own its entries.
          **planes: ``[B, T, heads, dim]`` each, normed and rotated, as the layer's
            Entry declares.

        Raises:
          ValueError: for a layer without entries of its own, or for planes of other
            names or shapes than declared.
        """
        plan = self.cache.plan
        places = plan.spec.place(layer)
        if plan.spec.layers[layer].kv_owner is not None:
            raise ValueError(
                f"Layer {layer} reads the entries of layer "
                f"{plan.spec.layers[layer].kv_owner} and must not append any."
            )
        pools = list(self.cache.pools)
        for index, position in places:
            pools[index] = appendlib.write(
                plan.spec.pools[index],
                pools[index],
                position,
                self.step.slots[index],
                self.step.positions,
                planes,
                plan.backend,
            )
        cache = dataclasses.replace(self.cache, pools=tuple(pools))
        return dataclasses.replace(self, cache=cache)

    def attend(
        self,
        layer: int,
        query: jax.Array,
        *,
        scale: float,
        soft_cap: float | None = None,
        sinks: jax.Array | None = None,
    ) -> jax.Array:
        """Attention over everything the layer keeps; see ``attend.attend``."""
        return attend(
            self.cache.plan,
            self.cache.pools,
            self.step,
            layer,
            query,
            scale=scale,
            soft_cap=soft_cap,
            sinks=sinks,
        )


def begin_step(cache: HybridCache, inputs: StepInputs, vocab_size: int) -> StepView:
    """Opens a step; see ``append.begin``."""
    return StepView(*appendlib.begin(cache, inputs, vocab_size))


def end_step(view: StepView) -> HybridCache:
    """Closes a step: rows move on, full blocks are sealed."""
    return appendlib.end(view.cache, view.step)
