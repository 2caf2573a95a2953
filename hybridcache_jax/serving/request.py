"""What a client asks and what it gets."""

import dataclasses

import numpy as np

from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.serving.sampling import SamplingParams


@dataclasses.dataclass(frozen=True)
class Request:
    """One prompt to continue.

    Attributes:
      tokens: ``[n]`` int32 token ids, at least one.
      max_new_tokens: most tokens to generate.
      sampling: how to choose them.
      stop_tokens: ids that end the generation; the one met is not returned.
      namespace: tenant whose stored prefixes may be read and extended.
      session: id of the session it belongs to, for the reuse scope ``session``.
      reuse: look for stored prefixes and store this one; False runs cold.
    """

    tokens: np.ndarray
    max_new_tokens: int = 32
    sampling: SamplingParams = SamplingParams()
    stop_tokens: tuple[int, ...] = ()
    namespace: str = ""
    session: str = ""
    reuse: bool = True


@dataclasses.dataclass(frozen=True)
class Result:
    """How a request went.

    Attributes:
      tokens: generated ids.
      plan: verdict and reasons under which it was admitted.
      tokens_run: prompt positions that were run, a replay included.
      seconds_to_first_token: from admission to the first token on the host.
      seconds: from admission to the end.
      finish: ``"length"`` or ``"stop"``.
    """

    tokens: tuple[int, ...]
    plan: ResumePlan
    tokens_run: int
    seconds_to_first_token: float
    seconds: float
    finish: str


@dataclasses.dataclass(frozen=True)
class Progress:
    """What happened to one request in one engine step.

    Attributes:
      request: number that ``submit`` gave.
      kind: ``"admitted"``, ``"prefill"``, ``"token"`` or ``"finished"``.
      done: prompt positions behind the row, or tokens generated so far.
      total: prompt length, or ``max_new_tokens``.
      token: the new token for ``"token"``, else -1.
    """

    request: int
    kind: str
    done: int
    total: int
    token: int = -1
