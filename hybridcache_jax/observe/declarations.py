"""The one table of metrics: names, kinds, units, labels, and what each one says.

Names follow the rules of Prometheus: one prefix, the unit last, ``_total`` behind
what only grows.
"""

import dataclasses
import enum
import textwrap

PREFIX = "hybridcache_"


class Tier(enum.StrEnum):
    """Where the tokens of a hit came from."""

    DEVICE = "device"
    OUTER = "outer"
    REPLAYED = "replayed"


class Phase(enum.StrEnum):
    """What a run position was run for."""

    REPLAY = "replay"
    PREFILL = "prefill"
    DECODE = "decode"
    AGAIN = "again"
    SHADOW = "shadow"


class Why(enum.StrEnum):
    """Why stored blocks were given away."""

    ROOM = "room"
    ASKED = "asked"
    DEAD_WEIGHT = "dead_weight"
    MISMATCH = "mismatch"


class Where(enum.StrEnum):
    """Who met a lease or a plan that no longer holds."""

    ACQUIRE = "acquire"
    PUBLISH = "publish"
    STEP = "step"


class SaveEnd(enum.StrEnum):
    """How saving a published prefix to a store ended."""

    SAVED = "saved"
    THERE = "there"
    MERGED = "merged"
    LOST = "lost"
    TOO_MANY = "too_many"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True)
class Metric:
    """One row of the table.

    Attributes:
      name: without the prefix.
      kind: ``"counter"``, ``"gauge"`` or ``"histogram"``.
      unit: of what it counts.
      help: one sentence.
      labels: names of its labels.
      buckets: upper bounds of a histogram, ascending; in its unit.
    """

    name: str
    kind: str
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[int, ...] = ()


_TICKS = tuple(2**power for power in range(0, 21, 2))
_TOKENS = (0, *(4**power for power in range(11)))

