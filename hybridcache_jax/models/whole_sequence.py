"""A view without a cache: whole sequences at once, as in training.

Everything is plain arrays and masks, so it is differentiable, and it shares no code
with the cache: what a model computes over it is what it must compute over the cache.
Memory grows with the square of the length.

A selection has no gradient of its own.  Whoever differentiates a model over this view
trains the ranking as DeepSeek-V3.2 does: by the divergence of its scores from what
attention over all entries would look at.  That loss joins the backward pass alone.
"""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp

from hybridcache_jax.entry import Entry
from hybridcache_jax.layers import LayerSpec
from hybridcache_jax.models.ranking_loss import ranking_loss, with_loss
from hybridcache_jax.planes import Planes
from hybridcache_jax.pooling import Pooling


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WholeSequenceView:
    """Sequences of equal length from position 0, for one pass.

    Attributes:
      positions: ``[B, T]`` int32.
      rows: by layer and part, keys and values ``[B, N, heads, D]``.
      scores: by layer, ``[B, T, G, N]`` scores of its index keys, -inf where unseen.
      layers: what each layer keeps.
    """

    positions: jax.Array
    rows: dict[tuple[int, str], tuple[jax.Array, jax.Array]]
    scores: dict[int, jax.Array]
    layers: tuple[LayerSpec, ...] = dataclasses.field(metadata={"static": True})

    @classmethod
    def start(cls, layers: tuple[LayerSpec, ...], batch: int, length: int) -> Self:
        """The view of ``batch`` sequences of ``length`` tokens."""
        positions = jnp.arange(length, dtype=jnp.int32)
        positions = jnp.broadcast_to(positions, (batch, length))
        return cls(positions, {}, {}, layers)

    @property
    def valid(self) -> jax.Array:
        """``[B, T]`` bool: every token is real."""
        return jnp.ones(self.positions.shape, bool)

    def append(self, layer: int, *, to: str | None = None, **planes: jax.Array) -> Self:
        """Keeps one entry per token; see ``protocol.CacheView.append``."""
        spec = self.layers[layer]
        per_token = spec.global_ is not None and spec.global_.ratio == 1
        if to is None and spec.local is not None and per_token:
            raise ValueError(
                f"Layer {layer} keeps local keys and entries; say which are meant with "
                "to='local' or to='entries'."
            )
        part = to or ("local" if spec.local is not None else "entries")
        return self._keep(layer, part, planes)

    def compress(
        self, layer: int, pool: Pooling, *, to: str = "entries", index=None, **raw
    ) -> Self:
        """Pools every complete block; see ``protocol.CacheView.compress``."""
        spec = self.layers[layer]
        history = spec.global_ if to == "entries" else spec.index
        if history is None:
            raise ValueError(f"Layer {layer} keeps no {to} to compress.")
        ratio, overlap = history.ratio, history.overlap
        batch, length = self.positions.shape
        count = length // ratio
        place = jnp.arange((1 + overlap) * ratio) - overlap * ratio
        where = ratio * jnp.arange(count)[:, None] + place
        blocks = {
            name: jnp.where(
                (where >= 0)[None, :, :, None, None],
                jnp.take(value.astype(jnp.float32), jnp.maximum(where, 0), axis=1),
                0.0,
            )
            for name, value in raw.items()
        }
        valid = jnp.broadcast_to(where >= 0, (batch, *where.shape))
        first = ratio * jnp.arange(count, dtype=jnp.int32)
        made = pool(blocks, valid, jnp.broadcast_to(first, (batch, count)))
        view = self._keep(layer, to, made)
        return view if index is None else view._keep(layer, "index", index(made))

    def select(
        self, layer: int, query: jax.Array, weights: jax.Array, *, scale: float = 1.0
    ) -> Self:
        """Scores the layer's index keys; see ``protocol.CacheView.select``."""
        owner = self.layers[layer].index_owner
        keys = self.rows[layer if owner is None else owner, "index"][0][:, :, 0]
        dots = jax.nn.relu(scale * jnp.einsum("bthd,bnd->bthn", query, keys))
        groups = self._groups(layer)
        shape = (*dots.shape[:2], groups, dots.shape[2] // groups, dots.shape[-1])
        weighed = (dots * weights[..., None]).reshape(shape)
        seen = self._closed(keys.shape[1], self._index(layer).ratio)
        scores = jnp.where(seen[:, :, None], jnp.sum(weighed, axis=3), -jnp.inf)
        return dataclasses.replace(self, scores={**self.scores, layer: scores})

    def attend(
        self,
        layer: int,
        q: jax.Array,
        *,
        scale: float,
        soft_cap: float | None = None,
        sinks: jax.Array | None = None,
    ) -> jax.Array:
        """One masked softmax over all the layer sees; see ``protocol.CacheView``."""
        spec = self.layers[layer]
        owner = layer if spec.kv_owner is None else spec.kv_owner
        local, entries = self.layers[owner].local, self.layers[owner].global_
        keys, values, bias = [], [], []
        position = self.positions[:, :, None]
        if local is not None:
            k, v = self.rows[owner, "local"]
            place = jnp.arange(k.shape[1])
            seen = (place <= position) & (place >= local.first_visible(position))
            keys.append(k)
            values.append(v)
            bias.append(jnp.where(seen, 0.0, -jnp.inf)[:, :, None])
        complete = entries is not None and self.positions.shape[1] >= entries.ratio
        if entries is not None and complete:
            k, v = self.rows[owner, "entries"]
            seen = self._closed(k.shape[1], entries.ratio)[:, :, None]
            keys.append(k)
            values.append(v)
            bias.append(self._history_bias(layer, seen))
        if not keys:
            raise ValueError(
                f"Layer {layer} sees nothing in {self.positions.shape[1]} tokens; give "
                "sequences of at least one whole block."
            )
        heads = keys[0].shape[2]
        joined = [jnp.broadcast_to(b, (*b.shape[:2], heads, b.shape[3])) for b in bias]
        out = _softmax(
            q,
            jnp.concatenate(keys, axis=1),
            jnp.concatenate(values, axis=1),
            jnp.concatenate(joined, axis=-1),
            scale,
            soft_cap,
            sinks,
        )
        if layer not in self.scores or not complete:
            return out
        return with_loss(out, self._ranking_loss(layer, scale * q, keys[-1]))

    def read_state(self, layer: int) -> dict[str, jax.Array]:
        """Zeros: every sequence starts at position 0."""
        state = self.layers[layer].recurrent
        if state is None:
            raise ValueError(f"Layer {layer} declares no recurrent state.")
        batch = self.positions.shape[0]
        return {
            plane.name: jnp.zeros((batch, plane.heads, plane.dim))
            for plane in state.state.planes
        }

    def write_state(self, layer: int, **planes: jax.Array) -> Self:
        """Keeps nothing: the pass is over when the state would be read."""
        del layer, planes
        return self

    def _history_bias(self, layer: int, seen: jax.Array) -> jax.Array:
        """``[B, T, G, N]``: -inf for entries that are not read."""
        chosen = self._chosen(layer)
        if chosen is not None:
            seen = seen & chosen[0][..., : seen.shape[-1]]
        return jnp.where(seen, 0.0, -jnp.inf)

    def _ranking_loss(self, layer: int, q: jax.Array, keys: jax.Array) -> jax.Array:
        """How far the layer's ranking is from attention over all entries, ``[]``."""
        entries, chosen = self.layers[layer].global_, self._chosen(layer)
        if entries is None or chosen is None:
            return jnp.zeros(())
        seen = self._closed(keys.shape[1], entries.ratio)[:, :, None]
        return ranking_loss(q, keys, chosen[1][..., : keys.shape[1]], seen)

    def _chosen(self, layer: int) -> tuple[jax.Array, jax.Array] | None:
        """Which entries each query reads and with what score, ``[B, T, G, N]`` each."""
        spec = self.layers[layer]
        owner = layer if spec.select_owner is None else spec.select_owner
        select = self.layers[owner].select
        entries = self.layers[layer if spec.kv_owner is None else spec.kv_owner].global_
        if select is None or entries is None:
            return None
        per_unit = select.unit // self._index(owner).ratio
        scores = self.scores[owner]
        # A unit counts from its first token on, whether or not it has a key yet.
        units = -(-self.positions.shape[1] // select.unit)
        spare = [(0, 0)] * 3 + [(0, units * per_unit - scores.shape[-1])]
        scores = jnp.pad(scores, spare, constant_values=-jnp.inf)
        scores = scores.reshape(*scores.shape[:3], units, per_unit).max(axis=-1)
        position = self.positions[:, :, None, None]
        unit, own = jnp.arange(units), position // select.unit
        is_open = (unit == own) & ((position + 1) % select.unit != 0)
        ranked = jnp.where(
            (unit <= own) & (unit > own - select.local_units), jnp.inf, scores
        )
        if select.open_tail:
            ranked = jnp.where(is_open, -jnp.inf, ranked)
        top, place = jax.lax.top_k(ranked, min(select.k, ranked.shape[-1]))
        hits = jax.nn.one_hot(place, ranked.shape[-1], dtype=bool)
        read = jnp.any(hits & ~jnp.isneginf(top)[..., None], axis=-2)
        if select.open_tail:
            read = read | is_open
        scores = jnp.where(jnp.isneginf(scores), 0.0, scores)
        per_entry = select.unit // entries.ratio
        return jnp.repeat(read, per_entry, -1), jnp.repeat(scores, per_entry, -1)

    def _index(self, layer: int):
        """The index keys that a layer ranks."""
        owner = self.layers[layer].index_owner
        index = self.layers[layer if owner is None else owner].index
        if index is None:
            raise ValueError(f"Layer {layer} selects, but nothing ranks its entries.")
        return index

    def _groups(self, layer: int) -> int:
        spec = self.layers[layer]
        if spec.select is None:
            raise ValueError(f"Layer {layer} declares no selection of its own.")
        entries = self.layers[layer if spec.kv_owner is None else spec.kv_owner].global_
        if spec.select.per == "query" or entries is None:
            return 1
        return entries.entry.key_planes[0].heads

    def _closed(self, count: int, ratio: int) -> jax.Array:
        """``[B, T, N]`` bool: entries whose last token is not behind the query."""
        last = ratio * jnp.arange(count) + ratio - 1
        return last <= self.positions[:, :, None]

    def _keep(self, layer: int, part: str, planes: Planes) -> Self:
        spec = self.layers[layer]
        owned = {"local": spec.local, "entries": spec.global_, "index": spec.index}
        if owned[part] is None:
            raise ValueError(f"Layer {layer} keeps no {part}.")
        entry: Entry = owned[part].entry
        names = {p.name for p in entry.planes} - entry.scale_planes
        if planes.keys() != names:
            raise ValueError(
                f"Layer {layer} keeps planes {sorted(names)} of its {part}, got "
                f"{sorted(planes)}."
            )
        rows = tuple(
            jnp.concatenate([planes[p.name].astype(jnp.float32) for p in wanted], -1)
            for wanted in (entry.key_planes, entry.value_planes)
        )
        return dataclasses.replace(self, rows={**self.rows, (layer, part): rows})


def _softmax(q, keys, values, bias, scale, soft_cap, sinks) -> jax.Array:
    """``[B, T, Hq, Dv]``: ``bias [B, T, H, N]`` joins the scaled, capped scores."""
    repeats = q.shape[2] // keys.shape[2]
    keys, values = (jnp.repeat(x, repeats, axis=2) for x in (keys, values))
    scores = scale * jnp.einsum("bthd,bnhd->bthn", q.astype(jnp.float32), keys)
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    scores = scores + jnp.repeat(bias, repeats, axis=2)
    if sinks is not None:
        column = jnp.broadcast_to(sinks[:, None], (*scores.shape[:3], 1))
        scores = jnp.concatenate([scores, column], axis=-1)
    seen = jnp.any(~jnp.isneginf(scores), axis=-1, keepdims=True)
    weights = jax.nn.softmax(jnp.where(seen, scores, 0.0), axis=-1)
    weights = jnp.where(seen, weights, 0.0)[..., : keys.shape[1]]
    return jnp.einsum("bthn,bnhd->bthd", weights, values)
