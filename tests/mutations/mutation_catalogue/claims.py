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
        "            good = good & _of_use(pool, numbers, kept)\n",
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
