"""What a model sees of the cache: append entries, attend over them.

The same few lines serve every layer kind::

    view = view.append(layer, k=k, v=v)
    out = view.attend(layer, q, scale=scale)
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from hybridcache_jax import append as appendlib
from hybridcache_jax import compress as compresslib
from hybridcache_jax import recurrent
from hybridcache_jax.append import Step, StepInputs
from hybridcache_jax.attend import attend
from hybridcache_jax.compress import Planes, Pool
from hybridcache_jax.select import select
from hybridcache_jax.spec import Part
from hybridcache_jax.state import HybridCache

_PER_TOKEN = (Part.LOCAL, Part.ENTRIES, Part.INDEX)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepView:
    """One step over the cache, from :func:`begin_step` to :func:`end_step`.

    Attributes:
      cache: the cache, with what this step has written so far.
      step: what the step runs.
      selections: by layer, ``[B, T, G, k]`` int32 units that were selected.
    """

    cache: HybridCache
    step: Step
    selections: dict[int, jax.Array] = dataclasses.field(default_factory=dict)

    @property
    def positions(self) -> jax.Array:
        """``[B, T]`` int32, absolute positions of the step's tokens."""
        return self.step.positions

    @property
    def valid(self) -> jax.Array:
        """``[B, T]`` bool, tokens that are real; a prefix of each row."""
        return jnp.arange(self.positions.shape[1]) < self.step.count[:, None]

    @property
    def status(self) -> jax.Array:
        """``[B]`` int32 ``codes.Status``; only OK rows have values."""
        return self.step.status

    def append(
        self, layer: int, *, to: str | None = None, **planes: jax.Array
    ) -> "StepView":
        """Writes one entry per token of the step.

        Args:
          layer: model layer, a Python int; it must own what is appended.
          to: ``"local"``, ``"entries"`` (of ratio 1) or ``"index"`` (keys per token);
            may be left out where the layer has either a local part or entries of
            ratio 1, not both.
          **planes: ``[B, T, heads, dim]`` each, normed and rotated, as the layer's
            Entry declares, without the planes of scales.

        Raises:
          ValueError: for a part that the layer does not own or that is not written
            per token, or for planes of other names or shapes than declared.
        """
        plan = self.cache.plan
        part = self._part(layer, to)
        number, place = self._owned(layer, part)
        pool = plan.spec.pools[number]
        if pool.entry_tokens != 1:
            raise ValueError(
                f"Layer {layer}: one {pool.name} entry stands for {pool.entry_tokens} "
                "tokens; give the raw rows to `compress`, which makes the entries."
            )
        pools = list(self.cache.pools)
        pools[number] = appendlib.write(
            pool,
            pools[number],
            place,
            self.step.slots[number],
            self.step.positions,
            planes,
            plan.backend,
        )
        return self._with(tuple(pools))

    def compress(
        self,
        layer: int,
        pool: Pool,
        *,
        to: str = "entries",
        index: Callable[[Planes], Planes] | None = None,
        **raw: jax.Array,
    ) -> "StepView":
        """Writes raw rows, and an entry for every block that they complete.

        Args:
          layer: model layer; it must own entries (or index keys) with raw rows.
          pool: makes entries of raw rows; see :func:`compress.compress`.
          to: ``"entries"`` or ``"index"``.
          index: for index keys that are projected from the entry: new entries to
            their keys.
          **raw: ``[B, T, heads, dim]`` each, as the layer's raw Entry declares.

        Raises:
          ValueError: if the layer owns no such part, or planes do not fit.
        """
        part = self._part(layer, to)
        self._owned(layer, part)
        return self._with(
            compresslib.compress(
                self.cache.plan,
                self.cache.pools,
                self.step,
                layer,
                part,
                pool,
                raw,
                index,
            )
        )

    def select(
        self, layer: int, query: jax.Array, weights: jax.Array, *, scale: float = 1.0
    ) -> "StepView":
        """Ranks the layer's index keys; :meth:`attend` reads what was selected.

        Args and errors: as :func:`select.select`.
        """
        chosen = select(
            self.cache.plan, self.cache.pools, self.step, layer, query, weights, scale
        )
        return dataclasses.replace(self, selections={**self.selections, layer: chosen})

    def attend(
        self,
        layer: int,
        q: jax.Array,
        *,
        scale: float,
        soft_cap: float | None = None,
        sinks: jax.Array | None = None,
    ) -> jax.Array:
        """Attention over everything the layer sees; see ``attend.attend``."""
        return attend(
            self.cache.plan,
            self.cache.pools,
            self.step,
            self.selections,
            layer,
            q,
            scale=scale,
            soft_cap=soft_cap,
            sinks=sinks,
        )

    def read_state(self, layer: int) -> dict[str, jax.Array]:
        """Recurrent state before the step; see ``recurrent.read_state``."""
        return recurrent.read_state(self.cache.plan, self.cache.pools, self.step, layer)

    def write_state(self, layer: int, **planes: jax.Array) -> "StepView":
        """Recurrent state after the step; see ``recurrent.write_state``."""
        return self._with(
            recurrent.write_state(
                self.cache.plan, self.cache.pools, self.step, layer, planes
            )
        )

    def _with(self, pools: tuple[dict[str, jax.Array], ...]) -> "StepView":
        cache = dataclasses.replace(self.cache, pools=pools)
        return dataclasses.replace(self, cache=cache)

    def _part(self, layer: int, name: str | None) -> Part:
        """The part that is meant."""
        if name is not None:
            if name not in _PER_TOKEN:
                raise ValueError(
                    f"There is no part {name!r} to write; expected one of "
                    f"{', '.join(_PER_TOKEN)}."
                )
            return Part(name)
        spec = self.cache.plan.spec
        parts = [
            part
            for part in (Part.LOCAL, Part.ENTRIES)
            if (found := spec.find(layer, part)) is not None
            and spec.pools[found[0]].entry_tokens == 1
        ]
        if len(parts) != 1:
            raise ValueError(
                f"Layer {layer} has {len(parts)} parts that take one entry per token; "
                "say which is meant with to='local' or to='entries'."
            )
        return parts[0]

    def _owned(self, layer: int, part: Part) -> tuple[int, int]:
        """Where a part lies, if it is the layer's own."""
        spec = self.cache.plan.spec
        found = spec.find(layer, part)
        if found is None:
            raise ValueError(f"Layer {layer} keeps no {part.value}.")
        if layer not in spec.pools[found[0]].layers:
            raise ValueError(
                f"Layer {layer} reads the {part.value} of another layer and must not "
                "write any."
            )
        return found


def begin_step(cache: HybridCache, inputs: StepInputs, vocab_size: int) -> StepView:
    """Opens a step; see ``append.begin``."""
    return StepView(*appendlib.begin(cache, inputs, vocab_size))


def end_step(view: StepView) -> HybridCache:
    """Closes a step: rows move on, full blocks are sealed."""
    return appendlib.end(view.cache, view.step)
