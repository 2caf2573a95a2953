"""A request that has a row."""

import dataclasses

from hybridcache_jax.lease import Lease
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.serving.request import Request


@dataclasses.dataclass
class Sequence:
    """One running request.

    Attributes:
      number: of the request.
      request: what was asked.
      lease: of its row.
      started: when it was first looked at, in seconds of ``time.perf_counter``.
      tokens: prompt and generated ids.
      position: next position to run.
      waited: the plan it waited for before it was admitted, if it did.
      ran: prompt positions run so far.
      first_token: when the first token was there; 0 before.
      admission: seconds that it took to get the row.
    """

    number: int
    request: Request
    lease: Lease
    started: float
    tokens: list[int]
    position: int
    waited: ResumePlan | None = None
    ran: int = 0
    first_token: float = 0.0
    admission: float = 0.0

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.tokens)

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def decoding(self) -> bool:
        """Whether all of the prompt has been run."""
        return self.position >= self.prompt_length
