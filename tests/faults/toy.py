"""Toy models over the real cache, and an oracle that shares no code with it.

The entry of token ``t`` at position ``p`` is ``v(p) = 10 p + t``.  It is stored as a
row of numbers with ``v(p)`` in place ``p`` and zeros elsewhere, and read with equal
weights: a query that sees the positions ``Q`` reads ``v(q) / len(Q)`` in every place
``q`` of ``Q``.  A missing, doubled, foreign or misplaced entry shows in the numbers,
and every stored number is exact in float32.

``stacked`` models have real softmax attention over a residual stream instead; their
oracle is a dense NumPy forward pass in float64.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

import hybridcache_jax as hc
from hybridcache_jax import lifecycle
from hybridcache_jax.codes import Stage
from hybridcache_jax.spec import Part
from hybridcache_jax.testing.audit import row_state, violations

P = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8)
VOCAB = 10
WIDTH = 8  # tokens of one row in one step, in every model


def pool_of(spec: hc.CacheSpec, layer: int) -> tuple[int, int]:
    """Pool of a layer that keeps one form, and its place on the pool's layer axis."""
    found = spec.find(layer, Part.LOCAL) or spec.find(layer, Part.ENTRIES)
    assert found is not None
    return found


def v(tokens: Sequence[int]) -> list[int]:
    """The values of the toy's entries."""
    return [10 * p + t for p, t in enumerate(tokens)]


@dataclasses.dataclass(frozen=True)
class Kind:
    """How a layer sees, said once more for the oracle."""

    rule: str
    size: int = 0

    def first(self, position: int) -> int:
        """First position that the query at ``position`` sees."""
        if self.rule == "window":
            return max(0, position - self.size + 1)
        if self.rule == "chunk":
            return position - position % self.size
        return 0

    def layer(self, entry: hc.Entry) -> hc.LayerSpec:
        """The layer record of the library."""
        if self.rule == "window":
            return hc.LayerSpec(local=hc.Window(self.size, entry))
        if self.rule == "chunk":
            return hc.LayerSpec(local=hc.Chunk(self.size, entry))
        return hc.LayerSpec(global_=hc.Entries(entry))


def window(size: int) -> Kind:
    return Kind("window", size)


def chunk(size: int) -> Kind:
    return Kind("chunk", size)


FULL = Kind("full")

MIXED = (window(6), chunk(5), FULL)
FINE = (window(3), window(4), FULL)
STACKED = (window(4), window(4), FULL, window(3), FULL)
CHUNKED = (chunk(6), FULL, chunk(6))
WOVEN = (window(3), chunk(6), FULL, window(3))
# Blocks of a window are smaller than those of the history: the grid is 4.
MIXED_BLOCKS = ((hc.Form.SWA_WINDOW, 2), (hc.Form.FULL_KV, 4))


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """One model, its plan, its compiled step and an empty cache."""

    kinds: tuple[Kind, ...]
    plan: hc.CapacityPlan
    identity: hc.Identity
    body: Callable  # the step, not compiled
    step: Callable  # (cache, inputs) -> cache, status [B], reads [layers, B, T, ...]
    empty: hc.HybridCache
    traces: collections.Counter

    @property
    def grid(self) -> int:
        return self.plan.spec.grid

    @property
    def max_length(self) -> int:
        return self.plan.max_length

    @property
    def rows(self) -> int:
        return self.plan.max_sequences

    def pool_of(self, layer: int) -> int:
        """Index of the pool that holds the entries of ``layer``."""
        pool = pool_of(self.plan.spec, layer)[0]
        return pool

    def block(self, layer: int) -> int:
        """Tokens per block of the pool of ``layer``."""
        return self.plan.spec.pools[self.pool_of(layer)].block_tokens


