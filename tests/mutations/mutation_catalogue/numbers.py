"""Mistakes about integer width and about costs."""

from .record import Mutation

_LEASES = "tests/faults/test_leases.py::"
_WIDTH = "tests/faults/test_k22_integer_width.py::"
_SCENARIOS = "tests/core/test_scenarios_forms.py::"
_SOLVER = "tests/core/test_solver.py::"
_MEASURED = "tests/faults/test_measured_loads.py::"

NUMBERS = (
    Mutation(
        "clock-wraps",
        "state.py",
        "return jnp.minimum(clock, NEVER - 1) + 1",
        "return clock + 1",
        "at its end the clock becomes negative",
        (_WIDTH + "test_the_clock_stands_still_at_its_end",),
    ),
    Mutation(
        "blocks-past-the-end-not-counted",
        "capacity.py",
        "last = plan.max_length + plan.max_chunk + 2 * longest",
        "last = plan.max_length + plan.max_chunk",
        "positions of the blocks behind the last token wrap",
        (_WIDTH + "test_the_last_plan_that_fits_and_the_first_that_does_not",),
    ),
    Mutation(
        "wide-token-ids-wrap",
        "tokens.py",
        "if abs(int(ids.min())) > _INT32_MAX or int(ids.max()) > _INT32_MAX:",
        "if abs(int(ids.min())) > _INT32_MAX:",
        "a token id beyond int32 becomes another token",
        ("tests/core/test_identity.py::test_prompts_that_are_none",),
    ),
    Mutation(
        "windows-reach-not-summed",
        "capacity.py",
        "reach = sum(layer.local.size for layer in plan.spec.layers if layer.local)",
        "reach = max((layer.local.size for layer in plan.spec.layers if "
        "layer.local), default=0)",
        "replays over stacked windows begin at a wrapped position",
        (_WIDTH + "test_windows_that_reach_too_far_together_are_refused",),
    ),
    Mutation(
        "deadline-beyond-the-clock",
        "deadlines.py",
        "left = NEVER - 1 - int(cache.clock)",
        "left = NEVER - 1",
        "a deadline beyond the clock's end wraps",
        (_LEASES + "test_at_its_end_the_clock_stops_and_gives_no_false_alarm",),
    ),
    Mutation(
        "bytes-free-of-charge",
        "cost.py",
        "return run + fixed + self._moved(nbytes, from_store)",
        "return run + fixed",
        "the price of a plan leaves its loads out",
        (_SCENARIOS + "test_a_plan_names_what_to_load_and_what_it_costs",),
    ),
    Mutation(
        "store-priced-as-memory",
        "cost.py",
        "return near + from_store * float(self.store_seconds_per_byte)",
        "return near + from_store * float(self.seconds_per_byte)",
        "blocks of a slow store are said to come as quickly as those in memory",
        (_MEASURED + "test_every_block_is_priced_by_where_it_lies",),
    ),
    Mutation(
        "store-begins-like-memory",
        "cost.py",
        "return xp.where(nbytes.stored > 0, xp.maximum(near, far), near)",
        "return xp.where(nbytes.stored > 0, near, near)",
        "a store that takes long to begin is waited for",
        (_MEASURED + "test_every_block_is_priced_by_where_it_lies",),
    ),
    Mutation(
        "loads-from-store-not-told-apart",
        "offload/load_times.py",
        "from_store=plan.bytes_from_store",
        "from_store=0",
        "a slow store makes host memory look slow",
        (_MEASURED + "test_what_the_store_brings_is_measured_as_such",),
    ),
    Mutation(
        "starts-of-the-store-not-tried",
        "resume_loads.py",
        "for stored in (False,) if near is None else (False, True):",
        "for stored in (False,):",
        "no replay goes on from a checkpoint in the store",
        ("tests/core/test_solver_brute_force.py::test_every_set_of_kinds",),
    ),
    Mutation(
        "newest-measurement-swapped",
        "cost.py",
        "return (1 - weight) * float(old) + weight * new",
        "return weight * float(old) + (1 - weight) * new",
        "one slow load outweighs all before it",
        (_SOLVER + "test_measurements_fold_into_the_rates",),
    ),
    Mutation(
        "rebuilt-forms-loaded-too",
        "ways.py",
        "if lo >= hi or (rebuilt and number not in kept):",
        "if lo >= hi:",
        "a load brings windows that the replay makes anyway",
        ("tests/core/test_ways.py::test_what_a_replay_rebuilds_is_not_loaded",),
    ),
    Mutation(
        "registries-may-raise",
        "observe/metrics.py",
        "        except Exception:\n            # The caller would lose",
        "        except ZeroDivisionError:\n            # The caller would lose",
        "a registry that raises in the middle of a poll costs the donated cache",
        (
            "tests/observe/test_metrics_registry.py::"
            "test_a_registry_that_raises_costs_its_counts_and_nothing_else",
        ),
    ),
)
