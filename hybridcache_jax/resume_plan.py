"""The answer to "can this prefix be resumed now", with its reasons."""

import dataclasses
from typing import Any

from hybridcache_jax.codes import Reason, Verdict
from hybridcache_jax.forms import Form, Remedy
from hybridcache_jax.identity import Identity
from hybridcache_jax.prefix_index import Claims
from hybridcache_jax.rollout import Key


@dataclasses.dataclass(frozen=True)
class FormReport:
    """What one pool had to hold at the deepest claimed point, and what it held.

    Attributes:
      pool: name of the pool.
      form: its form.
      required: token positions ``[lo, hi)`` that had to be covered.
      reason: ``OK`` if they were; else why the first missing block does not count.
      position: first missing position; -1 if nothing is missing.
      remedy: how the form comes back.
    """

    pool: str
    form: Form
    required: tuple[int, int]
    reason: Reason
    position: int
    remedy: Remedy

    @property
    def held(self) -> bool:
        """Whether everything required was held on the device."""
        return self.reason == Reason.OK


@dataclasses.dataclass(frozen=True)
class Alternative:
    """One proved way to go on.

    Attributes:
      verdict: what it would be called.
      length: resume point.
      start: first position to run.
      tokens_to_run: positions run before decoding, the replay included.
    """

    verdict: Verdict
    length: int
    start: int
    tokens_to_run: int


@dataclasses.dataclass(frozen=True)
class ResumePlan:
    """Verdict, resume point, and why.  Made by ``PrefixCache.match``.

    All lengths are in tokens.

    Attributes:
      verdict: one of four.
      length: the resume point ``p``: positions ``0..p-1`` are reused.
      start: first position to run: ``p``, or ``k < p`` for a replay of ``k..p-1``.
      num_tokens: length of the prompt.
      reason: why not more was reused; ``OK`` if all that is stored of the prompt, up
        to the last resume point below its last token, is reused.
      forms: per pool, what was required and found at ``claimed_length``.
      claimed_length: deepest resume point that the index claims for this prompt.
      history_length: how deep the growing forms alone would have gone.
      shared_length: tokens that prompt and store have in common; prompt position
        ``shared_length`` is the first that differs.
      stored_token: what the store has at that position; -1 if it has nothing there.
      alternatives: the proved ways that were weighed, the chosen one first.
      changed: identity fields in which another producer of these tokens differs.
      key: whose claims were looked up, and under what the row publishes.
      claims: the blocks the plan relies on.
    """

    verdict: Verdict
    length: int
    start: int
    num_tokens: int
    reason: Reason
    forms: tuple[FormReport, ...]
    claimed_length: int
    history_length: int
    shared_length: int
    stored_token: int
    alternatives: tuple[Alternative, ...]
    changed: tuple[str, ...]
    key: Key
    claims: Claims

    @property
    def identity(self) -> Identity:
        """Who asks; without a namespace where all of them share."""
        return self.key.identity

    @property
    def tokens_to_run(self) -> int:
        """Positions to run before the first new token, the replay included."""
        return self.num_tokens - self.start

    @property
    def alignment_loss(self) -> int:
        """Tokens shared with the store that no resume point reaches."""
        usable = min(self.shared_length, max(self.num_tokens - 1, 0))
        return max(usable - self.claimed_length, 0)

    @property
    def limiting(self) -> tuple[FormReport, ...]:
        """The forms that kept the plan from the deepest claimed point."""
        return tuple(report for report in self.forms if not report.held)

    @property
    def replay_reaches_start(self) -> bool:
        """Whether a replay could rebuild what is missing, but only from position 0."""
        return self.verdict == Verdict.NEEDS_FULL_RECOMPUTE and any(
            report.remedy is Remedy.REPLAY for report in self.limiting
        )

    def explain(self) -> str:
        """The verdict and its reasons, for people."""
        lines = [f"{self.verdict.name}: {self._headline()}"]
        if self.reason != Reason.OK:
            because = self.reason.explanation
            if self.changed:
                because += f" (differs in: {', '.join(self.changed)})"
            lines.append(f"  why: {because}")
        for report in self.forms:
            lo, hi = report.required
            needs = f"positions {lo}..{hi - 1}" if lo < hi else "nothing"
            line = f"  {report.pool}: needs {needs} to resume at {self.claimed_length}"
            if report.held:
                lines.append(f"{line}; held")
            else:
                lines.append(
                    f"{line}; missing from position {report.position}: "
                    f"{report.reason.explanation}; remedy: {report.remedy.value}"
                )
        if self.replay_reaches_start:
            lines.append("  an exact replay would have to start at position 0")
        if self.history_length > self.length:
            lines.append(
                f"  the history alone reaches {self.history_length}; keeping the "
                f"other forms there would have helped"
            )
        if 0 < self.shared_length < self.num_tokens and self.stored_token >= 0:
            lines.append(
                f"  the prompt leaves the stored one at position {self.shared_length}, "
                f"where token {self.stored_token} is stored"
            )
        if self.alignment_loss:
            lines.append(
                f"  {self.alignment_loss} shared tokens lie past the last resume point"
            )
        for other in self.alternatives:
            lines.append(
                f"  weighed: {other.verdict.name} at {other.length}, "
                f"{other.tokens_to_run} tokens to run"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON-ready data."""
        return {
            "verdict": self.verdict.name,
            "length": self.length,
            "start": self.start,
            "num_tokens": self.num_tokens,
            "tokens_to_run": self.tokens_to_run,
            "reason": self.reason.name,
            "changed": list(self.changed),
            "claimed_length": self.claimed_length,
            "history_length": self.history_length,
            "shared_length": self.shared_length,
            "stored_token": self.stored_token,
            "alignment_loss": self.alignment_loss,
            "forms": [
                {
                    "pool": report.pool,
                    "form": report.form.name,
                    "required": list(report.required),
                    "reason": report.reason.name,
                    "position": report.position,
                    "remedy": report.remedy.name,
                }
                for report in self.forms
            ],
            "alternatives": [
                {**dataclasses.asdict(other), "verdict": other.verdict.name}
                for other in self.alternatives
            ],
        }

    def _headline(self) -> str:
        run = f"{self.tokens_to_run} of {self.num_tokens} tokens to run"
        if self.verdict == Verdict.NEEDS_FULL_RECOMPUTE:
            return run
        if self.verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE:
            return (
                f"resume at {self.length} after replaying "
                f"{self.start}..{self.length - 1}, {run}"
            )
        if self.verdict == Verdict.NEEDS_IO:
            return f"resume at {self.length} once its blocks are loaded, {run}"
        return f"resume at {self.length}, {run}"
