"""The toy of the library over sessions, and models with real attention.

``hybridcache_jax.testing.toy`` has the toy and its oracle.  Here are the models that
the tests share, a session that checks every law at every change, and two more forward
passes: sums over stacked windows, and softmax attention over a residual stream, whose
oracle is a dense NumPy pass in float64.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridcache_jax as hc
from hybridcache_jax import eviction
from hybridcache_jax.codes import Stage
from hybridcache_jax.spec import Part
from hybridcache_jax.testing import toy as library
from hybridcache_jax.testing import toy_models
from hybridcache_jax.testing.audit import violations
from hybridcache_jax.testing.toy import VOCAB, Cold, Model, Rows, cold

P = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8)
WIDTH = 8  # tokens of one row in one step, in every model
# Float32 against the float64 pass: cold runs of 150 random prompts differ by up to
# 2.6e-5, with or without optimised code; a wrong read by 1e-4 and more.
FLOAT32_GAP = 4e-5


def pool_of(spec: hc.CacheSpec, layer: int) -> tuple[int, int]:
    """Pool of a layer that keeps one form, and its place on the pool's layer axis."""
    found = spec.find(layer, Part.LOCAL) or spec.find(layer, Part.ENTRIES)
    assert found is not None
    return found


# Layers that keep one part.


def Kind(rule: str, size: int = 0) -> library.Kind:
    """A layer with a ``window`` or a ``chunk``, or one with the ``full`` history."""
    return library.Kind(ratio=1) if rule == "full" else library.Kind(rule, size)


def window(size: int) -> library.Kind:
    return Kind("window", size)


def chunk(size: int) -> library.Kind:
    return Kind("chunk", size)


FULL = Kind("full")
STATE = library.Kind(recurrent=True)


def entries(ratio: int, overlap: int = 0, **more) -> library.Kind:
    """A layer with compressed entries, and what else is named."""
    return library.Kind(ratio=ratio, overlap=overlap, **more)


MIXED = (window(6), chunk(5), FULL)
FINE, CSA = toy_models.FINE, toy_models.CSA
SPARSE, RECURRENT = toy_models.SPARSE, toy_models.RECURRENT
STACKED = (window(4), window(4), FULL, window(3), FULL)
CHUNKED = (chunk(6), FULL, chunk(6))
WOVEN = (window(3), chunk(6), FULL, window(3))
# Blocks of a window are smaller than those of the history: the grid is 4.
MIXED_BLOCKS = ((hc.Form.SWA_WINDOW, 2), (hc.Form.FULL_KV, 4))


def model(
    kinds: tuple[library.Kind, ...] = MIXED,
    *,
    blocks: int | tuple[tuple[hc.Form, int], ...] = 4,
    style: str = "plain",
    **sizes,
) -> Model:
    """A toy of the library, or one with a pass of its own: ``sums`` or ``softmax``."""
    sizes["blocks"] = blocks if isinstance(blocks, int) else dict(blocks)
    if style in ("sums", "softmax"):
        entry = hc.Entry.kv(1, 1 if style == "sums" else 4)
        forward = _sums if style == "sums" else _softmax
        return library.model(kinds, forward=forward, entry=entry, **sizes)
    return library.model(kinds, style=style, **sizes)


def mixed() -> Model:
    """Window, chunk and full layers with blocks of two sizes."""
    return model(MIXED, blocks=MIXED_BLOCKS)


fine, csa = toy_models.fine, toy_models.csa
sparse, recurrent = toy_models.sparse, toy_models.recurrent
# Together they have every kind of layer.
EVERY_KIND = toy_models.EVERY_KIND


def only_window() -> Model:
    """One window layer, no history; a ring shorter than the longest row."""
    return model((window(6),), blocks=2)


def only_full() -> Model:
    """One full layer."""
    return model((FULL,))


def stacked() -> Model:
    """Three stacked window layers and two full ones, real attention."""
    return model(STACKED, style="softmax", max_length=32)


def compressed() -> Model:
    """Compressed entries without and with overlap, the full history, and a window."""
    return model((entries(4), entries(4, 1), FULL, window(3)))


