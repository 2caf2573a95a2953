"""Mistakes of validation and of the solver."""

from .record import FORMS, SOLVER, Mutation

VERDICTS = (
    Mutation(
        "epoch-not-compared",
        "validate.py",
        "    good &= _taken(table.epoch, ids) == epochs\n",
        "",
        "a block that changed hands counts as held",
        (
            "tests/core/test_validate.py::test_the_first_thing_that_is_wrong_is_the_reason",
        ),
    ),
    Mutation(
        "version-not-compared",
        "validate.py",
        "(writer == version) & ",
        "",
        "entries of other weights count as held",
        (
            "tests/core/test_validate.py::test_the_first_thing_that_is_wrong_is_the_reason",
        ),
    ),
    Mutation(
        "position-not-compared",
        "validate.py",
        "    good &= _taken(table.first, ids) == first\n",
        "",
        "a block of another position counts as held",
        (
            "tests/core/test_validate.py::test_a_block_at_another_position_is_another_block",
        ),
    ),
    Mutation(
        "unfinished-counts-as-held",
        "validate.py",
        "done = stage == int(Stage.SEALED)",
        "done = stage != int(Stage.FREE)",
        "a block that is being evicted or written counts as held",
        (
            "tests/core/test_validate.py::test_the_first_thing_that_is_wrong_is_the_reason",
        ),
    ),
    Mutation(
        "first-required-block-not-asked",
        "validate.py",
        "start, stop = lo // size, hi // size",
        "start, stop = lo // size + 1, hi // size",
        "a hole at the beginning of a window is not seen",
        (
            "tests/core/test_validate.py::test_satisfied_is_one_answer_in_every_namespace",
        ),
    ),
    Mutation(
        "halo-forgotten",
        "forms.py",
        "start = p - p % geometry.ratio - geometry.halo",
        "start = p - p % geometry.ratio",
        "the rows of the block before are not required",
        FORMS,
    ),
    Mutation(
        "window-one-key-short",
        "layers.py",
        "start = position - (self.size - 1)",
        "start = position - (self.size - 2)",
        "the oldest key of a window is not required",
        FORMS,
    ),
    Mutation(
        "last-token-not-run",
        "resume.py",
        "(points <= num_tokens - 1)",
        "(points <= num_tokens)",
        "nothing is run, so there are no logits",
        ("tests/core/test_solver.py::test_one_position_at_least_is_run",),
    ),
    Mutation(
        "nothing-left-to-run",
        "matching.py",
        "last = min(claims.length, max(len(tokens) - 1, 0))",
        "last = min(claims.length, len(tokens))",
        "a prompt that is stored whole is resumed at its end",
        ("tests/faults/test_k01_exact_length.py",),
    ),
    Mutation(
        "replay-without-history",
        "resume.py",
        "points, allowed & whole & ~ready, sources",
        "points, allowed & ~ready, sources",
        "a replay is planned over a history that has holes",
        ("tests/core/test_solver.py::test_replay_agrees_with_the_oracle",),
    ),
    Mutation(
        "replay-ignores-windows-below",
        "replay.py",
        "steps[-1] = Window(last.size + step.reach, last.entry)",
        "steps[-1] = last",
        "a replay starts too late for stacked windows",
        SOLVER,
    ),
    Mutation(
        "claims-not-checked",
        "host_facts.py",
        "        found[bad] = facts(table, ids[bad], epochs[bad], "
        "first=first[bad], **claim)\n",
        "",
        "the index is believed",
        (
            "tests/core/test_scenarios_forms.py::test_b22_a_block_that_went_to_another_request_is_not_read",
        ),
    ),
    Mutation(
        "provenance-not-compared",
        "validate.py",
        " & (least <= provenance)",
        "",
        "an exact reader is told to read approximate blocks",
        (
            "tests/core/test_validate.py::test_the_first_thing_that_is_wrong_is_the_reason",
        ),
    ),
    Mutation(
        "bytes-ignored-in-the-choice",
        "cost.py",
        "tokens.astype(xp.float32) * per_token - waited",
        "tokens.astype(xp.float32) * per_token - 0 * waited",
        "a load that costs more than it saves is waited for",
        ("tests/core/test_solver.py::test_waiting_is_weighed_against_running",),
    ),
    Mutation(
        "one-form-makes-a-point-ready",
        "matching.py",
        "if all(facts.hold(*look(n, positions)) for",
        "if any(facts.hold(*look(n, positions)) for",
        "the deepest point is resumed although a form is lost there",
        ("tests/core/test_matching_near.py",),
    ),
)
