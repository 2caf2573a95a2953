"""Match and verdict for a prompt of a million tokens, host side."""

import numpy as np

from hybridcache_jax.bench.measure import Measurement, Report, cpu_seconds_in_turn
from hybridcache_jax.bench.stored import VERSION, Store, five_groups
from hybridcache_jax.codes import Verdict
from hybridcache_jax.cost import CostModel
from hybridcache_jax.forms import Form
from hybridcache_jax.host_facts import HostFacts
from hybridcache_jax.identity import Identity
from hybridcache_jax.matching import make_plan
from hybridcache_jax.rollout import Key

_TOKENS = 1_000_000
_PREFIXES = 50
_BRANCH = 20_000


def run(
    tokens: int = _TOKENS,
    prefixes: int = _PREFIXES,
    branch: int = _BRANCH,
    repeat: int = 60,
) -> Report:
    """Stores prefixes that share parts and matches the longest prompt.

    Times are those of the one processor that does the work: on a machine that others
    load too, the wall clock tells of them.

    Args:
      tokens: of the prompt.
      prefixes: stored; all but one leave the prompt somewhere.
      branch: tokens that each of those goes on alone.
      repeat: rounds.
    """
    spec = five_groups()
    key = Key(Identity(weights="w", config="c", layout=spec.fingerprint))
    rng = np.random.default_rng(0)

    def draw(count: int) -> np.ndarray:
        return rng.integers(0, 200_000, count, dtype=np.int32)

    prompt = draw(tokens)
    store = Store(spec, key, tokens + prefixes * branch)
    store.put(prompt)
    for number in range(1, prefixes):
        # Leave the prompt at ever later points and go on alone for a while.
        fork = number * tokens // prefixes // spec.grid * spec.grid
        store.put(np.concatenate([prompt[:fork], draw(branch)]))
    windows = tuple(
        number for number, pool in enumerate(spec.pools) if pool.form == Form.SWA_WINDOW
    )

    def match(tables):
        # Facts are fetched anew each time: between two matches a step has run.
        facts = HostFacts(spec, tables)
        return make_plan(spec, facts, store.index, prompt, key, VERSION, CostModel())

    whole, lost = store.facts(), store.facts(lost=windows)
    found = match(whole)
    if found.length != (tokens - 1) // spec.grid * spec.grid:
        raise AssertionError(f"The bench's own prefix was not found: {found.explain()}")
    if match(lost).verdict != Verdict.NEEDS_PARTIAL_RECOMPUTE:
        raise AssertionError(f"The windows are not missed: {match(lost).explain()}")
    stored = prompt.copy()
    floor, held, evicted = cpu_seconds_in_turn(
        [
            lambda: np.array_equal(prompt, stored),
            lambda: match(whole),
            lambda: match(lost),
        ],
        repeat=repeat,
    )
    return Report(
        "match",
        f"{tokens:,} tokens, {len(spec.groups)} groups in {len(spec.pools)} pools, "
        f"blocks of {spec.grid}, {prefixes} stored prefixes, processor time",
        tuple(
            Measurement(what, seconds, "comparing the tokens once", floor, goal)
            for what, seconds, goal in (
                ("match and verdict", held, 3.0),
                ("the same, windows evicted", evicted, None),
            )
        ),
    )
