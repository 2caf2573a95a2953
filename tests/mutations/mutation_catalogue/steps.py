"""Mistakes inside a step: what it writes, pools and reads."""

from .record import Mutation

STEPS = (
    # Steps.
    Mutation(
        "trimmed-one-token-early",
        "append.py",
        "behind = (number >= 0) & ((number + 1) * size <= seen[:, None])",
        "behind = (number >= 0) & ((number + 1) * size <= seen[:, None] + 1)",
        "the oldest key that the next query sees is let go",
        (
            "tests/faults/test_k01_exact_length.py::test_every_form_equals_cold_after_the_plan[window]",
        ),
    ),
    Mutation(
        "rollback-margin-forgotten",
        "append.py",
        "back = cache.plan.held_from(pool.form, view.length)",
        "back = view.length",
        "what a rewind within the margin needs is let go",
        (
            "tests/faults/test_fork_and_rewind.py::test_the_rollback_that_was_planned_is_held_whatever_ran[fine]",
        ),
    ),
    Mutation(
        "sealed-one-token-early",
        "append.py",
        "last = (step.positions + 1) % pool.block_tokens == 0",
        "last = (step.positions + 2) % pool.block_tokens == 0",
        "a block counts as finished before its last entry is there",
        (
            "tests/faults/test_fork_and_rewind.py::test_no_room_for_the_copy_loses_nothing",
        ),
    ),
    Mutation(
        "one-block-reserved-too-many",
        "append.py",
        "ahead = number * size < (view.length + inputs.counts)[:, None]",
        "ahead = number * size <= (view.length + inputs.counts)[:, None]",
        "a row takes a block that it does not write",
        (
            "tests/faults/test_fork_and_rewind.py::test_a_row_alone_needs_no_free_block_to_go_back",
        ),
    ),
    Mutation(
        "granted-beyond-what-is-free",
        "append.py",
        "fits = jnp.all(need <= left)",
        "fits = jnp.any(need <= left)",
        "a row runs without the blocks it needs",
        ("tests/faults/test_lease_faults.py::test_without_room_a_row_stays_as_it_was",),
    ),
    Mutation(
        "held-entries-overwritten",
        "append.py",
        "return jnp.where(real & (positions >= view.held[:, index, None]), blocks, "
        "nowhere)",
        "return jnp.where(real, blocks, nowhere)",
        "a replay overwrites exact entries by inexact ones",
        (
            "tests/faults/test_replay_extent.py::test_either_form_alone_needs_the_whole_replay",
        ),
    ),
    Mutation(
        "one-token-beyond-the-prompt-is-known",
        "append.py",
        "again = real & (positions < known[:, None])",
        "again = real & (positions <= known[:, None])",
        "the first new token of a resumed row is refused",
        (
            "tests/faults/test_replayed_tokens.py::test_behind_the_resume_point_any_token_runs",
        ),
    ),
    Mutation(
        "one-token-short-of-max-length",
        "append.py",
        "(length + counts > cache.plan.max_length, Status.TOO_LONG)",
        "(length + counts >= cache.plan.max_length, Status.TOO_LONG)",
        "the last token that fits is refused",
        (
            "tests/faults/test_fork_and_rewind.py::test_a_row_alone_needs_no_free_block_to_go_back",
        ),
    ),
    # Reading and pooling.
    Mutation(
        "pooled-too-late",
        "compress.py",
        "closes = first + ratio <= step.end[:, None]",
        "closes = first + ratio < step.end[:, None]",
        "an entry is missing for the token that completes it",
        (
            "tests/faults/test_k04_compression_boundary.py::test_b18_each_row_of_a_batch_compresses_by_its_own_length",
        ),
    ),
    Mutation(
        "pooled-without-the-halo",
        "compress.py",
        "where = first[..., None] - halo + jnp.arange(halo + ratio, dtype=jnp.int32)",
        "where = first[..., None] + jnp.arange(halo + ratio, dtype=jnp.int32)",
        "an overlapping entry pools the wrong rows",
        (
            "tests/faults/test_k04_compression_boundary.py::test_b19_the_halo_is_kept_at_the_boundary",
        ),
    ),
    Mutation(
        "replay-pools-again",
        "compress.py",
        "fresh = closes & (first >= step.held[:, number, None])",
        "fresh = closes",
        "a replay overwrites held entries by pools of inexact rows",
        (
            "tests/faults/test_replay_extent.py::test_either_form_alone_needs_the_whole_replay",
        ),
    ),
    Mutation(
        "open-unit-always-read",
        "select.py",
        "own = jnp.where((step.positions + 1) % unit != 0, step.positions // unit, -1)",
        "own = step.positions // unit",
        "the unit of the query is read twice where it is complete",
        (
            "tests/faults/test_k04_compression_boundary.py::test_entries_and_tails_are_those_of_a_cold_run[sparse]",
        ),
    ),
    Mutation(
        "state-of-one-token-earlier",
        "recurrent.py",
        "before = step.positions[:, 0] - 1",
        "before = step.positions[:, 0] - 2",
        "a state is read from the block of the token before",
        (
            "tests/faults/test_fork_and_rewind.py::test_a_fork_past_an_unfinished_state_leaves_no_block_behind",
        ),
    ),
    Mutation(
        "offset-of-the-next-entry",
        "gather.py",
        "offset = positions % pool.block_tokens // pool.entry_tokens",
        "offset = (positions + 1) % pool.block_tokens // pool.entry_tokens",
        "single entries are read from the place beside",
        ("tests/core/test_gather.py::test_every_position_finds_its_entry_in_the_ring",),
        package="pallas_kernels",
    ),
)