def three_forms() -> Model:
    """A full layer and windows of 3 and 6 in 8 bits with scales, none of them read.

    Where only verdicts matter: quick to compile.
    """
    entry = hc.Entry(
        (
            hc.Plane("k", 1, 4, "float8_e4m3fn", scale="k_scale", run=2),
            hc.Plane("k_scale", 1, 2),
            hc.Plane("v", 1, 4, "bfloat16"),
        )
    )
    blocks = {hc.Form.SWA_WINDOW: 1, hc.Form.FULL_KV: 4}
    kinds = (FULL, window(3), window(6))
    return library.model(kinds, blocks=blocks, forward=_by_block, entry=entry)


def _by_block(view, tokens, kinds, length):
    """Keys of one magnitude per block of 4, so that every block has its own scales."""
    del length
    magnitude = 10.0 ** (view.positions // 4)
    row = ((1.0 + tokens) * magnitude)[..., None, None] * jnp.ones(4)
    for layer in range(len(kinds)):
        view = view.append(layer, k=row, v=row)
    return view, jnp.zeros((len(kinds), *tokens.shape, 1))


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


def cold_softmax(some: Model, tokens: Sequence[int]) -> Cold:
    """What ``cold`` gives, for a model with softmax attention."""
    layers, size = len(some.kinds), len(tokens)
    w = {
        name: x.astype(np.float64)
        for name, x in _weights(layers, some.max_length).items()
    }
    x = w["embed"][list(tokens)] + w["place"][:size]
    parts = {}
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
        planes = {"k": k[positions, None], "v": value[positions, None]}
        parts[layer, *kind.parts] = Rows(tuple(positions), planes)
    x = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True))
    return Cold(parts, x[None])


def replay_start(kinds: Sequence[library.Kind], point: int) -> int:
    """By the law: from the top layer down, each local layer widens by what it sees."""
    for kind in reversed(kinds):
        point = kind.first(point) if kind.local else point
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


def expected_plan(some: Model, length: int, common: int, held):
    """As the library's toy has it; ``held`` may be a list, for layers of one part."""
    if isinstance(held, list):
        held = dict(zip(some.parts, held, strict=True))
    return library.expected_plan(some, length, common, held)


stored_parts = library.stored_blocks


def stored_blocks(some: Model, cache: hc.HybridCache) -> list[set[int]]:
    """Per layer of one part, the stored blocks of a cache with one history."""
    return list(library.stored_blocks(some, cache).values())


def cuts(total: int, sizes: Sequence[int]) -> list[int]:
    """``sizes``, repeated and cut so that they add up to ``total``."""
    result = []
    while sum(result) < total:
        result.append(min(sizes[len(result) % len(sizes)], total - sum(result)))
    return result


@dataclasses.dataclass(frozen=True)
class State(Cold):
    """What a row holds; per layer, where each keeps one part."""

    @property
    def positions(self) -> tuple[tuple[int, ...], ...]:
        return tuple(rows.positions for rows in self.parts.values())

    @property
    def k(self) -> tuple[np.ndarray, ...]:
        return tuple(rows.planes["k"] for rows in self.parts.values())

    @property
    def v(self) -> tuple[np.ndarray, ...]:
        return tuple(rows.planes["v"] for rows in self.parts.values())


def marked(names: Iterable[str], *quick: str) -> list:
    """Names of models: the slow suite runs those that are not quick."""
    return [
        name if name in quick else pytest.param(name, marks=pytest.mark.slow)
        for name in names
    ]


# Running.