@functools.cache
def model(
    kinds: tuple[Kind, ...] = MIXED,
    *,
    blocks: int | tuple[tuple[hc.Form, int], ...] = 4,
    style: str = "plain",
    max_length: int = 24,
    max_chunk: int = WIDTH,
    rows: int = 3,
    stored: int = 48,
) -> Model:
    """A model; built once per process, so that its step compiles once.

    Args:
      kinds: one per layer.
      blocks: tokens per block, one number or pairs of form and number.
      style: ``plain`` entries ``v(p)``, window ``sums`` that feed the next layer, or
        a residual stream with ``softmax`` attention.
      max_length: most tokens of a row.
      max_chunk: most tokens of a row in a step.
      rows: sequences alive at once.
      stored: tokens of stored prefixes to plan for.
    """
    forwards = {"plain": _plain, "sums": _sums, "softmax": _softmax}
    entries = {"plain": _row(max_length), "sums": _row(1), "softmax": hc.Entry.kv(1, 4)}
    spec = hc.CacheSpec.from_layers(
        [kind.layer(entries[style]) for kind in kinds],
        block_tokens=blocks if isinstance(blocks, int) else dict(blocks),
    )
    plan = hc.plan_capacity(
        spec,
        budget="8MiB",
        max_sequences=rows,
        max_length=max_length,
        max_chunk=max_chunk,
        stored_tokens=stored,
    )
    traces: collections.Counter = collections.Counter()

    def body(cache, inputs):
        traces["step"] += 1
        view = hc.begin_step(cache, inputs, VOCAB)
        view, reads = forwards[style](view, inputs.tokens, kinds, max_length)
        return hc.end_step(view), view.status, reads

    return Model(
        kinds=kinds,
        plan=plan,
        identity=hc.Identity("weights", "config", spec.fingerprint),
        body=body,
        step=jax.jit(body),
        empty=hc.init(plan),
        traces=traces,
    )


def mixed() -> Model:
    """Window, chunk and full layers with blocks of two sizes."""
    return model(MIXED, blocks=MIXED_BLOCKS)


def fine() -> Model:
    """Blocks of one token, so that every position is a resume point."""
    return model(FINE, blocks=1)


def only_window() -> Model:
    """One window layer, no history; a ring shorter than the longest row."""
    return model((window(6),), blocks=2)


def only_full() -> Model:
    """One full layer."""
    return model((FULL,))


def stacked() -> Model:
    """Three stacked window layers and two full ones, real attention."""
    return model(STACKED, style="softmax", max_length=32)


def _row(dim: int) -> hc.Entry:
    return hc.Entry((hc.Plane("k", 1, 1), hc.Plane("v", 1, dim)))


def _plain(view, tokens, kinds, length):
    """Entries ``v(p)`` in place ``p``; equal weights."""
    value = (10 * view.positions + tokens).astype(jnp.float32)
    place = view.positions[..., None] == jnp.arange(length)
    rows = (value[..., None] * place)[:, :, None, :]
    keys = value[:, :, None, None]
    reads = []
    for layer in range(len(kinds)):
        view = view.append(layer, k=keys, v=rows)
        reads.append(view.attend(layer, keys, scale=0.0)[:, :, 0])
    return view, jnp.stack(reads)


def _sums(view, tokens, kinds, length):
    """Layer ``l`` stores h(l), and h(l+1) is the sum of h(l) over the window."""
    del length
    h = tokens.astype(jnp.float32)[:, :, None, None]
    reads = []
    for layer, kind in enumerate(kinds):
        reads.append(h[:, :, 0])
        view = view.append(layer, k=h, v=h)
        seen = jnp.minimum(view.positions + 1, kind.size)[..., None, None]
        h = jnp.round(view.attend(layer, h, scale=0.0) * seen)
    return view, jnp.stack(reads)


_DIM, _HEADS = 8, 2


@functools.cache
def _weights(layers: int, length: int) -> dict[str, np.ndarray]:
    """Fixed random weights, float32."""
    random = np.random.default_rng(7)

    def draw(*shape, scale):
        return (scale * random.standard_normal(shape)).astype(np.float32)

    return {
        "embed": draw(VOCAB, _DIM, scale=1.0),
        "place": draw(length, _DIM, scale=0.5),
        "q": draw(layers, _DIM, _DIM, scale=0.5),
        "k": draw(layers, _DIM, _DIM // _HEADS, scale=0.5),
        "v": draw(layers, _DIM, _DIM // _HEADS, scale=0.8),
        "out": draw(layers, _DIM, _DIM, scale=0.6),
        "mlp": draw(layers, _DIM, _DIM, scale=0.4),
    }


def _softmax(view, tokens, kinds, length):
    """A small residual stream with softmax attention in every layer."""
    w = {name: jnp.asarray(x) for name, x in _weights(len(kinds), length).items()}
    place = jnp.take(w["place"], view.positions, axis=0, mode="clip")
    x = jnp.take(w["embed"], tokens, axis=0, mode="clip") + place
    shape = tokens.shape
    for layer in range(len(kinds)):
        h = x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        view = view.append(
            layer,
            k=(h @ w["k"][layer]).reshape(*shape, 1, -1),
            v=(h @ w["v"][layer]).reshape(*shape, 1, -1),
        )
        query = (h @ w["q"][layer]).reshape(*shape, _HEADS, -1)
        read = view.attend(layer, query, scale=0.5).reshape(*shape, _DIM)
        x = x + read @ w["out"][layer]
        x = x + jnp.tanh(x @ w["mlp"][layer])
    return view, (x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True)))[None]


