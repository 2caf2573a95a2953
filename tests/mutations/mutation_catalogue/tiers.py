"""Mistakes of the outer tier."""

from .record import OUTER, Mutation

TIERS = (
    Mutation(
        "digest-not-compared",
        "offload/outer.py",
        "if why is None and digest(payload.planes) != payload.digest:",
        "if why is None and False:",
        "a flipped bit comes back as if it were right",
        (OUTER + "test_any_flipped_bit_is_found_and_changes_nothing",),
    ),
    Mutation(
        "layout-of-loads-not-compared",
        "offload/outer.py",
        "why = layout_refusal(spec, self.plan.backend, payload)",
        "why = None",
        "a block of another dtype is cast into the pool",
        (OUTER + "test_damage_is_named_and_contained",),
    ),
    Mutation(
        "what-failed-is-not-set-aside",
        "offload/outer.py",
        "if why is not None:\n                    self.tier.quarantine(pool, place)\n",
        "if why is not None:\n",
        "a block that cannot be used is loaded again and again",
        (OUTER + "test_b58_what_failed_once_is_not_chosen_again",),
    ),
    Mutation(
        "pending-plans-unprotected",
        "offload/outer.py",
        "                mask[ids] = True\n",
        "                mask[ids] = False\n",
        "what a pending plan needs is evicted",
        (OUTER + "test_what_a_pending_plan_needs_is_not_evicted",),
    ),
    Mutation(
        "place-epoch-not-bumped",
        "offload/host_tier.py",
        "        table.epoch[place] += 1\n",
        "",
        "a place that was handed out again looks like the one before",
        (
            OUTER
            + "test_any_order_of_saves_loads_and_evictions_gives_cold_states[fine]",
        ),
    ),
    Mutation(
        "payloads-alias-the-pool",
        "offload/payload.py",
        'own = {name: np.array(plane, order="C") for name, plane in planes.items()}',
        "own = planes",
        "a save shares memory with what it was made of",
        (OUTER + "test_a_payload_has_memory_of_its_own",),
    ),
)
