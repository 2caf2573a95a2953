"""Counters, gauges and histograms of what a cache did, on a registry you hand in.

Make one :class:`Metrics` on a :class:`MemoryRegistry` or on a
:class:`PrometheusRegistry`, or on anything else with the methods of :class:`Registry`,
and give it to ``PrefixCache(plan, metrics=...)`` or ``Engine(..., metrics=...)``.  Who
runs steps in a loop of their own calls :meth:`Metrics.ran` for every row of every
step.  Gauges are as of the last ``PrefixCache.account``; the engine asks for it
whenever a request ends.

What is counted is what happened: a prompt that was matched and never acquired is a
lookup, and reuses nothing.  So these sums hold:

- verdicts = lookups = hits + misses;
- hit tokens over all tiers = reused tokens = saved tokens + those of the tier
  ``replayed``;
- saved tokens + run tokens of the phases ``replay`` and ``prefill`` + abandoned tokens
  = prompt tokens, once every row is released; until then the sum lacks what rows have
  not reached of their prompts;
- stored minus evicted blocks = blocks that stored prefixes hold;
- free + evictable + pinned + writing + quarantined + moving blocks = the pool's size,
  and likewise the bytes of a form.

In the third one every admission counts every position of its prompt once.  What is run
once more is in the phase ``again``: below where a row stood before it was rewound, and
in a row that was forked inside the prompt.  What the cold row of a shadow run runs
(``cold_plan(..., shadow=True)``) is in the phase ``shadow`` up to the comparison.  A
request whose row went stale and that starts again is admitted twice.

Counters do not fall: a hit that its shadow run found wrong stays among the hit, reused
and saved tokens, and ``prefill`` has what the cold row runs behind the resume point.
Answers rest on the hit tokens minus the overturned ones, tier by tier.

::

    hybridcache_lookups_total
        counter, lookups: Prompts that were matched.
    hybridcache_verdicts_total{verdict}
        counter, lookups: Lookups by verdict; they add up to the lookups.
    hybridcache_hits_total
        counter, lookups: Lookups for which the index claimed a resume point above 0.
    hybridcache_misses_total{reason}
        counter, lookups: Lookups for which it claimed none, by reason; hits and misses
        add up to the lookups.
    hybridcache_fallbacks_total{verdict}
        counter, lookups: Hits that could not be resumed at once where the index
        claimed, by the verdict they got instead (RESUMABLE: at a lower point). Over the
        hits it is the post-hit fallback rate.
    hybridcache_limiting_forms_total{form, reason}
        counter, lookups: Hits in which a form lacked something at the claimed point, by
        why.
    hybridcache_alignment_lost_tokens_total
        counter, tokens: Tokens shared with the store that no resume point reaches.
    hybridcache_history_gap_tokens
        histogram, tokens: Per hit, how much deeper the history alone reaches than all
        forms together.
    hybridcache_admissions_total{verdict}
        counter, leases: Plans that were acquired, by verdict; those of shadow runs are
        left out.
    hybridcache_stale_leases_total{where}
        counter, leases: Plans and leases that were refused because a block changed
        hands, by who met it.
    hybridcache_prompt_tokens_total
        counter, tokens: Prompt tokens of acquired plans; those of shadow runs are left
        out.
    hybridcache_reused_tokens_total
        counter, tokens: Tokens below the resume points of acquired plans.
    hybridcache_hit_tokens_total{tier}
        counter, tokens: Reused tokens by where they came from (device, outer,
        replayed); they add up to the reused tokens.
    hybridcache_saved_tokens_total
        counter, tokens: Prompt tokens of acquired plans that are not run.
    hybridcache_abandoned_tokens_total
        counter, tokens: Prompt tokens that a row had not reached when it was released.
    hybridcache_pin_ticks
        histogram, ticks: Logical time from the grant of a lease to its release.
    hybridcache_stored_blocks_total{form}
        counter, blocks: Blocks that stored prefixes took over.
    hybridcache_stored_bytes_total{form}
        counter, bytes: Their size.
    hybridcache_evicted_blocks_total{form, why}
        counter, blocks: Blocks that stored prefixes lost, by why: room, asked,
        dead_weight, mismatch.
    hybridcache_evicted_bytes_total{form, why}
        counter, bytes: Their size.
    hybridcache_blocks{pool, state}
        gauge, blocks: Blocks by what they are: free, evictable, pinned, writing,
        quarantined, moving.
    hybridcache_form_bytes{form, state}
        gauge, bytes: Likewise, in bytes.
    hybridcache_leases{state}
        gauge, leases: Leases by whether their deadline lies behind the clock: in_time,
        overdue; overdue should stay 0.
    hybridcache_index_tokens
        gauge, tokens: Tokens that the index claims.
    hybridcache_index_bytes
        gauge, bytes: Host memory of the index.
    hybridcache_step_rows_total{status}
        counter, rows: Rows of compiled steps by status.
    hybridcache_run_tokens_total{phase}
        counter, tokens: Positions that were run, by what for: replay, prefill, decode;
        prompt positions again, after a rewind or in a forked row; shadow runs.
    hybridcache_retraces_total
        counter, shapes: Shapes of the step that were compiled after warm-up; should
        stay 0.
    hybridcache_moved_out_blocks_total{form}
        counter, blocks: Evicted blocks of which the outer tier took a copy.
    hybridcache_moved_out_bytes_total{form}
        counter, bytes: Their size.
    hybridcache_store_failures_total{form}
        counter, blocks: Evicted blocks that the outer tier failed to take; they are
        lost.
    hybridcache_loaded_blocks_total{form}
        counter, blocks: Blocks that came back from the outer tier; they count as
        stored, too.
    hybridcache_loaded_bytes_total{form}
        counter, bytes: Their size.
    hybridcache_load_failures_total{stage}
        counter, loads: Loads from an outer tier that failed, by stage.
    hybridcache_saves_total{end}
        counter, saves: Published prefixes that were to be saved to a store, by how that
        ended: saved; there already; merged with a longer one; lost, because a block
        went before its turn or the scope changed; too_many waited; failed in the store.
    hybridcache_store_lookup_failures_total
        counter, lookups: Times a store failed to say what it has; each counts as a miss
        there.
    hybridcache_records_passed_by_total
        counter, records: Records of a store that were found and are damaged, foreign or
        unreadable.
    hybridcache_shadow_sampled_total
        counter, hits: Hits that were chosen to be computed again.
    hybridcache_shadow_compared_total
        counter, hits: Of them, hits whose state was compared with a cold run's.
    hybridcache_shadow_mismatches_total
        counter, hits: Of them, hits whose state differed; should stay 0.
    hybridcache_overturned_tokens_total{tier}
        counter, tokens: The hit tokens of those, by tier: no answer rests on them;
        should stay 0.
"""

from hybridcache_jax.observe.declarations import TABLE as TABLE
from hybridcache_jax.observe.declarations import Metric as Metric
from hybridcache_jax.observe.hooks import Hooks as Hooks
from hybridcache_jax.observe.metrics import Metrics as Metrics
from hybridcache_jax.observe.prometheus import PrometheusRegistry as PrometheusRegistry
from hybridcache_jax.observe.registry import MemoryRegistry as MemoryRegistry
from hybridcache_jax.observe.registry import Registry as Registry
