"""Mistakes about what a replay goes on from, and what is of use to none."""

from .record import Mutation

_MIXED = ("tests/core/test_mixed_replays.py",)
_SIBLINGS = ("tests/core/test_siblings.py",)
_STATE = ("tests/faults/test_replay_extent.py",)

REPLAYS = (
    Mutation(
        "walk-ends-one-layer-too-high",
        "replay.py",
        "_steps_between(spec, floor, top)",
        "_steps_between(spec, floor + 1, top)",
        "the lowest layer that is not kept widens nothing",
        _MIXED,
    ),
    Mutation(
        "kept-pool-above-a-lost-one-trusted",
        "replay.py",
        "if number in base and top <= floor:",
        "if number in base:",
        "wrong rows above a lost window count as right",
        _MIXED,
    ),
    Mutation(
        "kept-pools-need-not-be-held",
        "origins.py",
        "there = there & complete[number]",
        "there = there | complete[number]",
        "a replay goes on from windows that are gone",
        _MIXED,
    ),
    Mutation(
        "kept-pools-need-no-resume-point",
        "origins.py",
        "there = allowed & (points > 0)",
        "there = points > 0",
        "a replay starts inside a block that others read",
        _MIXED,
    ),
    Mutation(
        "kept-pools-lie-on-the-device",
        "origins.py",
        "self.allowed & (self.nbytes.total == 0)",
        "self.allowed",
        "what has to be loaded first is replayed from at once",
        _MIXED,
    ),
    Mutation(
        "windows-below-states-not-kept",
        "replay.py",
        "        elif layer.local is not None and layer.local.reach:\n"
        "            return None\n",
        "",
        "a state goes on from inputs that are wrong",
        ("tests/core/test_solver.py",),
    ),
    Mutation(
        "kept-pools-start-empty",
        "lease.py",
        "empty = rebuilt and number not in plan.kept",
        "empty = rebuilt and not RULES[pool.form].exact",
        "a row lacks the windows that its replay goes on from",
        _STATE,
    ),
    Mutation(
        "no-pool-starts-empty",
        "lease.py",
        "empty = rebuilt and number not in plan.kept",
        "empty = False",
        "a row reads lost windows below the start of its replay",
        _STATE,
    ),
    Mutation(
        "lower-windows-not-needed",
        "replay.py",
        "lower = [n for n in local if spec.pools[n].layers[0] <= first]",
        "lower = [pool]",
        "windows are kept above windows that are gone",
        _SIBLINGS,
    ),
    Mutation(
        "siblings-not-looked-at",
        "index_pruning.py",
        "[complete[n] for n in beside]",
        "[complete[number]]",
        "dead weight stays until it is the oldest",
        _SIBLINGS,
    ),
    Mutation(
        "blocks-before-a-node-forgotten",
        "index_pruning.py",
        "ids[max(len(ids) - back, 0) :], held[max(len(held) - back, 0) :]",
        "ids[:0], held[:0]",
        "a window that reaches into the node before counts as lost",
        _SIBLINGS,
    ),
    Mutation(
        "claims-of-a-tier-not-paid-for",
        "offload/places.py",
        "return blocks + sum(total) * _FACT_BYTES + claims",
        "return blocks + sum(total) * _FACT_BYTES",
        "the index grows beyond what the tier's budget says",
        (
            "tests/faults/test_tier_limits.py::"
            "test_a_tier_has_places_for_what_can_be_kept",
        ),
    ),
)
