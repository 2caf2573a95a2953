"""The answer to "can this prefix be resumed now", with its reasons."""

import dataclasses
import reprlib
from typing import Any

import numpy as np

from hybridcache_jax.byte_sizes import format_bytes
from hybridcache_jax.claims import Claims
from hybridcache_jax.codes import Provenance, Reason, Verdict
from hybridcache_jax.contents import ContentId, Contents
from hybridcache_jax.forms import RULES, Form, Remedy
from hybridcache_jax.identity import Identity
from hybridcache_jax.rollout import Key
from hybridcache_jax.ways import Alternative


@dataclasses.dataclass(frozen=True)
class FormReport:
    """What one pool had to hold at the deepest claimed point, and what it held.

    Attributes:
      pool: name of the pool.
      form: its form.
      required: token positions ``[lo, hi)`` that had to be covered.
      found: how many of them are on the device.
      loadable: how many more lie in an outer tier.
      reason: ``OK`` if all are on the device; else why the first missing block does
        not count.  Blocks in an outer tier are named only if nothing else is missing.
      position: first missing position of that block; -1 if nothing is missing.
      remedy: how the form comes back.
    """

    pool: str
    form: Form
    required: tuple[int, int]
    found: int
    loadable: int
    reason: Reason
    position: int
    remedy: Remedy

    @property
    def held(self) -> bool:
        """Whether everything required was held on the device."""
        return self.reason == Reason.OK


