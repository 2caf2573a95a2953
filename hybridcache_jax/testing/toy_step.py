"""The toy's forward pass: numbers through the real cache, every layer kind alike.

What is written and read is described in ``testing.toy_cold``, which computes the same
without the library.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from hybridcache_jax.entry import Entry, Plane
from hybridcache_jax.layers import (
    Chunk,
    Entries,
    IndexKeys,
    LayerSpec,
    RecurrentState,
    TopK,
    Window,
)
from hybridcache_jax.testing.toy_cold import CHAIN, KEYS, STATES, places, width
from hybridcache_jax.testing.toy_kinds import Kind
from hybridcache_jax.view import StepView


def layer_of(
    kinds: Sequence[Kind],
    number: int,
    length: int,
    *,
    chain: bool,
    entry: Entry | None = None,
) -> LayerSpec:
    """The layer record of a kind, with the toy's own entries.

    Args:
      kinds: one per layer.
      number: the layer.
      length: most tokens of a row, which decides the places.
      chain: whether each row brings a one, see :func:`run_layers`.
      entry: local keys and entries, where they are not the toy's.

    Raises:
      ValueError: for index keys that nothing makes.
    """
    kind, row = kinds[number], Entry((Plane("x", 1, 1),))
    if entry is None:
        dim = max(sum(places(kinds, number, length)) + chain, 1)
        entry = Entry((Plane("k", kind.heads, 1), Plane("v", kind.heads, dim)))
    local = {"window": Window, "chunk": Chunk}.get(kind.local)
    history = index = select = None
    if kind.ratio:
        raw = row if kind.ratio > 1 else None
        history = Entries(entry, kind.ratio, kind.overlap, raw)
    if kind.index_ratio:
        if not kind.pooled and kind.index_ratio not in (1, kind.ratio):
            raise ValueError(
                f"Layer {number}: nothing makes index keys of {kind.index_ratio} "
                "tokens; give them raw rows, or the ratio of the entries."
            )
        key = Entry((Plane("k", 1, 1),))
        raw = row if kind.pooled else None
        index = IndexKeys(key, kind.index_ratio, kind.index_overlap, raw)
    if kind.top:
        per = "kv_group" if kind.per_head else "query"
        select = TopK(kind.top, kind.unit, kind.near, kind.open_tail, per)
    return LayerSpec(
        local=local and local(kind.size, entry),
        global_=history,
        select=select,
        index=index,
        recurrent=RecurrentState(Entry((Plane("s", 1, 1),)))
        if kind.recurrent
        else None,
        kv_owner=kind.kv_owner,
        index_owner=kind.index_owner,
        select_owner=kind.select_owner,
    )


def run_layers(
    view: StepView,
    tokens: jax.Array,
    kinds: Sequence[Kind],
    length: int,
    *,
    chain: bool,
) -> tuple[StepView, jax.Array]:
    """One step through all layers.

    Args:
      view: an open step.
      tokens: ``[B, T]`` int32.
      kinds: one per layer.
      length: most tokens of a row, which decides the places.
      chain: whether a layer gets what the layers below read.

    Returns:
      The view, and what each query read: ``[layers, B, T, width]`` float32.
    """
    value = 10 * view.positions + tokens
    h, reads = value, []
    for layer, kind in enumerate(kinds):
        x = h if chain else value
        view = _store(view, layer, kinds, x, length, chain)
        if kind.top:
            view = _select(view, layer, kinds, x)
        parts = []
        if sum(places(kinds, layer, length)):
            parts.append(_attend(view, layer, kinds, x, chain))
        if kind.recurrent:
            view, states = _fold(view, layer, x)
            parts.append(states[..., None].astype(jnp.float32))
        read = jnp.concatenate(parts, axis=-1)
        h = (2 * h + jnp.sum(read, axis=-1).astype(jnp.int32)) % CHAIN
        spare = width(kinds, length) - read.shape[-1]
        reads.append(jnp.pad(read, ((0, 0), (0, 0), (0, spare))))
    return view, jnp.stack(reads)


def _store(view, layer: int, kinds, x: jax.Array, length: int, chain: bool) -> StepView:
    """Writes all that a layer keeps, but for its state."""
    kind, number = kinds[layer], x.astype(jnp.float32)[..., None, None]
    room, across = places(kinds, layer, length)

    def row(numbers, place):
        """Entries of ``numbers [..., 1, 1]`` in ``place [...]``."""
        spots = jnp.arange(room + across)
        rows = numbers * (place[..., None, None] == spots)
        if chain:
            rows = jnp.concatenate([rows, jnp.ones_like(numbers)], axis=-1)
        heads = (*numbers.shape[:-2], kind.heads)
        return {
            "k": jnp.broadcast_to(numbers, (*heads, 1)),
            "v": jnp.broadcast_to(rows, (*heads, rows.shape[-1])),
        }

    def total(raw):
        return jnp.sum(raw["x"], axis=2)

    def entries(raw, valid, first):
        return row(total(raw), room + first // kind.ratio)

    def keys(raw, valid, first):
        return {"k": total(raw) % KEYS}

    def projected(made):
        return {"k": made["k"][..., :1, :] % KEYS}

    if kind.local:
        view = view.append(layer, to="local", **row(number, view.positions))
    if kind.ratio == 1:
        view = view.append(layer, to="entries", **row(number, room + view.positions))
    project = kind.index_ratio > 1 and not kind.pooled
    if kind.ratio > 1:
        index = projected if project else None
        view = view.compress(layer, entries, index=index, x=number)
    if kind.pooled:
        view = view.compress(layer, keys, to="index", x=number)
    elif kind.index_ratio == 1:
        view = view.append(layer, to="index", k=number % KEYS)
    return view


def _select(view, layer: int, kinds, x: jax.Array) -> StepView:
    """Large keys first for an odd value, small ones for an even; heads take turns."""
    owner = kinds[layer].kv_owner
    heads = kinds[layer if owner is None else owner].heads
    groups = heads if kinds[layer].per_head else 1
    sign = jnp.where(x % 2, 1.0, -1.0)[..., None]
    turns = jnp.where(jnp.arange(groups) % 2, -1.0, 1.0)
    query = jnp.ones((*x.shape, groups, 1), jnp.float32)
    return view.select(layer, query, sign * turns)


def _attend(view, layer: int, kinds, x: jax.Array, chain: bool) -> jax.Array:
    """``[B, T, heads * places]``: values, shares of them unless ``chain``."""
    owner = kinds[layer].kv_owner
    heads = kinds[layer if owner is None else owner].heads
    query = jnp.zeros((*x.shape, heads, 1), jnp.float32)
    if not chain:
        read = view.attend(layer, query, scale=0.0)
    else:
        # Each row brings a one, the sink only its weight: of n rows, n / (n + 1) is
        # left, and the sums follow without knowing what should have been read.
        share = view.attend(layer, query, scale=0.0, sinks=jnp.zeros(heads))
        weights = jnp.round(1 / (1 - share[..., -1:]))
        read = jnp.round(share[..., :-1] * weights)
    return read.reshape(*x.shape, -1)


def _fold(view, layer: int, x: jax.Array) -> tuple[StepView, jax.Array]:
    """Folds the step's tokens into the state; ``[B, T]`` states after each."""
    before = view.read_state(layer)["s"][:, 0, 0].astype(jnp.int32)

    def step(state, token):
        digit, real = token
        state = jnp.where(real, (2 * state + digit) % STATES, state)
        return state, state

    digits = jnp.moveaxis(x % 10, 1, 0)
    last, states = jax.lax.scan(step, before, (digits, jnp.moveaxis(view.valid, 1, 0)))
    view = view.write_state(layer, s=last.astype(jnp.float32)[:, None, None])
    return view, jnp.moveaxis(states, 0, 1)
