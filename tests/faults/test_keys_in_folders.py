"""K08 to K10 on disk: who wrote a record, what for and of what decides who finds it.

Every reader is a new process: it knows of a record what lies in the folder.
"""

import dataclasses
import itertools

import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st
from saved import Saved

import hybridcache_jax as hc
from hybridcache_jax import Identity, Reason, Verdict
from hybridcache_jax.codes import Provenance
from hybridcache_jax.rollout import Key
from hybridcache_jax.store.trust import give_up

ME = Identity("w1", "c1", "l1", "t1", "a1@1.0", "highest", "tenant")
# One full layer; every grid point up to here is a resume point.
LONGEST = 72


def full(block=4):
    return toy.model((toy.FULL,), blocks=block, max_length=LONGEST)


@dataclasses.dataclass(frozen=True)
class Asker:
    """All that decides under which key somebody stores and asks."""

    identity: Identity = ME
    scope: str = "session"
    owner: str = "s"
    provenance: Provenance = Provenance.EXACT
    grid: int = 4

    def but(self, field):
        """The same but for one thing, named as in ``Identity``, ``Key`` or here."""
        if field in IDENTITY:
            value = getattr(self.identity, field)
            other = value + 1 if isinstance(value, int) else (value or "") + "x"
            identity = dataclasses.replace(self.identity, **{field: other})
            return dataclasses.replace(self, identity=identity)
        return dataclasses.replace(self, **{field: OTHERS[field]})

    def session(self, store):
        """A process of its own, over a store."""
        session = Saved(full(self.grid), store, policy=hc.ReusePolicy(self.scope))
        key = session.prefixes._rollout.key

        def marked(*given, **more):
            return dataclasses.replace(key(*given, **more), provenance=self.provenance)

        session.prefixes._rollout.key = marked
        return session

    def match(self, session, tokens, contents=()):
        return session.prefixes.match(
            session.cache, tokens, self.identity, contents=contents, session=self.owner
        )

    def store(self, session, tokens, contents=()):
        """Runs a prompt from nothing and saves what it leaves."""
        plan = session.prefixes.cold_plan(
            tokens, self.identity, contents=contents, session=self.owner
        )
        lease = session.acquire(plan)
        session.feed(lease, tokens)
        session.release(lease)
        session.save()

    def resume(self, session, tokens, contents=()):
        """How much of a prompt is found; it is loaded, and what comes is a cold run's.

        The verdicts before and after agree; a miss claims nothing.
        """
        waits = self.match(session, tokens, contents)
        if not waits.length:
            assert waits.verdict == Verdict.NEEDS_FULL_RECOMPUTE
            assert (waits.claimed_length, waits.start) == (0, 0)
            return 0
        assert waits.verdict == Verdict.NEEDS_IO
        session.prefixes.load(session.cache, waits)
        (report,) = session.poll()
        assert report.ready
        now = self.match(session, tokens, contents)
        assert (now.verdict, now.length) == (Verdict.RESUMABLE, waits.length)
        lease = session.acquire(now)
        session.check(lease, tokens[: now.length])
        session.release(lease, publish=False)
        return now.length


IDENTITY = [field.name for field in dataclasses.fields(Identity)]
# What else a key has: its generation counts the producers' records that were given up.
OTHERS = {
    "scope": "namespace",
    "owner": "t",
    "provenance": Provenance.APPROXIMATE,
    "grid": 8,
}
FIELDS = [*IDENTITY, *OTHERS]
# Every field of a key: a new one is to be stored and asked under, too.
assert {field.name for field in dataclasses.fields(Key)} == {
    *(OTHERS.keys() - {"grid"}),
    *("identity", "generation"),
}
PROMPT = [(7 * n + n * n) % 9 + 1 for n in range(LONGEST)]
# How far the record of each goes: who finds another one's finds another length.
LENGTHS = {(): 4, ("grid",): 8} | {
    (field,): 12 + 4 * number
    for number, field in enumerate(field for field in FIELDS if field != "grid")
}
GIVEN_UP = LONGEST - 4
assert max(LENGTHS.values()) < GIVEN_UP