TABLE: tuple[Metric, ...] = (
    # Said by match.
    Metric("lookups_total", "counter", "lookups", "Prompts that were matched."),
    Metric(
        "verdicts_total",
        "counter",
        "lookups",
        "Lookups by verdict; they add up to the lookups.",
        ("verdict",),
    ),
    Metric(
        "hits_total",
        "counter",
        "lookups",
        "Lookups for which the index claimed a resume point above 0.",
    ),
    Metric(
        "misses_total",
        "counter",
        "lookups",
        "Lookups for which it claimed none, by reason; hits and misses add up to the "
        "lookups.",
        ("reason",),
    ),
    Metric(
        "fallbacks_total",
        "counter",
        "lookups",
        "Hits that could not be resumed at once where the index claimed, by the "
        "verdict they got instead (RESUMABLE: at a lower point). Over the hits it is "
        "the post-hit fallback rate.",
        ("verdict",),
    ),
    Metric(
        "limiting_forms_total",
        "counter",
        "lookups",
        "Hits in which a form lacked something at the claimed point, by why.",
        ("form", "reason"),
    ),
    Metric(
        "alignment_lost_tokens_total",
        "counter",
        "tokens",
        "Tokens shared with the store that no resume point reaches.",
    ),
    Metric(
        "history_gap_tokens",
        "histogram",
        "tokens",
        "Per hit, how much deeper the history alone reaches than all forms together.",
        buckets=_TOKENS,
    ),
    # Said by acquire, publish, release.
    Metric(
        "admissions_total",
        "counter",
        "leases",
        "Plans that were acquired, by verdict; those of shadow runs are left out.",
        ("verdict",),
    ),
    Metric(
        "stale_leases_total",
        "counter",
        "leases",
        "Plans and leases that were refused because a block changed hands, by who met "
        "it.",
        ("where",),
    ),
    Metric(
        "prompt_tokens_total",
        "counter",
        "tokens",
        "Prompt tokens of acquired plans; those of shadow runs are left out.",
    ),
    Metric(
        "reused_tokens_total",
        "counter",
        "tokens",
        "Tokens below the resume points of acquired plans.",
    ),
    Metric(
        "hit_tokens_total",
        "counter",
        "tokens",
        "Reused tokens by where they came from (device, outer, replayed); they add up "
        "to the reused tokens.",
        ("tier",),
    ),
    Metric(
        "saved_tokens_total",
        "counter",
        "tokens",
        "Prompt tokens of acquired plans that are not run.",
    ),
    Metric(
        "abandoned_tokens_total",
        "counter",
        "tokens",
        "Prompt tokens that a row had not reached when it was released.",
    ),
    Metric(
        "pin_ticks",
        "histogram",
        "ticks",
        "Logical time from the grant of a lease to its release.",
        buckets=_TICKS,
    ),
    Metric(
        "stored_blocks_total",
        "counter",
        "blocks",
        "Blocks that stored prefixes took over.",
        ("form",),
    ),
    Metric(
        "stored_bytes_total",
        "counter",
        "bytes",
        "Their size.",
        ("form",),
    ),
    Metric(
        "evicted_blocks_total",
        "counter",
        "blocks",
        "Blocks that stored prefixes lost, by why: room, asked, dead_weight, mismatch.",
        ("form", "why"),
    ),
    Metric(
        "evicted_bytes_total",
        "counter",
        "bytes",
        "Their size.",
        ("form", "why"),
    ),
    # Said by account.
    Metric(
        "blocks",
        "gauge",
        "blocks",
        "Blocks by what they are: free, evictable, pinned, writing, quarantined, "
        "moving.",
        ("pool", "state"),
    ),
    Metric("form_bytes", "gauge", "bytes", "Likewise, in bytes.", ("form", "state")),
    Metric(
        "leases",
        "gauge",
        "leases",
        "Leases by whether their deadline lies behind the clock: in_time, overdue; "
        "overdue should stay 0.",
        ("state",),
    ),
    Metric("index_tokens", "gauge", "tokens", "Tokens that the index claims."),
    Metric("index_bytes", "gauge", "bytes", "Host memory of the index."),
    # Said by who runs steps.
    Metric(
        "step_rows_total",
        "counter",
        "rows",
        "Rows of compiled steps by status.",
        ("status",),
    ),
    Metric(
        "run_tokens_total",
        "counter",
        "tokens",
        "Positions that were run, by what for: replay, prefill, decode; prompt "
        "positions again, after a rewind or in a forked row; shadow runs.",
        ("phase",),
    ),
    Metric(
        "retraces_total",
        "counter",
        "shapes",
        "Shapes of the step that were compiled after warm-up; should stay 0.",
    ),
    # Said by outer tiers and by shadow runs.
    Metric(
        "moved_out_blocks_total",
        "counter",
        "blocks",
        "Evicted blocks of which the outer tier took a copy.",
        ("form",),
    ),
    Metric("moved_out_bytes_total", "counter", "bytes", "Their size.", ("form",)),
    Metric(
        "store_failures_total",
        "counter",
        "blocks",
        "Evicted blocks that the outer tier failed to take; they are lost.",
        ("form",),
    ),
    Metric(
        "loaded_blocks_total",
        "counter",
        "blocks",
        "Blocks that came back from the outer tier; they count as stored, too.",
        ("form",),
    ),
    Metric("loaded_bytes_total", "counter", "bytes", "Their size.", ("form",)),
    Metric(
        "load_failures_total",
        "counter",
        "loads",
        "Loads from an outer tier that failed, by stage.",
        ("stage",),
    ),
    Metric(
        "saves_total",
        "counter",
        "saves",
        "Published prefixes that were to be saved to a store, by how that ended: "
        "saved; there already; merged with a longer one; lost, because a block went "
        "before its turn or the scope changed; too_many waited; failed in the store.",
        ("end",),
    ),
    Metric(
        "store_lookup_failures_total",
        "counter",
        "lookups",
        "Times a store failed to say what it has; each counts as a miss there.",
    ),
    Metric(
        "records_passed_by_total",
        "counter",
        "records",
        "Records of a store that were found and are damaged, foreign or unreadable.",
    ),
    Metric(
        "shadow_sampled_total",
        "counter",
        "hits",
        "Hits that were chosen to be computed again.",
    ),
    Metric(
        "shadow_compared_total",
        "counter",
        "hits",
        "Of them, hits whose state was compared with a cold run's.",
    ),
    Metric(
        "shadow_mismatches_total",
        "counter",
        "hits",
        "Of them, hits whose state differed; should stay 0.",
    ),
    Metric(
        "overturned_tokens_total",
        "counter",
        "tokens",
        "The hit tokens of those, by tier: no answer rests on them; should stay 0.",
        ("tier",),
    ),
)


def describe() -> str:
    """The table as text, in the order of declaration."""
    lines = []
    for metric in TABLE:
        labels = "{" + ", ".join(metric.labels) + "}" if metric.labels else ""
        lines.append(f"{PREFIX}{metric.name}{labels}")
        text = f"{metric.kind}, {metric.unit}: {metric.help}"
        lines += textwrap.wrap(
            text, 84, initial_indent="    ", subsequent_indent="    "
        )
    return "\n".join(lines)
