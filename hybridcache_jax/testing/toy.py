"""A toy model of small integers over the real cache, for the layer kinds of a model.

Give it layer records; it keeps their windows, ratios, overlaps, selections, states and
owners, and puts numbers in the place of keys and values that tell who wrote them.
:func:`cold` says in plain Python what every form must then hold and every query must
read (see ``testing.toy_cold``), so a cache can be compared with it after anything::

    layers = [hc.LayerSpec(local=hc.Window(4, entry)), hc.LayerSpec(...)]
    model = toy.model(layers, blocks=4)
    prefixes = hc.PrefixCache(model.plan, policy=hc.ReusePolicy("namespace"))
    plan = prefixes.match(model.empty, prompt, model.identity)
    cache, lease = prefixes.acquire(model.empty, plan)
    cache, status, reads = model.step(cache, lease.inputs(prompt[plan.start :]))
    state, want = toy.held(model, cache, lease.row), toy.cold(model, prompt)
    assert toy.differences(state, want) == []

Steps take up to ``max_chunk`` tokens; token ids are digits.  In a ``chain`` the numbers
are exact for rows of up to about a thousand tokens.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hybridcache_jax.append import StepInputs
from hybridcache_jax.budget import plan_capacity
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.entry import Entry
from hybridcache_jax.forms import Form
from hybridcache_jax.identity import Identity
from hybridcache_jax.layers import LayerSpec
from hybridcache_jax.retention import Retention
from hybridcache_jax.spec import CacheSpec, Part
from hybridcache_jax.state import HybridCache, init
from hybridcache_jax.testing.audit import row_state
from hybridcache_jax.testing.toy_cold import Cold, Rows, cold, v, width
from hybridcache_jax.testing.toy_kinds import Kind, expected_plan, replay_start
from hybridcache_jax.testing.toy_step import layer_of, run_layers
from hybridcache_jax.view import StepView, begin_step, end_step

__all__ = [
    "VOCAB",
    "Cold",
    "Kind",
    "Model",
    "Rows",
    "cold",
    "differences",
    "expected_plan",
    "held",
    "model",
    "replay_start",
    "stored_blocks",
    "v",
]

VOCAB = 10

Forward = Callable[
    [StepView, jax.Array, tuple[Kind, ...], int], tuple[StepView, jax.Array]
]
Step = Callable[[HybridCache, StepInputs], tuple[HybridCache, jax.Array, jax.Array]]


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """One toy, its plan, its compiled step and an empty cache.

    Attributes:
      kinds: one per layer.
      style: ``"plain"`` or ``"chain"``; empty for a forward pass of one's own.
      plan: capacities; its spec has the layers.
      identity: complete, in the namespace of all.
      body: the step, not compiled: cache and ``StepInputs`` of ``B`` rows and ``T``
        tokens to cache, status ``[B]`` and reads ``[layers, B, T, width]``.
      step: the same, compiled.
      empty: a cache that holds nothing.
      traces: how often the body was traced, under ``"step"``.
    """

    kinds: tuple[Kind, ...]
    style: str
    plan: CapacityPlan
    identity: Identity
    body: Step
    step: Step
    empty: HybridCache
    traces: collections.Counter

    @property
    def grid(self) -> int:
        """Tokens between resume points."""
        return self.plan.spec.grid

    @property
    def max_length(self) -> int:
        """Most tokens of a row."""
        return self.plan.max_length

    @property
    def rows(self) -> int:
        """Sequences alive at once."""
        return self.plan.max_sequences

    @property
    def width(self) -> int:
        """Places of what a query reads."""
        return width(self.kinds, self.max_length)

    @property
    def parts(self) -> tuple[tuple[int, str], ...]:
        """Layer and name of every part that is kept."""
        return tuple(
            (n, part) for n, kind in enumerate(self.kinds) for part in kind.parts
        )

    def pool_of(self, layer: int, part: str | None = None) -> int:
        """Index of the pool of a part that ``layer`` owns, by default its first.

        Raises:
          ValueError: if the layer owns no such part.
        """
        kept = self.kinds[layer].parts
        found = None
        if kept and part in (None, *kept):
            found = self.plan.spec.find(layer, Part(part or kept[0]))
        if found is None:
            raise ValueError(f"Layer {layer} owns {kept}, not {part!r}.")
        return found[0]

    def block(self, layer: int, part: str | None = None) -> int:
        """Tokens per block of that pool."""
        return self.plan.spec.pools[self.pool_of(layer, part)].block_tokens


def model(
    layers: Sequence[LayerSpec | Kind],
    *,
    blocks: int | Mapping[Form, int] = 4,
    style: str = "plain",
    forward: Forward | None = None,
    entry: Entry | None = None,
    max_length: int = 24,
    max_chunk: int = 8,
    rows: int = 3,
    stored: int = 48,
    rollback: int = 0,
    retention: Retention | Mapping[Form, Retention] = Retention.every_block(),
    backend: str | None = None,
) -> Model:
    """A toy with the layers of a model; equal arguments give the same one.

    Example::

        entry = hc.Entry.kv(1, 1)  # replaced by the toy's own
        layer = hc.LayerSpec(
            local=hc.Window(4, entry), global_=hc.Entries(entry, 4, 1, raw=entry)
        )
        toy.model([layer, layer], blocks=8, style="chain")

    Args:
      layers: one record per layer; what their entries are made of does not matter.
      blocks: tokens per block, as ``CacheSpec.from_layers`` takes it.
      style: ``"plain"``: every layer keeps what the tokens alone say; ``"chain"``: what
        a layer keeps depends on what the layers below it read, as in a real model.
      forward: a pass of one's own, in place of both: view, tokens ``[B, T]``, kinds and
        ``max_length`` to view and reads.
      entry: local keys and entries of that pass.
      max_length: most tokens of a row.
      max_chunk: most tokens of a row in a step.
      rows: sequences alive at once.
      stored: tokens of stored prefixes to plan for.
      rollback: tokens by which every row can be rewound.
      retention: at which resume points bounded forms are kept, as ``plan_capacity``
        takes it.
      backend: as ``plan_capacity`` takes it.

    Raises:
      ValueError: for a style that does not exist, index keys that nothing makes, or a
        spec or plan that the library refuses.
    """
    if forward is None and style not in ("plain", "chain"):
        raise ValueError(f"style must be 'plain' or 'chain', got {style!r}.")
    kinds = tuple(kind if isinstance(kind, Kind) else Kind.of(kind) for kind in layers)
    sizes = blocks if isinstance(blocks, int) else tuple(sorted(blocks.items()))
    return _model(
        kinds,
        sizes,
        style if forward is None else "",
        forward,
        entry,
        (max_length, max_chunk, rows, stored, rollback),
        retention if isinstance(retention, Retention) else tuple(retention.items()),
        backend,
    )


def held(model: Model, cache: HybridCache, row: int) -> Cold:
    """What a row holds to go on, in the terms of :func:`cold`; without reads.

    Args:
      model: the toy.
      cache: one of its caches.
      row: a live row.
    """
    state, length = row_state(cache, row), int(cache.rows.length[row])
    parts = {}
    for layer, part in model.parts:
        pool = model.plan.spec.pools[model.pool_of(layer, part)]
        planes = dict(state[pool.name])
        positions = tuple(planes.pop("positions").tolist())
        if part == "state":
            positions = (length,) * len(positions)
        place = pool.layers.index(layer)
        parts[layer, part] = Rows(positions, {k: x[place] for k, x in planes.items()})
    return Cold(parts, np.zeros(0))


def differences(one: Cold, other: Cold) -> list[str]:
    """Where two states are not equal bit for bit; empty if they are.

    Args:
      one: a state.
      other: another of the same toy; reads are not compared.
    """
    found = []
    for layer, part in sorted(one.parts.keys() | other.parts.keys()):
        where = f"layer {layer}, {part}"
        a, b = one.parts.get((layer, part)), other.parts.get((layer, part))
        if a is None or b is None or a.positions != b.positions:
            mine, yours = (rows and rows.positions for rows in (a, b))
            found.append(f"{where}: positions {mine} against {yours}")
            continue
        for plane in sorted(a.planes.keys() | b.planes.keys()):
            x, y = (np.asarray(rows.planes.get(plane)) for rows in (a, b))
            if x.shape != y.shape or x.tobytes() != y.tobytes():
                found.append(f"{where}: plane {plane} is {x} against {y}")
    return found


def stored_blocks(model: Model, cache: HybridCache) -> dict[tuple[int, str], set[int]]:
    """Per part, the numbers of the stored blocks, where one history is stored.

    Block ``b`` of a part holds positions ``b * block .. (b + 1) * block - 1``; that of
    a state, the checkpoint taken at its end.

    Raises:
      ValueError: if a block number is stored twice: there are several histories.
    """
    found = {}
    for layer, part in model.parts:
        table = cache.tables[model.pool_of(layer, part)]
        first = np.asarray(table.first)[np.asarray(table.kept)].tolist()
        if len(set(first)) < len(first):
            raise ValueError("This cache stores more than one history.")
        found[layer, part] = {p // model.block(layer, part) for p in first}
    return found


@functools.cache
def _model(kinds, blocks, style, forward, entry, sizes, retention, backend) -> Model:
    max_length, max_chunk, rows, stored, rollback = sizes
    spec = CacheSpec.from_layers(
        [
            layer_of(kinds, n, max_length, chain=style == "chain", entry=entry)
            for n in range(len(kinds))
        ],
        block_tokens=blocks if isinstance(blocks, int) else dict(blocks),
    )
    plan = plan_capacity(
        spec,
        budget="1GiB",
        max_sequences=rows,
        max_length=max_length,
        max_chunk=max_chunk,
        stored_tokens=stored,
        rollback=rollback,
        staging_blocks=4,
        retention=retention if isinstance(retention, Retention) else dict(retention),
        backend=backend,
    )
    run = forward or functools.partial(run_layers, chain=style == "chain")
    # Whole numbers come out the same, and most of a toy's time is compilation.
    quick = forward is None and jax.default_backend() == "cpu"
    options = {"xla_backend_optimization_level": 0} if quick else None
    traces: collections.Counter = collections.Counter()

    def body(cache, inputs):
        traces["step"] += 1
        view = begin_step(cache, inputs, VOCAB)
        view, reads = run(view, jnp.asarray(inputs.tokens), kinds, max_length)
        return end_step(view), view.status, reads

    return Model(
        kinds=kinds,
        style=style,
        plan=plan,
        identity=Identity("weights", "config", spec.fingerprint),
        body=body,
        step=jax.jit(body, compiler_options=options),
        empty=init(plan),
        traces=traces,
    )
