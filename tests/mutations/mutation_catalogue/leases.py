"""Mistakes about rows, leases, forks and rewinds."""

from .record import Mutation

LEASES = (
    # Rows and leases.
    Mutation(
        "ticket-not-compared",
        "rows.py",
        "good = view.live & (view.ticket == tickets)",
        "good = view.live",
        "a void receipt runs the row of somebody else",
        ("tests/faults/test_leases.py::test_only_a_lease_that_holds_is_renewed",),
    ),
    Mutation(
        "replay-start-forgotten-in-the-check",
        "rows.py",
        "        lo = jnp.maximum(lo, view.since[:, index])\n",
        "",
        "a replay asks for what it is about to rebuild",
        (
            "tests/faults/test_provenance.py::test_what_an_approximate_row_writes_is_marked_and_no_exact_reader_finds_it",
        ),
    ),
    Mutation(
        "ring-is-one-block-off",
        "rows.py",
        "last = (extent[:, None] - 1) // block_tokens",
        "last = extent[:, None] // block_tokens",
        "columns of a ring stand for the wrong blocks",
        (
            "tests/core/test_gather.py::test_a_column_stands_for_the_last_block_that_fell_to_it",
        ),
    ),
    Mutation(
        "no-second-check",
        "lease.py",
        "status = rowlib.check(pinned, row[None], ticket[None])[0]",
        "status = jnp.int32(0)",
        "a plan whose blocks are gone is admitted",
        ("tests/faults/test_written_again.py",),
    ),
    Mutation(
        "first-window-block-not-pinned",
        "lease.py",
        "first = last if empty else lo // pool.block_tokens",
        "first = last if empty else lo // pool.block_tokens + 1",
        "the oldest key of a window is missing",
        (
            "tests/faults/test_k01_exact_length.py::test_every_form_equals_cold_after_the_plan[window]",
        ),
    ),
    Mutation(
        "rebuilt-windows-count-from-zero",
        "lease.py",
        "since.append(plan.start if empty else 0)",
        "since.append(0)",
        "a replay reads windows that are empty",
        (
            "tests/faults/test_provenance.py::test_what_an_approximate_row_writes_is_marked_and_no_exact_reader_finds_it",
        ),
    ),
    Mutation(
        "replay-keeps-rebuilt-forms-unwritten",
        "lease.py",
        "held.append(reach)",
        "held.append(plan.length)",
        "a replay does not write what it is to rebuild",
        (
            "tests/faults/test_provenance.py::test_what_an_approximate_row_writes_is_marked_and_no_exact_reader_finds_it",
        ),
    ),
    Mutation(
        "replay-takes-other-tokens",
        "lease.py",
        "known=np.array(plan.length, np.int32)",
        "known=np.array(plan.start, np.int32)",
        "a replay of other tokens reads entries of the old ones",
        (
            "tests/faults/test_replayed_tokens.py::test_another_token_below_the_resume_point_does_not_run",
        ),
    ),
    Mutation(
        "released-by-any-receipt",
        "lease.py",
        "    mine = mine & (get(cache.rows.ticket, row, -1) == ticket)\n",
        "",
        "a void receipt releases the row of somebody else",
        (
            "tests/faults/test_lease_faults.py::test_a_forged_receipt_does_not_run_or_release",
        ),
    ),
    # Sequences.
    Mutation(
        "fork-does-not-pin",
        "sequences.py",
        "        table = lifecycle.pin(table, shared, clock)\n",
        "",
        "two rows share blocks that one pin holds",
        (
            "tests/faults/test_leases.py::test_exactly_the_leases_whose_time_is_over_are_named",
        ),
    ),
    Mutation(
        "fork-without-known",
        "sequences.py",
        '"since", "held", "known")',
        '"since", "held")',
        "a row forked in a replay runs other tokens than those that it reads of",
        (
            "tests/faults/test_fork_and_rewind.py::test_a_row_that_is_forked_in_a_replay_replays_to_the_end",
        ),
    ),
    Mutation(
        "fork-without-since",
        "sequences.py",
        '"length", "since", "held"',
        '"length", "held"',
        "a row forked in a replay is stale for want of what its parent never had",
        (
            "tests/faults/test_fork_and_rewind.py::test_a_row_that_is_forked_in_a_replay_replays_to_the_end",
        ),
    ),
    Mutation(
        "finished-block-written-again-in-place",
        "sequences.py",
        "again = (number == last[:, None]) & inside[:, None] & sealed",
        "again = (number < 0) & sealed",
        "a rewound row overwrites a block that others read",
        (
            "tests/faults/test_fork_and_rewind.py::test_cut_into_a_shared_prefix_the_row_publishes_its_own_tokens",
        ),
    ),
    Mutation(
        "rewound-into-a-replay",
        "sequences.py",
        "return ~rebuilt | (lengths == 0) | (lengths >= get(rows.known, which, 0))",
        "return ~rebuilt | (lengths >= 0)",
        "a row goes on from rows that a replay made inexact",
        (
            "tests/faults/test_fork_and_rewind.py::test_a_row_does_not_go_back_into_what_it_replayed",
        ),
    ),
    Mutation(
        "rewind-keeps-a-block-too-many",
        "sequences.py",
        "gone = number * pool.block_tokens >= length",
        "gone = number * pool.block_tokens > length",
        "the block behind the cut stays with the row",
        (
            "tests/faults/test_fork_and_rewind.py::test_b13_keep_none_drop_none_drop_too_many",
        ),
    ),
    Mutation(
        "state-of-the-block-after",
        "sequences.py",
        "taken = jnp.any((number == last[:, None] - 1) & sealed, axis=1)",
        "taken = jnp.any((number == last[:, None]) & sealed, axis=1)",
        "a rewound row goes on from a state of another length",
        (
            "tests/faults/test_fork_and_rewind.py::test_a_recurrent_row_goes_back_to_its_checkpoint_alone",
        ),
    ),
    Mutation(
        "rewound-row-publishes-old-claims",
        "branching.py",
        "kept = min(lease.plan.length, length - length % self.plan.spec.grid)",
        "kept = lease.plan.length",
        "blocks of the tokens before a rewind are claimed for those after it",
        (
            "tests/faults/test_fork_and_rewind.py::test_cut_into_a_shared_prefix_the_row_publishes_its_own_tokens",
        ),
    ),
    Mutation(
        "any-receipt-moves-a-row",
        "branching.py",
        "            require_lease(lease)\n",
        "            pass\n",
        "a receipt without a plan is taken, and the cache is lost on the way",
        (
            "tests/faults/test_bad_receipts.py::test_what_is_said_of_a_lease_in_doubt_is_no_lease",
        ),
    ),
)