# The oracle: plain NumPy, nothing of the library.


@dataclasses.dataclass(frozen=True)
class Cold:
    """What running tokens from nothing leaves, per layer."""

    positions: tuple[tuple[int, ...], ...]  # required to go on
    k: tuple[np.ndarray, ...]  # [n, heads, dim] each
    v: tuple[np.ndarray, ...]  # [n, heads, dim] each
    reads: np.ndarray  # [layers, T, ...] or [1, T, dim]


def cold(some: Model, tokens: Sequence[int]) -> Cold:
    """All forms after running ``tokens`` of a plain model from nothing."""
    size, width = len(tokens), some.max_length
    rows = np.zeros((size, 1, width), np.float32)
    for p, value in enumerate(v(tokens)):
        rows[p, 0, p] = value
    keys = np.array(v(tokens), np.float32).reshape(size, 1, 1)
    reads = np.zeros((len(some.kinds), size, width), np.float32)
    for layer, kind in enumerate(some.kinds):
        for p in range(size):
            seen = range(kind.first(p), p + 1)
            for q in seen:
                reads[layer, p, q] = np.float32(v(tokens)[q]) / np.float32(len(seen))
    kept = [list(range(kind.first(size), size)) for kind in some.kinds]
    return Cold(
        positions=tuple(map(tuple, kept)),
        k=tuple(keys[positions] for positions in kept),
        v=tuple(rows[positions] for positions in kept),
        reads=reads,
    )


def cold_softmax(some: Model, tokens: Sequence[int]) -> Cold:
    """The same for a model with softmax attention: a dense pass in float64."""
    layers, size = len(some.kinds), len(tokens)
    w = {
        name: x.astype(np.float64)
        for name, x in _weights(layers, some.max_length).items()
    }
    x = w["embed"][list(tokens)] + w["place"][:size]
    kept, ks, vs = [], [], []
    for layer, kind in enumerate(some.kinds):
        h = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        k, value = h @ w["k"][layer], h @ w["v"][layer]
        query = (h @ w["q"][layer]).reshape(size, _HEADS, -1)
        read = np.zeros((size, _HEADS, _DIM // _HEADS))
        for p in range(size):
            seen = slice(kind.first(p), p + 1)
            score = np.exp(0.5 * query[p] @ k[seen].T)
            read[p] = score @ value[seen] / score.sum(axis=-1, keepdims=True)
        x = x + read.reshape(size, _DIM) @ w["out"][layer]
        x = x + np.tanh(x @ w["mlp"][layer])
        positions = list(range(kind.first(size), size))
        kept.append(tuple(positions))
        ks.append(k[positions, None])
        vs.append(value[positions, None])
    x = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True))
    return Cold(tuple(kept), tuple(ks), tuple(vs), x[None])


def replay_start(kinds: Sequence[Kind], point: int) -> int:
    """By the law: from the top layer down, each local layer widens by what it sees."""
    for kind in reversed(kinds):
        if kind.rule != "full":
            point = kind.first(point)
    return point


