"""Retention: under every policy a hit is what was kept, and resumes like a cold run.

After any history of stores, what is stored is what an oracle in plain Python says by
the policy; every prompt's plan is the best that a search over it finds; and the state
of the resumed row equals that of a cold run, bit for bit.
"""

import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import Form, Retention, Verdict
from hybridcache_jax.retention_cost import retention_cost
from hybridcache_jax.testing import toy as library

ENDS, NONE = Retention.ends(), Retention.none()
POLICIES = {
    "ends": ENDS,
    "every 8": Retention.every(8),
    "none": NONE,
    "block": Retention.every_block(),
}
MODELS = {"mixed": (toy.MIXED, toy.MIXED_BLOCKS), "recurrent": (toy.RECURRENT, 4)}
BASE = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
# Tokens of the base, own tokens behind them, tokens of output, tokens of a step,
# whether it is published after every step.
RUNS = st.tuples(
    st.integers(0, 14),
    st.integers(0, 3),
    st.integers(0, 5),
    st.integers(1, 8),
    st.booleans(),
)


def make(kinds, blocks, retention):
    style = "chain" if kinds == toy.RECURRENT else "plain"
    return toy.model(
        kinds, blocks=blocks, style=style, stored=96, rows=1, retention=retention
    )


class Oracle:
    """What is stored, by the prefix that each block stands for."""

    def __init__(self, model, retention):
        self.model, self.grid = model, model.grid
        self.policy = {where: self._of(where, retention) for where in model.parts}
        self.kept = {where: set() for where in model.parts}
        self.history = set()

    def _of(self, where, retention):
        if isinstance(retention, Retention):
            return retention
        pool = self.model.plan.spec.pools[self.model.pool_of(*where)]
        return retention.get(pool.form, Retention.every_block())

    def floor(self, position):
        return position - position % self.grid

    def keeps(self, where, point, prompt, end):
        policy = self.policy[where]
        if policy == NONE:
            return False
        if policy == ENDS:
            ends = [self.floor(prompt), self.floor(prompt - 1)]
            return point in [*ends, *([] if end is None else [self.floor(end)])]
        return point % (policy.tokens or self.grid) == 0

    def publish(self, tokens, resumed, before, ends, prompt, end):
        """A row that stands at ``len(tokens)``; its last step began at ``before``.

        ``resumed``: its resume point; ``ends``: where its steps ended.
        """
        parts = self.model.parts
        bounded = [where for where in parts if where[1] not in ("entries", "index")]
        states = [where for where in bounded if where[1] == "state"]
        local = [where for where in bounded if where[1] == "local"]

        def beside(layer, part):
            """What must be kept at a point, too, for this to be of use there."""
            if part == "state":
                return states
            return (
                [*states, *(w for w in local if w[0] <= layer)]
                if part == "local"
                else bounded
            )

        def first_held(where):
            """First position of a part that the row has not let go of."""
            ends_kept = self.policy[where] == ENDS
            since = self.floor(before) if ends_kept else before
            return self.model.kinds[where[0]].required(where[1], since)[0]

        def complete(where, point):
            """Whether all that it needs there is the row's, or was stored before."""
            size = self.model.block(*where)
            kind = self.model.kinds[where[0]]
            return all(
                self.key(*where, number, tokens) in self.kept[where]
                if number < resumed // size
                else (number + 1) * size > first_held(where)
                for number in {
                    q // size for q in range(*kind.required(where[1], point))
                }
            )

        def all_keep(some, point):
            taken = point in ends and all(point > first_held(w) for w in states)
            taken = taken or not states
            return taken and all(
                self.keeps(w, point, prompt, end) and complete(w, point) for w in some
            )

        points = range(self.floor(resumed) + self.grid, len(tokens) + 1, self.grid)
        for layer, part in parts:
            size, kind = self.model.block(layer, part), self.model.kinds[layer]
            for point in points:
                if (layer, part) in bounded and not all_keep(
                    beside(layer, part), point
                ):
                    continue
                lo = first_held((layer, part))
                for number in {q // size for q in range(*kind.required(part, point))}:
                    mine = number >= resumed // size and (number + 1) * size > lo
                    if mine:
                        key = self.key(layer, part, number, tokens)
                        self.kept[layer, part].add(key)
        self.history |= {
            tuple(tokens[: q * self.grid])
            for q in range(1, len(tokens) // self.grid + 1)
        }

    def key(self, layer, part, number, tokens):
        """A block, and all tokens of its grid unit: prompts share no parts of one."""
        stop = (number + 1) * self.model.block(layer, part)
        return number, tuple(tokens[: stop + -stop % self.grid])

    def held(self, prompt):
        whole = self.floor(len(prompt))
        return {
            where: {
                number
                for number in range(whole // self.model.block(*where))
                if self.key(*where, number, prompt) in kept
            }
            for where, kept in self.kept.items()
        }

    def plan(self, prompt):
        common = max(
            (n for n in range(1, len(prompt) + 1) if tuple(prompt[:n]) in self.history),
            default=0,
        )
        return library.expected_plan(self.model, len(prompt), common, self.held(prompt))


def serve(session, oracle, prompt, output, size, each):
    """One request: the plan, the run, the publications; state equal to a cold one."""
    plan = session.match(prompt)
    want = oracle.plan(prompt)
    assert (plan.verdict, plan.length, plan.start) == want
    lease = session.acquire(plan)
    tokens = [*prompt, *output]
    at, ends, before = plan.start, [], plan.start
    stops = [*range(at + size, len(prompt), size), len(prompt)]
    stops += range(len(prompt) + 1, len(tokens) + 1)
    for stop in stops:
        session.feed(lease, tokens[at:stop])
        before, at = at, stop
        ends.append(stop)
        if each:
            session.publish(lease)
            seen = tokens[:stop]
            oracle.publish(seen, plan.length, before, ends, len(prompt), None)
    session.check(lease, tokens)
    session.release(lease)
    oracle.publish(tokens, plan.length, before, ends, len(prompt), len(tokens))
    assert {w: len(x) for w, x in oracle.kept.items()} == kept_counts(session)
    return plan


def kept_counts(session):
    model = session.model
    return {
        where: int(session.cache.tables[model.pool_of(*where)].kept.sum())
        for where in model.parts
    }


QUICK = {("mixed", "ends")}
CASES = [
    pytest.param(
        name, policy, marks=() if (name, policy) in QUICK else pytest.mark.slow
    )
    for name in MODELS
    for policy in POLICIES
]


@pytest.mark.parametrize(("name", "policy"), CASES)
@settings(max_examples=8)
@given(runs=st.lists(RUNS, min_size=2, max_size=4))
def test_every_plan_is_the_oracles_and_every_state_is_cold(name, policy, runs):
    model = make(*MODELS[name], POLICIES[policy])
    session, oracle = toy.Session(model), Oracle(model, POLICIES[policy])
    for shared, own, output, size, each in runs:
        prompt = [*BASE[:shared], *[0, 6, 0][:own]] or [1]
        serve(session, oracle, prompt, [2, 8, 1, 9, 7][:output], size, each)


@pytest.mark.slow
@pytest.mark.parametrize("tails", [NONE, Retention.every_block()])
@settings(max_examples=8)
@given(runs=st.lists(RUNS, min_size=2, max_size=4))
def test_a_form_without_its_siblings_is_not_kept(tails, runs):
    """Windows start replays where tails are kept nowhere; tails alone are of no use."""
    policy = {Form.UNCOMPRESSED_TAIL: tails, Form.RECURRENT_STATE: Retention.every(8)}
    if tails != NONE:
        policy[Form.SWA_WINDOW] = NONE
    model = make(*MODELS["recurrent"], policy)
    session, oracle = toy.Session(model), Oracle(model, policy)
    for shared, own, output, size, each in runs:
        prompt = [*BASE[:shared], *[0, 6, 0][:own]] or [1]
        serve(session, oracle, prompt, [2, 8, 1, 9, 7][:output], size, each)
    held = session.prefixes.account(session.cache)
    assert held["uncompressed_tail.2"]["evictable"] == 0
    assert tails == NONE or held["swa_window.1"]["evictable"] == 0


def test_ends_resume_the_same_prompt_a_longer_one_and_the_next_turn():
    """Published on release alone, after an output of single tokens."""
    session = toy.Session(make(*MODELS["mixed"], ENDS))
    prompt, output = BASE[:8], [7, 7, 7, 7, 7, 7]
    lease = session.admit(prompt)
    session.feed(lease, prompt)
    session.publish(lease)
    session.feed(lease, output, [1])
    session.release(lease)
    for asked, point in [
        (prompt, 4),  # the same again: its last token is run
        ([*prompt, 9], 8),
        ([*prompt, *output, 9], 12),  # the next turn
    ]:
        plan = session.match(asked)
        assert (plan.verdict, plan.length) == (Verdict.RESUMABLE, point)
        lease = session.acquire(plan)
        session.feed(lease, asked[point:])
        session.check(lease, asked)
        session.release(lease, publish=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "policy"),
    [
        ((toy.window(3), toy.window(6)), "none"),
        ((toy.window(3), toy.window(6)), "every 8"),
        ((toy.chunk(8),), "none"),
    ],
)
def test_the_cost_is_what_hits_run_again_where_nothing_grows(kinds, policy):
    model = toy.model(kinds, blocks=2, retention=POLICIES[policy])
    session = toy.Session(model)
    session.store(BASE, (2,), each=True)
    plans = [session.match([*BASE[:n], 0]) for n in range(2, len(BASE) + 1, 2)]
    hits = [plan for plan in plans if plan.claimed_length == plan.num_tokens - 1]
    again = [plan.claimed_length - plan.start for plan in hits]
    plan = model.plan
    sizes = [pool.block_bytes for pool in plan.spec.pools]
    cost = retention_cost(plan.spec, plan.policy, len(BASE), sizes)
    assert cost.deepest_hit == max((plan.claimed_length for plan in hits), default=0)
    assert cost.most_replayed == max(again, default=0)
    assert cost.mean_replayed == pytest.approx(sum(again) / max(len(again), 1))
    assert (cost.deepest_hit == 0) == (policy == "none" and len(kinds) == 2)
