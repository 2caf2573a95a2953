"""Every single expectation of a scenario, so that none is passed over in silence.

An expectation is a ``(step, name)``: the step as the scenario names or numbers it, or
the number of the row or case.  One that is made of parts counts as its parts.
"""

from typing import Any

Leaf = tuple[str, str]

# A value that the scenario writes in its own terms: a symbol, a rule, a row of cases.
OPEN = object()

# In a row: what is done.  All other columns are expected.
_DONE = frozenset(
    {
        "page",
        "window",
        "len",
        "full",
        "swa",
        "from",
        "to",
        "policy",
        "form",
        "prefetch_tokens",
        "hole",
        "fault",
        "snapshots",
        "query_shared",
        "why",
        "partial",
        "base",
        "drop_requests",
        "prompt",
        "damage",
        "present",
        "file",
        "shared",
        "unique",
        "states",
    }
)
# In a row: columns that fill in what the step expects, and its name there.
_FILLS = {
    "sgl-swa-03": {"expect_tail": "protected.swa"},
    "sgl-swa-17": {"ok": "admitted"},
    "sgl-tier-11": {"reserve": "reserved", "reserve_extra": "reserved"},
    "lmc-fold-01": {"hit_chunks": "hit"},
    "trt-ssm-05": {"after_drop_hit": "hit"},
    "lcp-slot-03": {"then_processed": "processed", "then_cached": "cached"},
}
# In an expectation: where to look, or what to compare with.
_WHERE = frozenset({"key", "kl_vs"})
# Strings that stand for themselves.
_WORDS = frozenset({"verdict", "result", "reason", "counter", "eviction_asked_in_pool"})
_BOUNDS = ("_gt", "_lt", "_ge", "_le", "must_not_be")


def leaves(scenario: dict) -> dict[Leaf, Any]:
    """What is expected, by step and name; ``OPEN`` where a story has to translate."""
    expect = scenario["expect"]
    if "cases" in expect:
        return dict(_cases(scenario["type"], expect["cases"]))
    if scenario.get("type") in ("scheduler_fact", "divergence"):
        return dict(_parts("", expect))
    found: dict[Leaf, Any] = {}
    rows: dict[str, Any] = {}
    repeated, inside = [], set()
    for step in scenario["steps"]:
        if step["op"] == "for_each":
            repeated = step["rows"]
            inside = {inner.get("as") for inner in step["do"]}
    for name, wanted in expect.items():
        if name in inside:
            rows |= wanted
        else:
            found |= dict(_parts(name, wanted))
    for number, row in enumerate(repeated):
        found |= dict(_row(scenario["id"], str(number), row, rows))
    return found


def flat(name: str, value: Any):
    """An expectation as its parts, each with its name."""
    if not isinstance(value, dict):
        yield name, value
        return
    for part, inner in value.items():
        if part not in _WHERE:
            yield from flat(f"{name}.{part}", inner)


def _parts(step: str, wanted: dict):
    for name, value in wanted.items():
        if name not in _WHERE:
            for part, inner in flat(name, value):
                yield (step, part), _literal(part, inner)


def _cases(kind: str, cases: list):
    for number, case in enumerate(cases):
        if kind == "offload_cpu":
            yield from _parts(str(number), case[1])
        else:
            yield (str(number), "value"), OPEN
        if kind == "block_sizes":
            yield (str(number), "gcd"), case[2]


def _row(scenario: str, number: str, row: dict, rows: dict):
    for (_, name), value in _parts(number, rows):
        released = name.endswith("_if_dropped") and row.get("kept")
        if name != "as" and not released:
            yield (number, name), value
    for column, value in row.items():
        if column not in _DONE:
            name = _FILLS.get(scenario, {}).get(column, column)
            scaled = column == "hit_chunks" or column == "reserve_extra"
            yield (number, name), OPEN if scaled else _literal(name, value)


def _literal(name: str, value: Any) -> Any:
    plain = value is None or isinstance(value, bool | int) or name in _WORDS
    return value if plain and not name.endswith(_BOUNDS) else OPEN
