"""What a client asks and what it gets."""

import dataclasses

import numpy as np

from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.serving.sampling import SamplingParams
from hybridcache_jax.tokens import token_array


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
      waited: the plan for whose blocks it waited before, with the verdict NEEDS_IO;
        None if it did not.
      tokens_run: prompt positions that were run, a replay included.
      seconds_to_first_token: from when it was first looked at, which is before it
        waits, to the first token on the host.
      seconds: from then to the end.
      finish: ``"length"`` or ``"stop"``.
    """

    tokens: tuple[int, ...]
    plan: ResumePlan
    waited: ResumePlan | None
    tokens_run: int
    seconds_to_first_token: float
    seconds: float
    finish: str


@dataclasses.dataclass(frozen=True)
class Progress:
    """What happened to one request in one engine step.

    Attributes:
      request: number that ``submit`` gave.
      kind: ``"loading"``, ``"admitted"``, ``"prefill"``, ``"token"`` or
        ``"finished"``.
      done: prompt positions behind the row (of ``"loading"``, where it will resume), or
        tokens generated so far.
      total: prompt length, or ``max_new_tokens``.
      token: the new token for ``"token"``, else -1.
    """

    request: int
    kind: str
    done: int
    total: int
    token: int = -1


def check_request(request: Request, vocab_size: int, max_length: int) -> None:
    """Refuses a request that can never be served.

    Args:
      request: the request.
      vocab_size: ids must lie in ``[0, vocab_size)``.
      max_length: most positions of a sequence.

    Raises:
      ValueError: for an empty prompt, ids outside the vocabulary, no token asked for,
        or more positions than there can be.
    """
    tokens = token_array(request.tokens)
    if tokens.size == 0:
        raise ValueError("The prompt is empty; give at least one token.")
    if request.max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be >= 1, got {request.max_new_tokens}.")
    bad = (tokens < 0) | (tokens >= vocab_size)
    if bad.any():
        place = int(np.argmax(bad))
        raise ValueError(
            f"Token id {tokens[place]} at position {place} lies outside the "
            f"vocabulary 0..{vocab_size - 1}; was the prompt encoded with this model's "
            "tokenizer?"
        )
    length = tokens.size + request.max_new_tokens
    if length > max_length:
        raise ValueError(
            f"{tokens.size} prompt tokens and {request.max_new_tokens} new ones need "
            f"{length} positions, the plan allows {max_length}; shorten the prompt, "
            "ask for fewer tokens, or plan a larger max_length."
        )
