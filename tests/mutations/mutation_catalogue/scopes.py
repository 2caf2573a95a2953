"""Mistakes about who finds what: scopes, contents and provenance."""

from .record import Mutation

_TENANTS = "tests/faults/test_k10_tenant_isolation.py::"
_ROLLOUT = "tests/core/test_rollout.py::"
_CONTENTS = "tests/faults/test_k09_input_identity.py::"
_COMPARE = "tests/faults/test_shadow_compare.py::"
_PROVENANCE = "tests/faults/test_provenance.py::"

SCOPES = (
    Mutation(
        "number-of-the-forgotten-comes-again",
        "versions.py",
        "            self._given += 1\n",
        "            self._given = len(self._of) + 1\n",
        "blocks of a tenant who is gone bear the number of another one",
        (_TENANTS + "test_a_tenant_that_left_nothing_is_forgotten_and_its_number_too",),
    ),
    Mutation(
        "running-tenants-forgotten",
        "versions.py",
        "if identity in names or number in numbers",
        "if identity in names",
        "what a row publishes is not found: its tenant has another number by then",
        (_TENANTS + "test_a_tenant_that_left_nothing_is_forgotten_and_its_number_too",),
    ),
    Mutation(
        "content-ids-of-any-size",
        "contents.py",
        "    if size > LONGEST_ID:\n",
        "    if size > 8 * LONGEST_ID:\n",
        "the index keeps what no budget has counted",
        (_CONTENTS + "test_contents_that_are_none_are_refused",),
    ),
    Mutation(
        "session-without-owner",
        "rollout.py",
        "owners = {Scope.REQUEST: request, Scope.SESSION: session}",
        "owners = {Scope.REQUEST: request}",
        "sessions of one namespace find each other",
        (_ROLLOUT + "test_keys_are_equal_exactly_where_reuse_is_allowed",),
    ),
    Mutation(
        "default-scope-is-wider",
        "rollout.py",
        "    scope: Scope | str = Scope.REQUEST\n",
        "    scope: Scope | str = Scope.NAMESPACE\n",
        "a new model shares before anybody looked",
        (_ROLLOUT + "test_new_models_start_at_request",),
    ),
    Mutation(
        "scopes-of-producers-by-namespace",
        "rollout.py",
        "            identity.within(None): Scope.of(scope)\n            for identity",
        "            identity: Scope.of(scope)\n            for identity",
        "a producer named for one tenant keeps the wide scope elsewhere",
        (_ROLLOUT + "test_producers_have_scopes_of_their_own_whatever_the_namespace",),
    ),
    Mutation(
        "generation-not-counted",
        "rollout.py",
        "        self._generations[producer] = self._generations.get(producer, "
        "0) + 1\n",
        "",
        "what was stored before a demotion is found again after it",
        (_ROLLOUT + "test_nothing_from_before_a_change_is_found_after_it",),
    ),
    Mutation(
        "demotion-leaves-the-claims",
        "prefix_parts.py",
        "        if self._rollout.set_scope(producer, scope):\n            self._drop",
        "        if not self._rollout.set_scope(producer, scope):\n"
        "            self._drop",
        "what nobody can find is kept for ever",
        (_ROLLOUT + "test_a_demotion_takes_effect_at_once",),
    ),
    Mutation(
        "plan-of-before-the-demotion-admitted",
        "prefix_parts.py",
        "if not self._rollout.holds(plan.key):",
        "if plan.key.reason != 0:",
        "a hit that was matched before a demotion still runs",
        (_ROLLOUT + "test_a_demotion_takes_effect_at_once",),
    ),
    Mutation(
        "published-under-the-old-scope",
        "prefix_leases.py",
        "if offer is None or not self._rollout.holds(key):",
        "if offer is None or key.reason != Reason.OK:",
        "a row that ran on after a demotion stores claims that nobody finds",
        (_COMPARE + "test_a_mismatch_narrows_the_scope_and_sets_the_blocks_aside",),
    ),
    Mutation(
        "approximate-claims-outlive-the-request",
        "prefix_parts.py",
        "gone = (plan.key, marked(plan).key)",
        "gone = (plan.key,)",
        "what an approximate replay stored for a request stays behind it",
        (_ROLLOUT + "test_what_an_approximate_replay_stored_goes_with_its_request",),
    ),
    Mutation(
        "content-ids-not-compared",
        "contents.py",
        "pair = (int(token), type(content).__name__, content)",
        "pair = (int(token), type(content).__name__, 0)",
        "one picture is taken for another",
        (_CONTENTS + "test_a_key_that_is_given_again_stands_for_the_new_pair_alone",),
    ),
    Mutation(
        "placeholders-shared-without-content",
        "prefix_leases.py",
        "        ids = ids[: self._index.storable(ids, contents)]\n",
        "",
        "a placeholder of unknown content is stored",
        (_CONTENTS + "test_b38_a_placeholder_without_id_is_nothing_s_equal",),
    ),
    Mutation(
        "key-of-another-pair-given-out",
        "contents.py",
        "key = self._free.pop() if self._free else -1 - len(self._keys)",
        "key = -1 - len(self._keys)",
        "two contents have one key after others were forgotten",
        (_CONTENTS + "test_asking_remembers_nothing_and_what_goes_is_forgotten",),
    ),
    Mutation(
        "contents-behind-the-cut-stay",
        "branching.py",
        "            contents=lease.plan.contents.before(length),\n",
        "",
        "a rewound row is stored under contents it no longer has",
        (_CONTENTS + "test_a_rewound_row_is_stored_with_what_it_ran_last",),
    ),
    Mutation(
        "latest-start-for-cheapest",
        "approximate.py",
        "best = min(plans, key=lambda plan: plan.seconds)",
        "best = max(plans, key=lambda plan: plan.start)",
        "an approximate plan that waits for I/O replaces cheaper ones",
        (
            _PROVENANCE
            + "test_the_approximate_way_is_taken_only_where_it_is_the_cheapest",
        ),
    ),
    Mutation(
        "approximate-marked-as-exact",
        "approximate.py",
        "key = dataclasses.replace(plan.key, provenance=Provenance.APPROXIMATE)",
        "key = plan.key",
        "approximate rows publish under the exact key",
        (
            _PROVENANCE + "test_what_an_approximate_row_writes_is_marked_and_"
            "no_exact_reader_finds_it",
        ),
    ),
    Mutation(
        "approximate-rows-write-exact-blocks",
        "append.py",
        "provenance=jnp.broadcast_to(view.provenance[:, None], want.shape)",
        "provenance=jnp.broadcast_to(0 * view.provenance[:, None], want.shape)",
        "the facts call approximate blocks exact",
        (
            _PROVENANCE + "test_what_an_approximate_row_writes_is_marked_and_"
            "no_exact_reader_finds_it",
        ),
    ),
    Mutation(
        "approximate-row-published-by-an-exact-lease",
        "prefix_leases.py",
        "if int(view.provenance[0]) > key.provenance:",
        "if int(view.provenance[0]) < key.provenance:",
        "a forged lease stores approximate entries as exact",
        (_PROVENANCE + "test_an_exact_lease_on_approximate_blocks_is_refused",),
    ),
    Mutation(
        "bounded-replay-shorter-than-a-window",
        "approximate.py",
        "            start = min(start, lo if lo < hi else point)\n",
        "            pass\n",
        "positions that a window reads are not run at all",
        (_PROVENANCE + "test_a_bounded_replay_is_asked_for_and_says_what_it_is",),
    ),
    Mutation(
        "bounded-replay-without-history",
        "approximate.py",
        "if seconds >= plan.seconds or not _history_here(spec, facts, plan, version):",
        "if seconds >= plan.seconds:",
        "a replay reads a history that is not on the device",
        (_PROVENANCE + "test_a_bounded_replay_waits_for_no_history",),
    ),
)
