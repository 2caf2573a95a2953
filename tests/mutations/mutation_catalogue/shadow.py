"""Mistakes of shadow runs."""

from .record import Mutation

_COMPARE = "tests/faults/test_shadow_compare.py::"

SHADOW = (
    Mutation(
        "mismatch-not-counted",
        "prefix_shadow.py",
        "self._watch.shadow_compared(equal=report.equal)",
        "self._watch.shadow_compared(equal=True)",
        "a wrong hit is found and no metric says so",
        (_COMPARE + "test_from_request_a_producer_falls_to_off",),
    ),
    Mutation(
        "compared-one-entry-short",
        "shadow.py",
        "needed = (first >= 0) & (first < hi) &",
        "needed = (first >= 0) & (first < hi - pool.entry_tokens) &",
        "the last entry of a hit is not compared",
        (_COMPARE + "test_a_missing_block_differs_and_nan_equals_itself",),
    ),
    Mutation(
        "scope-not-narrowed",
        "prefix_shadow.py",
        "            self.set_scope(identity, self._rollout.narrower(identity))\n",
        "            self.set_scope(identity, self._rollout.scope(identity))\n",
        "a producer whose hit was wrong keeps its scope",
        (_COMPARE + "test_from_request_a_producer_falls_to_off",),
    ),
    Mutation(
        "scope-narrowed-twice",
        "prefix_shadow.py",
        "if self._rollout.holds(lease.plan.key):",
        "if not report.equal:",
        "two wrong hits of one moment switch reuse off",
        (_COMPARE + "test_hits_of_one_moment_narrow_the_scope_once",),
    ),
    Mutation(
        "wrong-blocks-not-set-aside",
        "prefix_shadow.py",
        "after = self._shadow.set_aside(cache, np.int32(lease.row))",
        "after = self._shadow.set_aside(cache, np.int32(cold.row))",
        "rows that share the wrong blocks go on reading them",
        (_COMPARE + "test_a_mismatch_narrows_the_scope_and_sets_the_blocks_aside",),
    ),
    Mutation(
        "approximate-hits-sampled",
        "prefix_shadow.py",
        "if not hit or plan.provenance != Provenance.EXACT:",
        "if not hit:",
        "hits that are known to differ narrow the scope",
        (_COMPARE + "test_only_exact_hits_that_can_run_are_due",),
    ),
    Mutation(
        "other-tokens-compared",
        "shadow.py",
        "if (lengths != point).any() or not same or",
        "if (lengths != point).any() or",
        "a hit is compared with the run of another prompt",
        (_COMPARE + "test_rows_that_cannot_be_compared_are_refused",),
    ),
    Mutation(
        "other-contents-compared",
        "shadow.py",
        "not same or contents[0] != contents[1]:",
        "not same:",
        "a hit is compared with the run of another picture",
        (_COMPARE + "test_rows_that_cannot_be_compared_are_refused",),
    ),
    Mutation(
        "share-of-zero-chooses-one",
        "rollout.py",
        "return bits >> 11 < share * 2**53",
        "return bits >> 11 <= share * 2**53",
        "a hit is sampled where none should be",
        ("tests/core/test_shadow_sampling.py::test_the_stream_is_the_published_one",),
    ),
)