class Session:
    """One cache and its stored prefixes; every law is checked at every change.

    Args:
      some: the model.
      cache: what to begin with; empty by default.
      step: the step to run; the model's own by default.
      metrics: where to count; by default nowhere.
      options: for the ``PrefixCache``.
    """

    def __init__(
        self,
        some: Model,
        cache: hc.HybridCache | None = None,
        step: Callable | None = None,
        metrics: hc.Metrics = hc.Metrics(),
        **options: Any,
    ):
        self.model = some
        self.metrics = metrics
        self.cache = some.empty if cache is None else cache
        self.step = some.step if step is None else step
        options.setdefault("policy", hc.ReusePolicy("namespace"))
        self.prefixes = hc.PrefixCache(some.plan, metrics=metrics, **options)

    def put(self, cache: hc.HybridCache) -> None:
        """Takes over a cache that obeys the laws."""
        assert violations(cache) == []
        assert shared_unsealed(cache) == []
        self.cache = cache

    def branch(self, cache: hc.HybridCache) -> None:
        """Goes on from an older value, which the library itself refuses.

        Two futures of one value are compared with it; each goes on alone.
        """
        self.prefixes._line.newest = int(cache.stamp)
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
        before = [self.length(lease) for lease, _ in parts]
        cache, status, reads = self.step(self.cache, self.inputs(parts))
        self.put(cache)
        statuses = [hc.Status(int(s)) for s in status][: len(parts)]
        for (lease, tokens), at, one in zip(parts, before, statuses, strict=True):
            self.metrics.ran(lease.plan, at, len(tokens), one)
        return statuses, np.asarray(reads)

    def feed(self, lease, tokens, sizes: Sequence[int] = (WIDTH,)) -> np.ndarray:
        """Runs tokens of one row in steps of ``sizes``; its reads [layers, n, ..]."""
        at, reads = 0, []
        for size in cuts(len(tokens), sizes):
            (status,), out = self.run((lease, tokens[at : at + size]))
            assert status == hc.Status.OK, status.explanation
            reads.append(out[:, 0, :size])
            at += size
        if not reads:
            return np.zeros((len(self.model.kinds), 0, self.model.width))
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

    def lose(self, layer: int, block: int, tokens, part: str | None = None) -> None:
        """Evicts one stored block behind the index's back."""
        pool = self.model.pool_of(layer, part)
        claims = self.match(tokens).claims
        table = self.cache.tables[pool]
        wanted = claims.blocks[pool][block]
        aged = dataclasses.replace(table, used=table.used.at[wanted].set(-1))
        table = eviction.evict(aged, jnp.int32(1))
        assert table.stage[wanted] == Stage.FREE
        tables = list(self.cache.tables)
        tables[pool] = table
        self.put(dataclasses.replace(self.cache, tables=tuple(tables)))

    def length(self, lease) -> int:
        return int(self.cache.rows.length[lease.row])

    def state(self, lease) -> State:
        """What the row holds to go on; ``reads`` is empty."""
        return State(**vars(library.held(self.model, self.cache, lease.row)))

    def check(self, lease, tokens) -> None:
        """The row holds what ``cold(tokens)`` holds, bit for bit, and says so."""
        assert self.length(lease) == len(tokens)
        assert_same_state(self.state(lease), cold(self.model, tokens))

    def answer(self, prompt) -> hc.ResumePlan:
        """Admits a prompt and runs the rest of it: the state is that of a cold run."""
        lease = self.admit(prompt)
        self.feed(lease, prompt[lease.plan.start :])
        self.check(lease, prompt)
        self.release(lease, publish=False)
        return lease.plan

    def on_the_line_of(self, other: "Session") -> None:
        """Gives the tickets that another one gives, to compare caches bit for bit."""
        self.prefixes._line.name = other.prefixes._line.name


def assert_same_state(one: Cold, other: Cold) -> None:
    """Equal positions and equal entries, bit for bit."""
    assert library.differences(one, other) == []


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
    gaps = []
    for where, mine in one.parts.items():
        yours = other.parts[where]
        assert common or mine.positions == yours.positions
        both = sorted(set(mine.positions) & set(yours.positions))
        a, b = ([rows.positions.index(p) for p in both] for rows in (mine, yours))
        for name, plane in mine.planes.items():
            gaps += np.abs(plane[a] - yours.planes[name][b]).ravel().tolist()
    return max(gaps)


def shared_unsealed(cache: hc.HybridCache) -> list[str]:
    """Blocks that two live rows refer to although they are not finished."""
    found = []
    live = np.asarray(cache.rows.live)
    for index, pool in enumerate(cache.plan.spec.pools):
        stage = np.asarray(cache.tables[index].stage)
        ids = np.asarray(cache.rows.blocks[index])[live]
        seen = np.bincount(ids[ids < len(stage)], minlength=len(stage))
        # What was quarantined under two rows is read by neither.
        whole = (stage == Stage.SEALED) | (stage == Stage.QUARANTINED)
        bad = np.flatnonzero((seen > 1) & ~whole)
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

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs, kwargs
        if event.startswith("/jax/core/compile/"):
            counter["compiled"] += 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    return counter
