"""A prompt resumed from disk, the same one recomputed, and what the planner foretold.

The rates are those that the library itself learned from other prompts, shorter ones
among them.  Both times begin when the plan has been made: the lookup in the store comes
before the choice, and whoever recomputes has waited for it, too.
"""

import contextlib
import dataclasses
import pathlib
import tempfile
import time
from collections.abc import Iterator, Sequence

import numpy as np

from hybridcache_jax.bench import raw_files
from hybridcache_jax.bench.saved import when_loaded
from hybridcache_jax.cli.restart import over_store
from hybridcache_jax.codes import Verdict
from hybridcache_jax.cost import CostModel
from hybridcache_jax.models.load import LoadedModel
from hybridcache_jax.rollout import ReusePolicy
from hybridcache_jax.serving.buckets import Buckets
from hybridcache_jax.serving.build import build_engine
from hybridcache_jax.serving.engine import Engine
from hybridcache_jax.serving.request import Request, Result

# Prompts from which rates are learned before anything counts, in parts of the longest,
# and how often each is restored.
_LEARNING, _OFTEN = (1.0, 0.25, 0.5), 5

# Seconds of a token that nobody would rather run than load.
_NEVER_RUN = 1e3


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds until the first token of a prompt: resumed from disk, and recomputed.

    Attributes:
      restored: when its blocks were loaded.
      recomputed: when it was run from its first token on.
    """

    restored: float
    recomputed: float

    @property
    def factor(self) -> float:
        """How many times longer it takes to recompute it."""
        return self.recomputed / self.restored


def foretold_and_measured(
    loaded: LoadedModel, *, tokens: int, repeat: int
) -> tuple[Times, Times]:
    """What the planner says about prompts that it never met, and what is measured.

    Args:
      loaded: the model.
      tokens: of each stored prompt; one more is run.
      repeat: prompts that are measured, and a few more before them.

    Returns:
      Medians over the prompts: of what was foretold, and of what was measured.

    Raises:
      AssertionError: if a prompt cannot be resumed whole from the store.
    """
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        starts = _Starts(loaded, tokens, pathlib.Path(folder))
        for part in _LEARNING * max(1, repeat // 2):
            prompt = starts.saved(int(part * tokens))
            for _ in range(_OFTEN):
                starts.restored(prompt)
            starts.recomputed(prompt)
        for _ in range(repeat):
            prompt = starts.saved(tokens)
            restored = [starts.restored(prompt) for _ in range(_OFTEN)]
            # Only the first time it had not been met.
            foretold = restored[0][0]
            seconds = float(np.median([each for _, each in restored]))
            rounds.append((foretold, Times(seconds, starts.recomputed(prompt))))
    foretold, measured = zip(*rounds, strict=True)
    return _median(foretold), _median(measured)


class _Starts:
    """Engines with empty caches over one store, as after a start, that share rates."""

    def __init__(self, loaded: LoadedModel, tokens: int, folder: pathlib.Path):
        self._like = build_engine(
            loaded,
            max_length=tokens + 2,
            max_sequences=1,
            stored_tokens=tokens,
            buckets=Buckets(batch=(1,), chunk=(1, 128)),
            policy=ReusePolicy(scope="namespace"),
            staging_blocks=16,
        )
        self._folder, self._vocabulary = folder, loaded.config.vocab_size
        self._cost, self._rng = CostModel(), np.random.default_rng(0)

    def saved(self, length: int) -> np.ndarray:
        """A new prompt: whole grid units that lie in the store, and a token."""
        count = length // self._like.plan.spec.grid * self._like.plan.spec.grid
        prompt = self._rng.integers(3, self._vocabulary, count + 1, np.int32)
        with self._started() as engine:
            engine.run([Request(prompt, max_new_tokens=1)])
            engine.flush()
        return prompt

    def restored(self, prompt: np.ndarray) -> tuple[Times, float]:
        """What the rates say of both ways, and how long it takes from disk."""
        raw_files.forget(self._folder)
        cost = self._cost
        with self._started() as engine:
            prefixes = engine.prefixes
            # It is restored even where that does not pay.
            prefixes.cost = dataclasses.replace(cost, seconds_per_token=_NEVER_RUN)
            plan = prefixes.match(engine.cache, prompt, engine.identity)
            if plan.verdict != Verdict.NEEDS_IO or plan.tokens_to_run != 1:
                raise AssertionError(f"The store has not all of it: {plan.explain()}")
            start = time.perf_counter()
            engine.cache = when_loaded(prefixes, engine.cache, plan)
            waited = time.perf_counter() - start
            prefixes.cost = dataclasses.replace(
                prefixes.cost, seconds_per_token=cost.seconds_per_token
            )
            result = self._run(engine, prompt)
        if result.tokens_run != 1:
            raise AssertionError(f"It was not resumed: {result.plan.explain()}")
        foretold = Times(
            cost.seconds(1, plan.bytes_to_load, plan.bytes_from_store),
            cost.seconds(plan.num_tokens),
        )
        return foretold, waited + result.seconds_to_first_token

    def recomputed(self, prompt: np.ndarray) -> float:
        """Seconds until its first token, run from the beginning."""
        with self._started() as engine:
            return self._run(engine, prompt, reuse=False).seconds_to_first_token

    def _run(self, engine: Engine, prompt: np.ndarray, reuse: bool = True) -> Result:
        """Runs it for one token, and learns from that."""
        (result,) = engine.run([Request(prompt, max_new_tokens=1, reuse=reuse)])
        self._cost = engine.prefixes.cost
        return result

    @contextlib.contextmanager
    def _started(self) -> Iterator[Engine]:
        engine = over_store(self._like, str(self._folder), self._vocabulary)
        engine.warm_up()
        engine.prefixes.cost = self._cost
        try:
            yield engine
        finally:
            engine.prefixes.close()


def _median(times: Sequence[Times]) -> Times:
    return Times(
        float(np.median([each.restored for each in times])),
        float(np.median([each.recomputed for each in times])),
    )
