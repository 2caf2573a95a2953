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
from hybridcache_jax.codes import Status
from hybridcache_jax.planes import Planes
from hybridcache_jax.pooling import Pooling
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
      written: layers and parts that this step has written.  Known while tracing: a
        part that is read before it is written, or never written, would hold what
        the last user of its blocks left.
    """

    cache: HybridCache
    step: Step
    selections: dict[int, jax.Array] = dataclasses.field(default_factory=dict)
    written: frozenset[tuple[int, Part]] = dataclasses.field(
        default=frozenset(), metadata={"static": True}
    )

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

    def only_ok(self, values: jax.Array, fill: float = float("nan")) -> jax.Array:
        """What a model made of the rows that are OK, and ``fill`` for the others.

        A row that is not OK reads nothing; a model makes numbers of that, too, and they
        look like any others.

        Args:
          values: ``[B, ...]``, logits for example.
          fill: what the others get; -1 for token ids.

        Returns:
          ``[B, ...]`` in the dtype of ``values``.
        """
        ran = (self.status == Status.OK).reshape(-1, *[1] * (values.ndim - 1))
        return jnp.where(ran, values, jnp.asarray(fill, values.dtype))

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
        return self._with(tuple(pools), layer, part)

    def compress(
        self,
        layer: int,
        pool: Pooling,
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
        pools = compresslib.compress(
            self.cache.plan,
            self.cache.pools,
            self.step,
            layer,
            part,
            pool,
            raw,
            index,
        )
        projected = () if index is None else (Part.INDEX,)
        raw_part = compresslib.RAW_OF[part]
        return self._with(pools, layer, part, raw_part, *projected)

    def select(
        self, layer: int, query: jax.Array, weights: jax.Array, *, scale: float = 1.0
    ) -> "StepView":
        """Ranks the layer's index keys; :meth:`attend` reads what was selected.

        Args and errors: as :func:`select.select`.
        """
        self._require_written(layer, Part.INDEX)
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
        self._require_written(layer, Part.LOCAL, Part.ENTRIES)
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
        if (layer, Part.STATE) in self.written:
            raise ValueError(
                f"Layer {layer}: the state before the step is gone once the state "
                "after it was written; read it first."
            )
        return recurrent.read_state(self.cache.plan, self.cache.pools, self.step, layer)

    def write_state(self, layer: int, **planes: jax.Array) -> "StepView":
        """Recurrent state after the step; see ``recurrent.write_state``."""
        pools = recurrent.write_state(
            self.cache.plan, self.cache.pools, self.step, layer, planes
        )
        return self._with(pools, layer, Part.STATE)

    def _with(
        self, pools: tuple[dict[str, jax.Array], ...], layer: int, *parts: Part
    ) -> "StepView":
        """The view after parts of a layer were written."""
        now = frozenset((layer, part) for part in parts)
        if now & self.written:
            raise ValueError(
                f"Layer {layer} writes its {', '.join(sorted(parts))} twice in one "
                "step; write each part once."
            )
        cache = dataclasses.replace(self.cache, pools=pools)
        return dataclasses.replace(self, cache=cache, written=self.written | now)

    def _require_written(self, layer: int, *parts: Part) -> None:
        """Refuses to read what this step has not written yet."""
        spec = self.cache.plan.spec
        for part in parts:
            found = spec.find(layer, part)
            if found is None:
                continue
            owner = spec.pools[found[0]].layers[found[1]]
            if (owner, part) not in self.written:
                raise ValueError(
                    f"Layer {layer} reads the {part.value} of layer {owner} before "
                    "this step has written them; write them first."
                )

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
    """Closes a step: rows move on, full blocks are sealed.

    Raises:
      ValueError: if a layer did not write all that it keeps.
    """
    missing = [
        f"layer {layer}: {pool.part.value}"
        for pool in view.cache.plan.spec.pools
        for layer in pool.layers
        if (layer, pool.part) not in view.written
    ]
    if missing:
        raise ValueError(
            f"This step did not write {'; '.join(missing[:8])}"
            + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
            + ". Every layer writes all that it keeps in every step, or the blocks "
            "would be sealed with what was there before."
        )
    return appendlib.end(view.cache, view.step)