def changed(fields):
    asker = Asker()
    for field in fields:
        asker = asker.but(field)
    return asker


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Records of one prompt under keys that differ in one thing, and given-up ones."""
    path = tmp_path_factory.mktemp("keys")
    store = hc.ObjectStore(path)
    Asker().store(Asker().session(store), PROMPT[:GIVEN_UP])
    give_up(store, ME)
    for fields, length in LENGTHS.items():
        asker = changed(fields)
        asker.store(asker.session(store), PROMPT[:length])
    assert len(list(store.names("records/"))) == len(LENGTHS) + 1
    return path


@pytest.mark.kind("K08")
@pytest.mark.on_disk("K08")
@settings(max_examples=120)
@given(
    st.sampled_from(
        [fields for most in range(3) for fields in itertools.combinations(FIELDS, most)]
    )
)
def test_a_record_is_found_under_its_own_key_and_under_no_other(folder, fields):
    """Nobody's is found by who differs from all of them; an owner is a session's."""
    asker = changed(fields)
    session = asker.session(hc.ObjectStore(folder))
    if "scope" in fields:
        fields = tuple(field for field in fields if field != "owner")
    found = asker.resume(session, PROMPT)
    assert found == LENGTHS.get(fields, 0)


@pytest.mark.parametrize("field", ["weights", "config", "layout"])
def test_who_is_not_known_stores_nothing_and_asks_for_nothing(tmp_path, field):
    store = hc.ObjectStore(tmp_path)
    nobody = Asker(dataclasses.replace(ME, **{field: ""}))
    for session in (nobody.session(store), nobody.session(store)):
        nobody.store(session, PROMPT[:8])
        assert nobody.match(session, PROMPT[:9]).reason == Reason.IDENTITY_UNKNOWN
        assert not list(store.names(""))


# Few pairs of a token and what it stands for, in few prompts, so that they share some.
PAIRS = st.tuples(st.integers(1, 2), st.sampled_from([None, None, "1", b"1", 1]))
UNITS = st.lists(PAIRS, min_size=4, max_size=4)
PROMPTS = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=3), min_size=1, max_size=3
)


def split(pairs):
    """Tokens, and spans of single tokens that stand for content."""
    spans = [(n, n + 1, what) for n, (_, what) in enumerate(pairs) if what is not None]
    return [token for token, _ in pairs], spans


def shared(one, other):
    """Whole grid units of pairs that are equal; ids of two types never are."""
    same = [
        (a, type(x), x) == (b, type(y), y)
        for (a, x), (b, y) in zip(one, other, strict=False)
    ]
    common = same.index(False) if False in same else len(same)
    return common - common % 4


@pytest.mark.slow
@pytest.mark.kind("K09")
@pytest.mark.on_disk("K09")
@settings(max_examples=6)
@given(units=st.lists(UNITS, min_size=3, max_size=3), stored=PROMPTS, asked=PROMPTS)
def test_as_much_is_found_as_has_equal_tokens_and_contents(
    tmp_path_factory, units, stored, asked
):
    """Of what was stored, too: whoever asks for all of it finds all of it."""
    store, me = hc.ObjectStore(tmp_path_factory.mktemp("pairs")), Asker()
    stored = [list(itertools.chain(*(units[n] for n in each))) for each in stored]
    asked = [list(itertools.chain(*(units[n] for n in each))) for each in asked]
    for pairs in stored:
        me.store(me.session(store), *split(pairs))
    for pairs in (*asked, *stored):
        longest = max(shared(pairs, other) for other in stored)
        tokens, spans = split([*pairs, (3, None)])
        assert me.resume(me.session(store), tokens, spans) == longest


ACTS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from(["store", "store", "ask", "restart"]),
        st.lists(st.sampled_from([(1, 1, 1, 1), (1, 2, 1, 2)]), min_size=1, max_size=3),
    ),
    min_size=2,
    max_size=5,
)


class Seen:
    """A folder, and what is done there on somebody's behalf."""

    def __init__(self, path):
        self.store, self.calls = hc.ObjectStore(path), []

    def __getattr__(self, name):
        def call(*given):
            answer = getattr(self.store, name)(*given)
            answer = sorted(answer) if name == "names" else answer
            self.calls.append((name, given, answer))
            return answer

        return call


@pytest.mark.kind("K10")
@pytest.mark.on_disk("K10")
@settings(max_examples=5)
@given(acts=ACTS)
def test_nothing_that_b_can_observe_of_a_folder_depends_on_a(tmp_path_factory, acts):
    """Plans, their explanations, every object that is opened, and all its bytes."""
    askers = {
        name: Asker(dataclasses.replace(ME, namespace=name), scope="namespace")
        for name in "ab"
    }
    observed = []
    for tenants in ("ab", "b"):
        store, mine = Seen(tmp_path_factory.mktemp("tenants")), []
        # The same processes serve both.
        session = askers["a"].session(store)
        for tenant, what, units in [*acts, *(("b", "ask", acts[0][2]),) * 2]:
            if what == "restart":
                session = askers["a"].session(store)
            if tenant not in tenants or what == "restart":
                continue
            asker, tokens = askers[tenant], [*itertools.chain(*units)]
            store.calls.clear()
            plan = asker.match(session, [*tokens, 3])
            if plan.verdict == Verdict.NEEDS_IO:
                session.prefixes.load(session.cache, plan)
                session.poll()
            if what == "store":
                asker.store(session, tokens)
            if tenant == "b":
                # Some are made at once.
                calls = sorted(store.calls, key=repr)
                mine.append((plan.to_dict(), plan.explain(), calls))
        observed.append(mine)
        # The paired check: whoever stored a prompt finds it in a new process.
        for tenant, what, units in acts:
            if tenant in tenants and what == "store":
                tokens = [*itertools.chain(*units)]
                reader = askers[tenant]
                found = reader.resume(reader.session(store), [*tokens, 3])
                assert found == len(tokens)
    assert observed[0] == observed[1]
