"""A prompt resumed from disk, the same one recomputed, and what the planner foretold.

The rates are those that the library itself learned from other prompts, shorter ones
among them.  Both times begin when the plan has been made: the lookup in the store comes
before the choice, and whoever recomputes has waited for it, too.
"""

import contextlib
import dataclasses
import pathlib
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np

from hybridcache_jax.bench import raw_files
from hybridcache_jax.cli.restart import over_store
from hybridcache_jax.codes import Verdict
from hybridcache_jax.cost import CostModel
from hybridcache_jax.models.load import LoadedModel
from hybridcache_jax.rollout import ReusePolicy
from hybridcache_jax.serving.buckets import Buckets
from hybridcache_jax.serving.build import build_engine
from hybridcache_jax.serving.engine import Engine
from hybridcache_jax.serving.request import Request

# Prompts from which rates are learned before anything counts, in parts of the longest.
_LEARNING = (1.0, 0.25, 0.5)

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
      Medians over the prompts: of the plans, and of the clock.

    Raises:
      AssertionError: if a prompt cannot be resumed whole from the store.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        first = build_engine(
            loaded,
            max_length=tokens + 2,
            max_sequences=1,
            stored_tokens=tokens,
            buckets=Buckets(batch=(1,), chunk=(1, 128)),
            policy=ReusePolicy(scope="namespace"),
            staging_blocks=16,
        )
        grid, cost, rounds = first.plan.spec.grid, CostModel(), []
        rng = np.random.default_rng(0)
        for part in [*_LEARNING * max(1, repeat // 2), *[1.0] * repeat]:
            length = int(part * tokens) // grid * grid
            prompt = rng.integers(3, loaded.config.vocab_size, length + 1, np.int32)
            with _started(first, loaded, folder, cost) as writer:
                writer.run([Request(prompt, max_new_tokens=1)])
                writer.flush()
            raw_files.forget(folder)
            with _started(first, loaded, folder, cost) as reader:
                rounds.append(_round(reader, prompt))
                cost = reader.prefixes.cost
    foretold, measured = zip(*rounds[-repeat:], strict=True)
    return _median(foretold), _median(measured)


@contextlib.contextmanager
def _started(
    like: Engine, loaded: LoadedModel, folder: pathlib.Path, cost: CostModel
) -> Iterator[Engine]:
    """An engine with an empty cache, as after a start, that knows these rates."""
    engine = over_store(like, str(folder), loaded.config.vocab_size)
    engine.warm_up()
    engine.prefixes.cost = cost
    try:
        yield engine
    finally:
        engine.prefixes.close()


def _round(engine: Engine, prompt: np.ndarray) -> tuple[Times, Times]:
    """What the rates say of both ways to serve one prompt, and how long they take."""
    prefixes = engine.prefixes
    cost = prefixes.cost
    # It is restored even where that does not pay.
    prefixes.cost = dataclasses.replace(cost, seconds_per_token=_NEVER_RUN)
    plan = prefixes.match(engine.cache, prompt, engine.identity)
    if plan.verdict != Verdict.NEEDS_IO or plan.tokens_to_run != 1:
        raise AssertionError(f"The store has not all of it: {plan.explain()}")
    foretold = Times(
        cost.seconds(1, plan.bytes_to_load, plan.bytes_from_store),
        cost.seconds(plan.num_tokens),
    )
    request = Request(prompt, max_new_tokens=1)
    (resumed,) = engine.run([request])
    rates = {
        name: getattr(cost, name) for name in ("seconds_per_token", "seconds_per_run")
    }
    prefixes.cost = dataclasses.replace(prefixes.cost, **rates)
    (again,) = engine.run([dataclasses.replace(request, reuse=False)])
    if resumed.tokens_run != 1 or resumed.tokens != again.tokens:
        raise AssertionError(f"It was not resumed: {resumed.plan.explain()}")
    measured = resumed.seconds_to_first_token, again.seconds_to_first_token
    return foretold, Times(*measured)


def _median(times: Sequence[Times]) -> Times:
    return Times(
        float(np.median([each.restored for each in times])),
        float(np.median([each.recomputed for each in times])),
    )
