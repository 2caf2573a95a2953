"""Mistakes about claims: what is stored, and who finds it."""

from .record import INDEX, PUBLICATION, Mutation

CLAIMS = (
    Mutation(
        "rebuilt-blocks-published",
        "publication.py",
        "good = (numbers >= floor) & (numbers < total)",
        "good = (numbers >= 0) & (numbers < total)",
        "what a replay rebuilt inexactly is stored",
        PUBLICATION,
    ),
    Mutation(
        "useless-blocks-kept",
        "publication.py",
        "            good = good & _of_use(pool, numbers, kept[number])\n",
        "            pass\n",
        "blocks that no resume point requires are kept",
        PUBLICATION,
    ),
    Mutation(
        "stale-claims-stay",
        "prefix_index.py",
        "            if good.all():\n                continue\n",
        "            continue\n",
        "a prefix that was lost once is never found again",
        (
            "tests/core/test_prefix_index.py::test_true_claims_stay_and_stale_ones_are_replaced",
        ),
    ),
    Mutation(
        "edge-compared-by-its-beginning",
        "claims.py",
        "self.packed.startswith(ids.data)",
        "self.packed.startswith(ids[:1].data)",
        "a prompt that goes another way on an edge finds what follows there",
        INDEX,
    ),
    Mutation(
        "claims-of-another-cache-adopted",
        "prefix_snapshots.py",
        "if claims.stamp != self._line.stamp_of(cache):",
        "if False:",
        "what another cache holds is found in this one",
        (
            "tests/faults/test_adopted_claims.py::test_claims_of_another_plan_or_an_older_value_are_refused",
        ),
    ),
    Mutation(
        "namespace-of-nothing-shared",
        "identity.py",
        "if self.namespace is None:",
        "if not self.namespace:",
        "what a tenant numbered 0 stored is found by all without one",
        (
            "tests/core/test_identity.py::test_a_namespace_that_is_no_name_is_not_the_shared_one",
        ),
    ),
    Mutation(
        "hole-not-rounded",
        "index_pruning.py",
        "length = min(length, hole - hole % self._grid)",
        "length = min(length, hole)",
        "a prefix is cut between resume points",
        INDEX,
    ),
    Mutation(
        "older-values-accepted",
        "lineage.py",
        "if stamp != self.newest:",
        "if stamp > self.newest and stamp < self.newest:",
        "claims of one future are read in another",
        ("tests/core/test_lineage.py::test_an_older_or_a_foreign_value_is_refused",),
    ),
    Mutation(
        "plans-of-other-lines-granted",
        "lineage.py",
        "if plan.line != self.name:",
        "if plan.line < 0:",
        "a plan of another cache names blocks of this one",
        ("tests/faults/test_other_lines.py::test_a_plan_of_another_cache_is_refused",),
    ),
    Mutation(
        "tickets-of-two-lines-meet",
        "lease.py",
        "tickets = jnp.maximum(table.ticket, admission.line)",
        "tickets = jnp.maximum(table.ticket, 0)",
        "a lease of another cache runs a row of this one",
        (
            "tests/faults/test_other_lines.py::test_after_a_restart_nothing_of_before_fits",
        ),
    ),
    Mutation(
        "claims-of-a-cut-publication-stay",
        "prefix_index.py",
        "self._lead(pool, (ids, epochs), nothing)",
        "pass",
        "what a retry writes is found under other tokens",
        (
            "tests/faults/test_other_lines.py::test_an_interrupted_publish_leaves_no_claim_on_what_a_retry_writes",
        ),
    ),
    Mutation(
        "dead-weight-goes-by-age",
        "upkeep.py",
        "        self._watch.lost(cache, after)\n        if not any(short(after",
        "        after = cache\n        if not any(short(after",
        "what can be resumed makes room while dead weight lies there",
        (
            "tests/faults/test_k23_eviction.py::test_dead_weight_goes_before_what_can_be_resumed",
        ),
    ),
    Mutation(
        "unknown-producers-share",
        "identity.py",
        "return bool(self.weights) and bool(self.config) and bool(self.layout)",
        "return bool(self.config) and bool(self.layout)",
        "what nobody can name is reused",
        ("tests/core/test_identity.py",),
    ),
    Mutation(
        "older-claims-replace-what-lies-outside",
        "prefix_index.py",
        "kept = good | ~pruning.good(pool, fresh.claimed)[: len(good)]",
        "kept = good",
        "a plan's old claim hides what lies in the outer tier",
        INDEX,
    ),
)