@dataclasses.dataclass(frozen=True, eq=False)
class ResumePlan:
    """Verdict, resume point, and why.  Made by ``PrefixCache.match``.

    All lengths are in tokens.

    Attributes:
      verdict: one of four.
      length: the resume point ``p``: positions ``0..p-1`` are reused.
      start: first position to run: ``p``, or ``k < p`` for a replay of ``k..p-1``.
      kept: numbers of the pools whose forms at ``start`` the replay goes on from,
        checkpoints among them; the other bounded forms it rebuilds from nothing.
      num_tokens: length of the prompt.
      reason: why not more was reused; ``OK`` if all that is stored of the prompt, up
        to the last resume point below its last token, is reused.
      forms: per pool, what was required and found at ``claimed_length``.
      claimed_length: deepest resume point that the index claims for this prompt.
      history_length: how deep the forms that grow with the history would have gone
        alone, outer tiers included.
      joint_length: deepest resume point at which all forms are held, outer tiers
        included.
      lost_length: deepest resume point at which the history is held and another form
        is lost; 0 if there is none, or if nothing is lost at ``claimed_length``.
      shared_length: tokens that prompt and store have in common; prompt position
        ``shared_length`` is the first that differs.
      stored_token: what the store has at that position; -1 if it has nothing there.
      asked_token: what the prompt has there; -1 if it ends, or nobody asked.
      bytes_to_load: bytes that must be loaded first; 0 unless the verdict is NEEDS_IO.
      bytes_from_store: those of them that lie in the store and not in host memory.
      seconds: what loading and running cost by the rates of the moment.
      loads: per pool, ``[n]`` int32 ascending: the blocks of the prompt to load first.
        Block ``n`` holds the positions from ``n * block_tokens`` on, or the checkpoint
        taken where it ends; its claim is ``claims.blocks[pool][n]``.
      alternatives: the best proved way of each kind, the chosen one first, then by
        what they cost; besides a plan that reuses all that is claimed only the run of
        the whole prompt; none if nobody asked for reuse.
      changed: identity fields in which another producer of these tokens differs.
      key: whose claims were looked up, and under what the row publishes.
      claims: the blocks the plan relies on.
      contents: what the prompt's placeholder tokens stand for.
      stored_content: content id that the store has at ``shared_length``; None for a
        token without content.
      line: which ``PrefixCache`` made it; 0 for none, and then nobody grants it.
      shadow: whether it is for a shadow run, which answers nobody.
      counted: prompt positions below it are in the metrics already when the row gets
        there: it was rewound, or another row answers for them.
    """

    verdict: Verdict
    length: int
    start: int
    kept: tuple[int, ...]
    num_tokens: int
    reason: Reason
    forms: tuple[FormReport, ...]
    claimed_length: int
    history_length: int
    joint_length: int
    lost_length: int
    shared_length: int
    stored_token: int
    asked_token: int
    bytes_to_load: int
    bytes_from_store: int
    seconds: float
    loads: tuple[np.ndarray, ...]
    alternatives: tuple[Alternative, ...]
    changed: tuple[str, ...]
    key: Key
    claims: Claims
    contents: Contents = Contents()
    stored_content: ContentId | None = None
    line: int = 0
    shadow: bool = False
    counted: int = 0

    @property
    def identity(self) -> Identity:
        """Who asks; without a namespace where all of them share."""
        return self.key.identity

    @property
    def provenance(self) -> Provenance:
        """Whether the row will hold what a cold run would have made."""
        return self.key.provenance

    @property
    def tokens_to_run(self) -> int:
        """Positions to run before the first new token, the replay included."""
        return self.num_tokens - self.start

    def counted_to(self, position: int) -> "ResumePlan":
        """The plan, with prompt positions below this one in the metrics already."""
        return dataclasses.replace(self, counted=max(self.counted, position))

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
    def limiting_history(self) -> tuple[FormReport, ...]:
        """The forms that kept the history alone from the deepest claimed point."""
        return tuple(
            report
            for report in self.limiting
            if RULES[report.form].grows and report.reason != Reason.IN_OUTER_TIER
        )

    @property
    def checkpoint_position(self) -> int:
        """Where keeping the bounded forms would have saved the most tokens.

        The deepest resume point at which the history is held and a bounded form is
        not, if this plan starts before it; else 0.
        """
        return self.lost_length if self.lost_length > self.start else 0

    @property
    def checkpoint_would_help(self) -> bool:
        """Whether bounded forms, had they been kept, would have saved tokens."""
        return self.checkpoint_position > 0

    @property
    def replay_reaches_start(self) -> bool:
        """Whether a replay could rebuild what is missing, but only from position 0."""
        return (
            self.verdict == Verdict.NEEDS_FULL_RECOMPUTE
            and self.checkpoint_would_help
            and not any(way.start for way in self.alternatives)
        )

    def explain(self) -> str:
        """The verdict and its reasons, for people."""
        lines = [f"{self.verdict.name}: {self._headline()}"]
        if self.reason != Reason.OK:
            because = self.reason.explanation
            if self.changed:
                because += f" (differs in: {', '.join(self.changed)})"
            lines.append(f"  why: {because}")
        if self.provenance != Provenance.EXACT:
            lines.append(
                "  APPROXIMATE: the replay is shorter than the exact one, or what it "
                "reads came from such a one; no exact reader will meet the result"
            )
        lines += [self._about(report) for report in self.forms]
        if self.replay_reaches_start:
            lines.append("  an exact replay would have to start at position 0")
        if self.limiting_history:
            names = ", ".join(report.pool for report in self.limiting_history)
            lines.append(
                f"  the history alone reaches {self.history_length}, limited by {names}"
            )
        if self.checkpoint_would_help:
            lines.append(
                f"  the history is held up to {self.checkpoint_position}; keeping the "
                f"other forms there would have saved "
                f"{self.checkpoint_position - self.start} tokens"
            )
        if 0 < self.shared_length < self.num_tokens and self.stored_token >= 0:
            lines.append(
                f"  the prompt leaves the stored one at position {self.shared_length}, "
                f"where token {self.stored_token} is stored and {self.asked_token} "
                f"asked{self._parted_contents()}"
            )
        if self.alignment_loss:
            lines.append(
                f"  {self.alignment_loss} shared tokens lie past the last resume point"
            )
        for way in self.alternatives:
            load = ""
            if way.bytes_to_load:
                size = _size(way.bytes_to_load, way.bytes_from_store)
                load = f"{size} to load, "
            lines.append(
                f"  weighed: {way.verdict.name} at {way.length}, {load}"
                f"{way.tokens_to_run} tokens to run, {way.seconds:.3g} s"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON-ready data."""
        return {
            "verdict": self.verdict.name,
            "provenance": self.provenance.name,
            "length": self.length,
            "start": self.start,
            "kept": self._names(self.kept),
            "num_tokens": self.num_tokens,
            "tokens_to_run": self.tokens_to_run,
            "bytes_to_load": self.bytes_to_load,
            "bytes_from_store": self.bytes_from_store,
            "seconds": self.seconds,
            "loads": {
                report.pool: blocks.tolist()
                for report, blocks in zip(self.forms, self.loads, strict=False)
                if len(blocks)
            },
            "reason": self.reason.name,
            "changed": list(self.changed),
            "claimed_length": self.claimed_length,
            "history_length": self.history_length,
            "joint_length": self.joint_length,
            "limiting": [report.pool for report in self.limiting],
            "limiting_history": [report.pool for report in self.limiting_history],
            "checkpoint_would_help": self.checkpoint_would_help,
            "checkpoint_position": self.checkpoint_position,
            "replay_reaches_start": self.replay_reaches_start,
            "shared_length": self.shared_length,
            "stored_token": self.stored_token,
            "asked_token": self.asked_token,
            "stored_content": _as_json(self.stored_content),
            "asked_content": _as_json(self.contents.at(self.shared_length)),
            "alignment_loss": self.alignment_loss,
            "forms": [
                {
                    "pool": report.pool,
                    "form": report.form.name,
                    "required": list(report.required),
                    "found": report.found,
                    "loadable": report.loadable,
                    "reason": report.reason.name,
                    "position": report.position,
                    "remedy": report.remedy.name,
                }
                for report in self.forms
            ],
            "alternatives": [
                {
                    **dataclasses.asdict(other),
                    "verdict": other.verdict.name,
                    "kept": self._names(other.kept),
                }
                for other in self.alternatives
            ],
        }

    def _about(self, report: FormReport) -> str:
        """One form: what it needs, what was found, why not, how it comes back."""
        lo, hi = report.required
        needs = f"positions {lo}..{hi - 1}" if lo < hi else "nothing"
        line = f"  {report.pool}: needs {needs} to resume at {self.claimed_length}"
        if report.held:
            return f"{line}; held"
        found = f"{report.found} of {hi - lo} held"
        if report.loadable:
            found += f", {report.loadable} in an outer tier"
        return (
            f"{line}; {found}; missing from position {report.position}: "
            f"{report.reason.explanation}; remedy: {report.remedy.value}"
        )

    def _names(self, pools: tuple[int, ...]) -> list[str]:
        return [self.forms[number].pool for number in pools]

    def _parted_contents(self) -> str:
        """Names the contents where stored and asked prompt part, if there are any."""
        asked = self.contents.at(self.shared_length)
        if asked is None and self.stored_content is None:
            return ""
        stored, asked = (
            "none" if content is None else reprlib.repr(content)
            for content in (self.stored_content, asked)
        )
        return f" (its content id: {stored}, asked: {asked})"

    def _headline(self) -> str:
        run = f"{self.tokens_to_run} of {self.num_tokens} tokens to run"
        if self.verdict == Verdict.NEEDS_FULL_RECOMPUTE:
            return run
        replay = f"after replaying {self.start}..{self.length - 1}"
        if self.kept:
            names = ", ".join(self._names(self.kept))
            replay += f" from what {names} holds at {self.start}"
        steps = [replay] if self.start < self.length else []
        if self.verdict == Verdict.NEEDS_IO:
            count = sum(len(blocks) for blocks in self.loads)
            size = _size(self.bytes_to_load, self.bytes_from_store)
            steps.insert(0, f"once {count} blocks ({size}) are loaded")
        return " ".join([f"resume at {self.length}", *steps]) + f", {run}"


def _size(nbytes: int, from_store: int) -> str:
    """Bytes to load, and from where."""
    parts = (nbytes - from_store, "host memory"), (from_store, "the store")
    return " and ".join(f"{format_bytes(n)} from {where}" for n, where in parts if n)


def _as_json(content: ContentId | None) -> str | int | None:
    return content.hex() if isinstance(content, bytes) else content