def all_blocks(some: Model, length: int) -> list[set[int]]:
    """Per layer, every whole block of a history of ``length`` tokens."""
    whole = length - length % some.grid
    return [set(range(whole // some.block(n))) for n in range(len(some.kinds))]


def kept_blocks(some: Model, sizes: Sequence[int]) -> list[set[int]]:
    """Per layer, blocks left by a run in steps of ``sizes`` and stored at its end.

    The last step lets go of what its first query does not see any more.
    """
    last = sum(sizes[:-1])
    return [
        {b for b in blocks if (b + 1) * some.block(layer) > kind.first(last)}
        for layer, (kind, blocks) in enumerate(
            zip(some.kinds, all_blocks(some, sum(sizes)), strict=True)
        )
    ]


def expected_plan(
    some: Model, length: int, common: int, held: Sequence[set[int]]
) -> tuple[hc.Verdict, int, int]:
    """Verdict, resume point and start that a search over all points gives.

    Args:
      some: the model.
      length: tokens of the prompt.
      common: tokens it shares with the stored history.
      held: per layer, the blocks that are there.
    """

    def there(layer, point):
        lo, size = some.kinds[layer].first(point), some.block(layer)
        return all(q // size in held[layer] for q in range(lo, point))

    layers = range(len(some.kinds))
    resumable, replays = [0], []
    for point in range(0, min(common, length - 1) + 1, some.grid):
        missing = [n for n in layers if not there(n, point)]
        if not missing:
            resumable.append(point)
        elif all(some.kinds[n].rule != "full" for n in missing):
            replays.append((replay_start(some.kinds, point), point))
    best, (start, point) = max(resumable), max(replays, default=(0, 0))
    if start > best:
        return hc.Verdict.NEEDS_PARTIAL_RECOMPUTE, point, start
    if best:
        return hc.Verdict.RESUMABLE, best, best
    return hc.Verdict.NEEDS_FULL_RECOMPUTE, 0, 0


def cuts(total: int, sizes: Sequence[int]) -> list[int]:
    """``sizes``, repeated and cut so that they add up to ``total``."""
    result = []
    while sum(result) < total:
        result.append(min(sizes[len(result) % len(sizes)], total - sum(result)))
    return result


# Running.


@dataclasses.dataclass
class Session:
    """One cache and its stored prefixes; every law is checked at every change."""

    model: Model
    cache: hc.HybridCache | None = None
    step: Callable | None = None

    def __post_init__(self):
        self.cache = self.model.empty if self.cache is None else self.cache
        self.step = self.model.step if self.step is None else self.step
        self.prefixes = hc.PrefixCache(self.model.plan)

    def put(self, cache: hc.HybridCache) -> None:
        """Takes over a cache that obeys the laws."""
        assert violations(cache) == []
        assert shared_unsealed(cache) == []
        self.cache = cache

    def branch(self, cache: hc.HybridCache) -> None:
        """Goes on from an older value, which the library itself refuses.

        Two futures of one value are compared with it; each goes on alone.
        """
        self.prefixes._stamp = int(cache.stamp)
        self.cache = cache

    def match(self, tokens) -> hc.ResumePlan:
        return self.prefixes.match(self.cache, tokens, self.model.identity)

    def admit(self, tokens) -> hc.Lease:
        """A lease for a prompt; its row stands at ``lease.plan.start``."""
        return self.acquire(self.match(tokens))

    def acquire(self, plan: hc.ResumePlan) -> hc.Lease:
        cache, lease = self.prefixes.acquire(self.cache, plan)
        self.put(cache)
        return lease

    def inputs(self, parts) -> hc.StepInputs:
        return hc.batch_inputs(parts, batch=self.model.rows, width=WIDTH)

    def run(self, *parts) -> tuple[list[hc.Status], np.ndarray]:
        """One step of ``(lease, tokens)`` pairs: statuses, reads [layers, B, T, ..]."""
        cache, status, reads = self.step(self.cache, self.inputs(parts))
        self.put(cache)
        return [hc.Status(int(s)) for s in status][: len(parts)], np.asarray(reads)

    def feed(self, lease, tokens, sizes: Sequence[int] = (WIDTH,)) -> np.ndarray:
        """Runs tokens of one row in steps of ``sizes``; its reads [layers, n, ..]."""
        at, reads = 0, []
        for size in cuts(len(tokens), sizes):
            (status,), out = self.run((lease, tokens[at : at + size]))
            assert status == hc.Status.OK, status.explanation
            reads.append(out[:, 0, :size])
            at += size
        if not reads:
            return np.zeros((len(self.model.kinds), 0, self.model.max_length))
        return np.concatenate(reads, axis=1)

    def publish(self, lease) -> None:
        self.put(self.prefixes.publish(self.cache, lease))

    def release(self, lease, *, publish: bool = True) -> None:
        self.put(self.prefixes.release(self.cache, lease, publish=publish))

    def store(self, tokens, sizes=(WIDTH,), *, each: bool = False) -> None:
        """Runs a history cold or resumed and stores it; ``each``: after every step."""
        lease = self.admit(tokens)
        at = lease.plan.start
        for size in cuts(len(tokens) - at, sizes):
            self.feed(lease, tokens[at : at + size])
            at += size
            if each:
                self.publish(lease)
        self.release(lease)

    def evict(self, form: hc.Form) -> None:
        self.put(self.prefixes.evict(self.cache, form))

    def lose(self, layer: int, block: int, tokens) -> None:
        """Evicts one stored block behind the index's back."""
        pool = self.model.pool_of(layer)
        claims = self.match(tokens).claims
        table = self.cache.tables[pool]
        wanted = claims.blocks[pool][block]
        aged = dataclasses.replace(table, used=table.used.at[wanted].set(-1))
        table = lifecycle.evict(aged, jnp.int32(1))
        assert table.stage[wanted] == Stage.FREE
        tables = list(self.cache.tables)
        tables[pool] = table
        self.put(dataclasses.replace(self.cache, tables=tuple(tables)))

    def length(self, lease) -> int:
        return int(self.cache.rows.length[lease.row])

    def state(self, lease) -> Cold:
        """What the row holds to go on, per layer; ``reads`` is empty."""
        state = row_state(self.cache, lease.row)
        positions, ks, vs = [], [], []
        for layer in range(len(self.model.kinds)):
            pool, place = pool_of(self.model.plan.spec, layer)
            held = state[self.model.plan.spec.pools[pool].name]
            positions.append(tuple(held["positions"].tolist()))
            ks.append(held["k"][place])
            vs.append(held["v"][place])
        return Cold(tuple(positions), tuple(ks), tuple(vs), np.zeros(0))

    def check(self, lease, tokens) -> None:
        """The row holds what ``cold(tokens)`` holds, bit for bit, and says so."""
        assert self.length(lease) == len(tokens)
        assert_same_state(self.state(lease), cold(self.model, tokens))


def assert_same_state(one: Cold, other: Cold) -> None:
    """Equal positions and equal entries, bit for bit."""
    assert one.positions == other.positions
    for a, b in zip(one.k + one.v, other.k + other.v, strict=True):
        np.testing.assert_array_equal(a, b)


def assert_same_reads(reads: np.ndarray, want: np.ndarray) -> None:
    """Equal up to the rounding of one division; zeros are exact."""
    np.testing.assert_allclose(reads, want, rtol=3e-7, atol=0)


def state_gap(one: Cold, other: Cold, *, common: bool = False) -> float:
    """Largest difference of any entry.

    Args:
      one: a state.
      other: another; its positions must be the same.
      common: compare the positions that both hold, there must be some.
    """
    assert common or one.positions == other.positions
    gaps = []
    for layer, (mine, yours) in enumerate(
        zip(one.positions, other.positions, strict=True)
    ):
        both = sorted(set(mine) & set(yours))
        a, b = ([held.index(p) for p in both] for held in (mine, yours))
        for x, y in ((one.k, other.k), (one.v, other.v)):
            gaps += np.abs(x[layer][a] - y[layer][b]).ravel().tolist()
    return max(gaps)


def stored_blocks(some: Model, cache: hc.HybridCache) -> list[set[int]]:
    """Per layer, the stored blocks of a cache that stores one history only."""
    found = []
    for layer in range(len(some.kinds)):
        table = cache.tables[some.pool_of(layer)]
        first = np.asarray(table.first)[np.asarray(table.kept)]
        assert len(set(first.tolist())) == len(first)
        found.append(set((first // some.block(layer)).tolist()))
    return found


def shared_unsealed(cache: hc.HybridCache) -> list[str]:
    """Blocks that two live rows refer to although they are not finished."""
    found = []
    live = np.asarray(cache.rows.live)
    for index, pool in enumerate(cache.plan.spec.pools):
        stage = np.asarray(cache.tables[index].stage)
        ids = np.asarray(cache.rows.blocks[index])[live]
        seen = np.bincount(ids[ids < len(stage)], minlength=len(stage))
        bad = np.flatnonzero((seen > 1) & (stage != Stage.SEALED))
        found += [f"{pool.name}: block {block} is shared and open" for block in bad]
    return found


def leaves_equal(a, b) -> bool:
    """Whether two trees are equal bit for bit, NaN included."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


def unchanged(before: hc.HybridCache, after: hc.HybridCache) -> bool:
    """Whether nothing but the clock and the stamp differs."""
    after = dataclasses.replace(after, clock=before.clock, stamp=before.stamp)
    return leaves_equal(before, after)


def kept_bytes(cache: hc.HybridCache) -> dict[tuple[int, int, int], bytes]:
    """Contents of every stored block, by pool, id and epoch."""
    found = {}
    for index, pool in enumerate(cache.pools):
        table = cache.tables[index]
        planes = [np.asarray(plane) for plane in pool.values()]
        for block in np.flatnonzero(np.asarray(table.kept)).tolist():
            key = (index, block, int(np.asarray(table.epoch)[block]))
            found[key] = b"".join(plane[:, block].tobytes() for plane in planes)
    return found


def compilations() -> int:
    """Traces, lowerings and compilations of this process since the first call."""
    return _counter()["compiled"]


@functools.cache
def _counter() -> collections.Counter:
    counter: collections.Counter = collections.Counter()

    def listen(event: str, duration: float, **kwargs) -> None:
        del duration, kwargs
        if event.startswith("/jax/core/compile/"):
            counter["compiled"] += 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    return counter
