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
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.rollout import Key
from hybridcache_jax.state import StateTable

_TOKENS = 1_000_000
_PREFIXES = 50
_BRANCH = 20_000

# Tokens that engines give a block of entries in DeepSeek-V4, the hybrid model with so
# long a context; and what they give one where nothing is compressed.
_BLOCK, _SMALL_BLOCK = 256, 64


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
    rng = np.random.default_rng(0)

    def draw(count: int) -> np.ndarray:
        return rng.integers(0, 200_000, count, dtype=np.int32)

    prompt = draw(tokens)
    ends = [draw(branch) for _ in range(1, prefixes)]
    large, small = (_Matches(size, prompt, ends) for size in (_BLOCK, _SMALL_BLOCK))
    stored = prompt.copy()
    floor, held, evicted, in_small = cpu_seconds_in_turn(
        [
            lambda: np.array_equal(prompt, stored),
            large.whole,
            large.evicted,
            small.whole,
        ],
        repeat=repeat,
    )
    spec = large.spec
    return Report(
        "match",
        f"{tokens:,} tokens, {len(spec.groups)} groups in {len(spec.pools)} pools, "
        f"blocks of {_BLOCK}, {prefixes} stored prefixes, processor time",
        tuple(
            Measurement(what, seconds, "comparing the tokens once", floor, goal)
            for what, seconds, goal in (
                ("match and verdict", held, 3.0),
                ("the same, windows evicted", evicted, None),
                (f"the same, blocks of {_SMALL_BLOCK}", in_small, None),
            )
        ),
    )


class _Matches:
    """Matches of one prompt where much is stored, in blocks of one size."""

    def __init__(self, block_tokens: int, prompt: np.ndarray, ends: list[np.ndarray]):
        """Stores it, and prefixes that leave it at ever later points.

        Args:
          block_tokens: of every form.
          prompt: ``[n]`` int32.
          ends: what each of those goes on with, alone.

        Raises:
          AssertionError: if a plan is not the one that is right here.
        """
        self.spec = spec = five_groups(block_tokens)
        self._key = Key(Identity(weights="w", config="c", layout=spec.fingerprint))
        self._prompt = prompt
        more = sum(map(len, ends)) + spec.grid * len(ends)
        self._store = store = Store(spec, self._key, len(prompt) + more)
        store.put(prompt)
        for number, end in enumerate(ends, 1):
            fork = number * len(prompt) // (len(ends) + 1) // spec.grid * spec.grid
            store.put(np.concatenate([prompt[:fork], end]))
        windows = tuple(
            number
            for number, pool in enumerate(spec.pools)
            if pool.form == Form.SWA_WINDOW
        )
        self._held, self._lost = store.facts(), store.facts(lost=windows)
        found, lacking = self.whole(), self.evicted()
        if found.length != (len(prompt) - 1) // spec.grid * spec.grid:
            raise AssertionError(f"It was not found whole: {found.explain()}")
        if lacking.verdict != Verdict.NEEDS_PARTIAL_RECOMPUTE:
            raise AssertionError(f"The windows are not missed: {lacking.explain()}")

    def whole(self) -> ResumePlan:
        """With all blocks on the device."""
        return self._match(self._held)

    def evicted(self) -> ResumePlan:
        """Without those of windows."""
        return self._match(self._lost)

    def _match(self, tables: tuple[StateTable, ...]) -> ResumePlan:
        # Facts are fetched anew each time: between two matches a step has run.
        facts = HostFacts(self.spec, tables)
        index, cost = self._store.index, CostModel()
        return make_plan(
            self.spec, facts, index, self._prompt, self._key, VERSION, cost
        )
