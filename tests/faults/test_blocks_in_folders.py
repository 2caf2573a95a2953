"""K11, K15, K16 on disk: what comes back is what was written, whole, or nothing.

Every reader is a new process: it knows of a record what lies in the folder.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from saved import Saved

import hybridcache_jax as hc
from hybridcache_jax import Entries, Entry, LayerSpec, Plane, Verdict, append
from hybridcache_jax.lineage import OnFacts
from hybridcache_jax.testing.stores import Inline

P = list(toy.P)
CHAT = [*P, 9, 7, 9, 3]
E8M0 = "float8_e8m0fnu"


def scaled(scales, dtype="float8_e4m3fn"):
    return Entry((Plane("k", 1, 8, dtype, scale="s", run=4), Plane("s", 1, scales)))


# Layouts with one thing in which each differs from another.
LAYOUTS = {
    "float32": ([Entry((Plane("k", 1, 8),))], 4),
    "bfloat16": ([Entry((Plane("k", 1, 8, "bfloat16"),))], 4),
    "float16, as wide": ([Entry((Plane("k", 1, 8, "float16"),))], 4),
    "bfloat16, twice as many": ([Entry((Plane("k", 1, 16, "bfloat16"),))], 4),
    "in two planes": ([Entry.kv(1, 4)], 4),
    "two layers": ([Entry((Plane("k", 1, 8),))] * 2, 4),
    "longer blocks": ([Entry((Plane("k", 1, 8),))], 8),
    "scaled": ([scaled(2)], 4),
    "scaled, padded": ([scaled(4)], 4),
    "scaled int8": ([scaled(2, "int8")], 4),
    "packed halves": (
        [
            Entry(
                (
                    Plane("k", 1, 8, "float4_e2m1fn", scale="s", run=4),
                    Plane("s", 1, 2, E8M0),
                )
            )
        ],
        4,
    ),
}


class Bare:
    """A process that serves no model: its steps write facts, and no entries."""

    def __init__(self, layout, folder, identity=None):
        entries, block = LAYOUTS[layout]
        layers = [LayerSpec(global_=Entries(entry)) for entry in entries]
        spec = hc.CacheSpec.from_layers(layers, block_tokens=block)
        plan = hc.CapacityPlan(spec, 1, 24, 24, (8,), "cpu", staging_blocks=2)
        self.identity = hc.Identity("w", "c", identity or spec.fingerprint)
        self.cache = hc.init(plan)
        tier = hc.HostTier(plan, budget="1MiB", known_tokens=24)
        self.prefixes = hc.PrefixCache(
            plan,
            policy=hc.ReusePolicy("namespace"),
            tier=tier,
            store=hc.ObjectStore(folder),
            executor=Inline(),
        )

    def match(self, tokens):
        return self.prefixes.match(self.cache, tokens, self.identity)

    def fill(self, random):
        """Any bits, in every byte of the pools; what they are then."""
        (pool,) = self.cache.pools
        bits = {
            name: np.frombuffer(random.bytes(plane.nbytes), np.uint8)
            .view(plane.dtype)
            .reshape(plane.shape)
            for name, plane in pool.items()
        }
        pools = ({name: jnp.asarray(plane) for name, plane in bits.items()},)
        self.cache = dataclasses.replace(self.cache, pools=pools)
        return self.bits()

    def bits(self):
        (pool,) = self.cache.pools
        return {name: np.array(plane) for name, plane in pool.items()}

    def store(self, tokens):
        """Stores whatever lies in the blocks that a prompt gets."""
        plan = self.prefixes.cold_plan(tokens, self.identity)
        cache, lease = self.prefixes.acquire(self.cache, plan)
        inputs = hc.batch_inputs([(lease, tokens)], batch=1, width=24)
        self.cache = self.prefixes.release(FACTS(cache, inputs), lease)
        ids = self.match([*tokens, 0]).claims.blocks[0]
        self.cache = self.prefixes.flush(self.cache)
        return ids

    def of(self, bits, ids):
        """Bytes of blocks, by plane."""
        return {name: plane[:, ids].tobytes() for name, plane in bits.items()}


def _facts(cache, inputs):
    cache, step = append.begin(cache, inputs, toy.VOCAB)
    return append.end(cache, step)


FACTS = OnFacts(_facts)


@pytest.mark.kind("K11")
@pytest.mark.on_disk("K11")
@settings(max_examples=10)
@example("float32", "the same", True, 0)
@example("float32", "bfloat16, twice as many", False, 0)
@given(
    written=st.sampled_from(sorted(LAYOUTS)),
    read=st.sampled_from(["the same", *sorted(LAYOUTS)]),
    honest=st.booleans(),
    seed=st.integers(0, 99),
)
def test_bits_come_back_as_they_were_or_the_layout_is_refused(
    tmp_path_factory, written, read, honest, seed
):
    """Into memory full of other bits, of which a refusal changes none.

    Who is not honest gives the identity of the writer to a plan of another layout.
    """
    folder, random = tmp_path_factory.mktemp("bits"), np.random.default_rng(seed)
    first = Bare(written, folder)
    before = first.fill(random)
    own = first.of(before, first.store(CHAT))
    read = written if read == "the same" else read
    second = Bare(read, folder, None if honest else first.identity.layout)
    was = second.fill(random)
    waits = second.match([*CHAT, 0])
    if read != written:
        assert (waits.verdict, waits.length) == (Verdict.NEEDS_FULL_RECOMPUTE, 0)
        second.cache, reports = second.prefixes.poll(second.cache)
        assert reports == ()
        ids = np.arange(len(second.cache.tables[0].stage))
        assert second.of(second.bits(), ids) == second.of(was, ids)
        return
    assert (waits.verdict, waits.length) == (Verdict.NEEDS_IO, len(CHAT))
    second.prefixes.load(second.cache, waits)
    second.cache, (report,) = second.prefixes.poll(second.cache)
    assert report.ready
    ids = second.match([*CHAT, 0]).claims.blocks[0]
    now = second.bits()
    assert second.of(now, ids) == own
    others = np.setdiff1d(np.arange(len(second.cache.tables[0].stage)), ids)
    assert second.of(now, others) == second.of(was, others)


@functools.cache
def full():
    return toy.model((toy.FULL,), max_length=24)


@functools.cache
def donating():
    return jax.jit(full().body, donate_argnums=0)


OTHER = [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 1, 8]
PROMPTS = (CHAT, [*P[:8], 0, 0, 0, 0], OTHER)
CALLS = ("store", "store", "poll", "save", "evict", "ask", "answer", "restart")


@pytest.mark.slow
@pytest.mark.kind("K15")
@pytest.mark.on_disk("K15")
@settings(max_examples=4)
@given(
    acts=st.lists(
        st.tuples(st.sampled_from(CALLS), st.integers(0, 2)), min_size=4, max_size=10
    ),
    threads=st.booleans(),
)
def test_saves_hold_what_was_there_when_they_were_called(
    tmp_path_factory, acts, threads
):
    """Saves go on while steps donate the memory, blocks leave it and buffers change.

    A load is not read before it is reported, and once it is for good.
    """
    store = hc.ObjectStore(tmp_path_factory.mktemp("order"))

    def process():
        executor = None if threads else Inline()
        return Saved(full(), store, step=donating(), executor=executor, patience=30.0)

    def poll():
        """As a server does between two steps."""
        for report in session.poll():
            if report.ready:
                asked = loads.pop(report.load)
                assert session.match(asked).verdict == Verdict.RESUMABLE

    session, loads, published = process(), {}, set()
    for act, number in acts:
        prompt = PROMPTS[number]
        if act == "store":
            lent = np.array(prompt, np.int32)
            lease = session.acquire(
                session.prefixes.cold_plan(lent, session.model.identity)
            )
            for at in range(0, len(prompt), 4):
                lent[:4] = prompt[at : at + 4]
                session.feed(lease, lent[:4])
                lent[:] = 9
                session.publish(lease)
                poll()
            session.release(lease)
            published.add(number)
        elif act == "poll":
            poll()
        elif act == "save":
            session.save()
        elif act == "evict":
            session.move_out()
        elif act == "ask":
            if session.match([*prompt, 0]).verdict == Verdict.NEEDS_IO:
                loads[session.ask([*prompt, 0])] = [*prompt, 0]
        elif act == "answer":
            session.answer([*prompt, 0])
        elif act == "restart":
            session.save()
            session.prefixes.close()
            session, loads = process(), {}
    session.save()
    assert set(session.ends()) <= {"saved", "there", "merged"}
    session.prefixes.close()
    for number in published:
        prompt = PROMPTS[number]
        reader = Saved(full(), store)
        assert reader.load([*prompt, 0]).ready
        assert reader.answer([*prompt, 0]).length == len(prompt)


class Looked:
    """A folder that is looked at before and after everything that is written there."""

    def __init__(self, path, look):
        self.store, self.look = hc.ObjectStore(path), look

    def put(self, name, data):
        self.look()
        self.store.put(name, data)
        self.look()

    def __getattr__(self, name):
        return getattr(self.store, name)


@pytest.mark.kind("K16")
@pytest.mark.on_disk("K16")
@settings(max_examples=4)
@given(
    count=st.integers(1, 3),
    replicas=st.integers(1, 2),
    order=st.lists(st.integers(0, 1), max_size=12),
    prompt=st.sampled_from([CHAT, P, P[:8]]),
)
def test_equal_prompts_are_one_record_that_is_never_found_half_written(
    tmp_path_factory, count, replicas, order, prompt
):
    """Of one batch, and of processes on one folder that save in any order."""
    folder, lengths = tmp_path_factory.mktemp("equal"), []

    def look():
        """What a new process finds at this moment is all there."""
        reader = Saved(full(), hc.ObjectStore(folder))
        plan = reader.match([*prompt, 0])
        lengths.append(plan.length)
        if plan.length:
            assert reader.load([*prompt, 0]).ready
            reader.answer([*prompt, 0])

    sessions = [Saved(full(), Looked(folder, look)) for _ in range(replicas)]
    for session in sessions:
        leases = [session.admit(prompt) for _ in range(count)]
        for at in range(0, len(prompt), 8):
            parts = [(lease, prompt[at : at + 8]) for lease in leases]
            session.run(*parts)
        for lease in leases:
            session.check(lease, prompt)
            session.release(lease)
    for number in order:
        session = sessions[number % replicas]
        session.put(session.prefixes.poll(session.cache)[0])
    for session in sessions:
        session.save()
    look()
    assert len(list(hc.ObjectStore(folder).names("records/"))) == 1
    # Nothing, and from one moment on all of it.
    assert lengths == sorted(lengths)
    assert set(lengths) == {0, len(prompt)}
