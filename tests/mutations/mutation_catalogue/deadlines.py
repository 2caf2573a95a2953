"""Mistakes about the deadlines of leases."""

from .record import Mutation

_LEASES = "tests/faults/test_leases.py::"

DEADLINES = (
    Mutation(
        "overdue-one-tick-early",
        "deadlines.py",
        "np.where(live, clock - due, 0)",
        "np.where(live, clock - due + 1, 0)",
        "a lease is in doubt while it still has a tick",
        (_LEASES + "test_a_lease_in_doubt_keeps_its_memory_until_its_receipt_comes",),
    ),
    Mutation(
        "deadline-does-not-count-from-now",
        "deadlines.py",
        "    return int(cache.clock) + int(ticks)\n",
        "    return ticks\n",
        "a lease that is renewed late is overdue at once",
        (_LEASES + "test_a_lease_in_doubt_keeps_its_memory_until_its_receipt_comes",),
    ),
    Mutation(
        "anybody-renews",
        "deadlines.py",
        "mine = jnp.where(status == Status.OK, row, cache.plan.max_sequences)",
        "mine = row",
        "a void receipt quiets the alarm of somebody else",
        (_LEASES + "test_only_a_lease_that_holds_is_renewed",),
    ),
    Mutation(
        "lost-blocks-counted-as-kept",
        "deadlines.py",
        "np.count_nonzero(current)",
        "len(current)",
        "a lease in doubt is said to keep what others have",
        (_LEASES + "test_only_a_lease_that_holds_is_renewed",),
    ),
    Mutation(
        "deadline-of-the-lease-before",
        "lease.py",
        "deadline=table.deadline.at[row].set(admission.deadline)",
        "deadline=table.deadline",
        "a new lease has the deadline of the one before",
        (_LEASES + "test_a_lease_in_doubt_keeps_its_memory_until_its_receipt_comes",),
    ),
    Mutation(
        "fork-without-deadline",
        "sequences.py",
        'for name in (*same, "deadline", "tokens")',
        'for name in (*same, "tokens")',
        "a forked row is never in doubt, or always",
        (_LEASES + "test_exactly_the_leases_whose_time_is_over_are_named",),
    ),
)
