"""Small mistakes in the library's own code, each with a test that must fail.

Every text stands exactly once in its file; ``python -m tests.mutations`` applies them
one by one to a copy and runs the named tests there.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutation:
    """One mistake.

    Attributes:
      name: of the mistake.
      file: in ``hybridcache_jax``.
      old: text that stands once in it.
      new: what it becomes.
      breaks: what goes wrong.
      tests: pytest node ids; one of them at least must fail.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]


_SEED = "tests/machine/test_machine.py::test_a_seed_in_step"
FINE, MIXED, CSA, SPARSE, RECURRENT = (
    (f"{_SEED}[{name}]",) for name in ("fine", "mixed", "csa", "sparse", "recurrent")
)
_LIFECYCLE = ("tests/core/test_lifecycle.py",)
_VALIDATE = ("tests/core/test_validate.py",)
_FORMS = ("tests/core/test_forms.py",)
_INDEX = ("tests/core/test_prefix_index.py",)
_OUTER = "tests/faults/test_outer_tier.py::"
_SOLVER = ("tests/core/test_solver.py::test_replay_extents_by_hand",)

MUTATIONS = (
    # Blocks.
    Mutation(
        "epoch-not-bumped-on-allocation",
        "lifecycle.py",
        "        epoch=add(table.epoch, ids, 1),\n"
        "        pins=put(table.pins, ids, pins),\n",
        "        pins=put(table.pins, ids, pins),\n",
        "a block that is handed out again looks like the one before",
        _LIFECYCLE,
    ),
    Mutation(
        "epoch-not-bumped-on-free",
        "lifecycle.py",
        "        epoch=add(table.epoch, ids, 1),\n"
        "        pins=put(table.pins, ids, 0),\n",
        "        pins=put(table.pins, ids, 0),\n",
        "a block that was evicted looks as if it were there",
        _LIFECYCLE,
    ),
    Mutation(
        "epoch-not-bumped-on-reopening",
        "lifecycle.py",
        "        epoch=add(table.epoch, ids, 1),\n        used=put",
        "        used=put",
        "a block that is written again looks like the finished one",
        ("tests/faults/test_written_again.py",),
    ),
    Mutation(
        "label-not-cleared",
        "lifecycle.py",
        "        form=put(table.form, ids, Form.NONE),\n",
        "",
        "a free block carries the label of a form",
        FINE,
    ),
    Mutation(
        "keep-mark-not-cleared",
        "lifecycle.py",
        "        kept=put(table.kept, ids, False),\n        first",
        "        first",
        "a free block is still marked as stored",
        _LIFECYCLE,
    ),
    Mutation(
        "position-not-cleared",
        "lifecycle.py",
        "        first=put(table.first, ids, -1),\n",
        "",
        "a free block still has a position",
        FINE,
    ),
    Mutation(
        "allocated-without-a-pin",
        "lifecycle.py",
        "Stage.WRITING, 1, clock, **labels)",
        "Stage.WRITING, 0, clock, **labels)",
        "the block a row writes is pinned by nobody",
        FINE,
    ),
    Mutation(
        "pin-missing",
        "lifecycle.py",
        "pins=add(table.pins, ids, 1),",
        "pins=table.pins,",
        "what a lease reads may be evicted",
        FINE,
    ),
    Mutation(
        "pin-not-returned",
        "lifecycle.py",
        "pins=add(table.pins, ids, -1), used",
        "pins=table.pins, used",
        "a released block is never free again",
        FINE,
    ),
    Mutation(
        "unstored-blocks-stay",
        "lifecycle.py",
        "    stored = get(table.kept, ids, True) & (",
        "    stored = (",
        "a sealed block that nobody stores leaks",
        FINE,
    ),
    Mutation(
        "unfinished-blocks-are-kept",
        "lifecycle.py",
        "kept=put(table.kept, _masked(table, ids, sealed), True)",
        "kept=put(table.kept, ids, True)",
        "a half written block is stored",
        _LIFECYCLE,
    ),
    Mutation(
        "pinned-blocks-are-evictable",
        "lifecycle.py",
        "return (table.stage == Stage.SEALED) & table.kept & (table.pins == 0)",
        "return (table.stage == Stage.SEALED) & table.kept",
        "what a row reads is evicted",
        FINE,
    ),
    Mutation(
        "free-stack-overwritten",
        "lifecycle.py",
        "place = jnp.where(valid, table.num_free + rank, size)",
        "place = jnp.where(valid, table.num_free, size)",
        "of several blocks freed at once all but one are lost",
        FINE,
    ),
    # Eviction.
    Mutation(
        "one-block-too-many-evicted",
        "eviction.py",
        "(jnp.arange(order.shape[0]) < count)",
        "(jnp.arange(order.shape[0]) <= count)",
        "an eviction takes one more than was asked for",
        FINE,
    ),
    Mutation(
        "beginning-evicted-before-end",
        "eviction.py",
        "jnp.lexsort((-table.first, table.used, ~candidates))",
        "jnp.lexsort((table.first, table.used, ~candidates))",
        "a chain loses its beginning first, and all of it with it",
        _LIFECYCLE,
    ),
    Mutation(
        "recover-brings-back-dead-weight",
        "eviction.py",
        "back = jnp.where(begun & table.kept,",
        "back = jnp.where(begun,",
        "a block that nobody stores comes back and leaks",
        ("tests/faults/test_k23_eviction.py",),
    ),
    Mutation(
        "dead-weight-freed-under-a-row",
        "eviction.py",
        "gone = dead & (table.stage == Stage.SEALED) & (table.pins == 0)",
        "gone = dead & (table.stage == Stage.SEALED)",
        "a row's block is given away while it reads it",
        FINE,
    ),
    # Rows and leases.
    Mutation(
        "ticket-not-compared",
        "rows.py",
        "good = view.live & (view.ticket == tickets)",
        "good = view.live",
        "a void receipt runs the row of somebody else",
        FINE,
    ),
    Mutation(
        "replay-start-forgotten-in-the-check",
        "rows.py",
        "        lo = jnp.maximum(lo, view.since[:, index])\n",
        "",
        "a replay asks for what it is about to rebuild",
        FINE,
    ),
    Mutation(
        "ring-is-one-block-off",
        "rows.py",
        "last = (extent[:, None] - 1) // block_tokens",
        "last = extent[:, None] // block_tokens",
        "columns of a ring stand for the wrong blocks",
        FINE,
    ),
    Mutation(
        "no-second-check",
        "lease.py",
        "status = rowlib.check(pinned, row[None], ticket[None])[0]",
        "status = jnp.int32(0)",
        "a plan whose blocks are gone is admitted",
        FINE,
    ),
    Mutation(
        "first-window-block-not-pinned",
        "lease.py",
        "first = last if empty else lo // pool.block_tokens",
        "first = last if empty else lo // pool.block_tokens + 1",
        "the oldest key of a window is missing",
        FINE,
    ),
    Mutation(
        "rebuilt-windows-count-from-zero",
        "lease.py",
        "since.append(plan.start if empty else 0)",
        "since.append(0)",
        "a replay reads windows that are empty",
        FINE,
    ),
    Mutation(
        "replay-keeps-rebuilt-forms-unwritten",
        "lease.py",
        "held.append(reach)",
        "held.append(plan.length)",
        "a replay does not write what it is to rebuild",
        FINE,
    ),
    Mutation(
        "replay-takes-other-tokens",
        "lease.py",
        "known=np.array(plan.length, np.int32)",
        "known=np.array(plan.start, np.int32)",
        "a replay of other tokens reads entries of the old ones",
        FINE,
    ),
    Mutation(
        "released-by-any-receipt",
        "lease.py",
        "mine = cache.rows.live[row] & (cache.rows.ticket[row] == ticket)",
        "mine = cache.rows.live[row]",
        "a void receipt releases the row of somebody else",
        ("tests/faults/test_lease_faults.py",),
    ),
    # Steps.
    Mutation(
        "trimmed-one-token-early",
        "append.py",
        "behind = (number >= 0) & ((number + 1) * size <= seen[:, None])",
        "behind = (number >= 0) & ((number + 1) * size <= seen[:, None] + 1)",
        "the oldest key that the next query sees is let go",
        FINE,
    ),
    Mutation(
        "rollback-margin-forgotten",
        "append.py",
        "back = cache.plan.held_from(pool.form, view.length)",
        "back = view.length",
        "what a rewind within the margin needs is let go",
        ("tests/faults/test_fork_and_rewind.py",),
    ),
    Mutation(
        "sealed-one-token-early",
        "append.py",
        "last = (step.positions + 1) % pool.block_tokens == 0",
        "last = (step.positions + 2) % pool.block_tokens == 0",
        "a block counts as finished before its last entry is there",
        MIXED,
    ),
    Mutation(
        "one-block-reserved-too-many",
        "append.py",
        "ahead = number * size < (view.length + inputs.counts)[:, None]",
        "ahead = number * size <= (view.length + inputs.counts)[:, None]",
        "a row takes a block that it does not write",
        FINE,
    ),
    Mutation(
        "granted-beyond-what-is-free",
        "append.py",
        "fits = jnp.all(need <= left)",
        "fits = jnp.any(need <= left)",
        "a row runs without the blocks it needs",
        FINE,
    ),
    Mutation(
        "held-entries-overwritten",
        "append.py",
        "return jnp.where(real & (positions >= view.held[:, index, None]), blocks, "
        "nowhere)",
        "return jnp.where(real, blocks, nowhere)",
        "a replay overwrites exact entries by inexact ones",
        CSA,
    ),
    Mutation(
        "one-token-beyond-the-prompt-is-known",
        "append.py",
        "again = real & (positions < known[:, None])",
        "again = real & (positions <= known[:, None])",
        "the first new token of a resumed row is refused",
        FINE,
    ),
    Mutation(
        "one-token-short-of-max-length",
        "append.py",
        "(length + counts > cache.plan.max_length, Status.TOO_LONG)",
        "(length + counts >= cache.plan.max_length, Status.TOO_LONG)",
        "the last token that fits is refused",
        FINE,
    ),
    # Sequences.
    Mutation(
        "fork-does-not-pin",
        "sequences.py",
        "        table = lifecycle.pin(table, shared, clock)\n",
        "",
        "two rows share blocks that one pin holds",
        FINE,
    ),
    Mutation(
        "finished-block-written-again-in-place",
        "sequences.py",
        "again = (number == last[:, None]) & inside[:, None] & sealed",
        "again = (number < 0) & sealed",
        "a rewound row overwrites a block that others read",
        MIXED,
    ),
    Mutation(
        "rewound-into-a-replay",
        "sequences.py",
        "return ~rebuilt | (lengths == 0) | (lengths >= get(rows.known, which, 0))",
        "return ~rebuilt | (lengths >= 0)",
        "a row goes on from rows that a replay made inexact",
        FINE,
    ),
    Mutation(
        "rewind-keeps-a-block-too-many",
        "sequences.py",
        "gone = number * pool.block_tokens >= length",
        "gone = number * pool.block_tokens > length",
        "the block behind the cut stays with the row",
        FINE,
    ),
    Mutation(
        "state-of-the-block-after",
        "sequences.py",
        "taken = jnp.any((number == last[:, None] - 1) & sealed, axis=1)",
        "taken = jnp.any((number == last[:, None]) & sealed, axis=1)",
        "a rewound row goes on from a state of another length",
        RECURRENT,
    ),
    Mutation(
        "rewound-row-publishes-old-claims",
        "branching.py",
        "kept = min(lease.plan.length, length - length % self.plan.spec.grid)",
        "kept = lease.plan.length",
        "blocks of the tokens before a rewind are claimed for those after it",
        ("tests/faults/test_fork_and_rewind.py",),
    ),
    # Verdicts.
    Mutation(
        "epoch-not-compared",
        "validate.py",
        "        (Reason.EVICTED, look(table.epoch) == epochs),\n",
        "",
        "a block that changed hands counts as held",
        FINE,
    ),
    Mutation(
        "version-not-compared",
        "validate.py",
        "        (Reason.VERSION_CHANGED, look(table.version) == version),\n",
        "",
        "entries of other weights count as held",
        _VALIDATE,
    ),
    Mutation(
        "position-not-compared",
        "validate.py",
        "((label == int(form)) | outer) & (look(table.first) == first)",
        "((label == int(form)) | outer)",
        "a block of another position counts as held",
        _VALIDATE,
    ),
    Mutation(
        "unfinished-counts-as-held",
        "validate.py",
        "        (Reason.NOT_SEALED, done),\n",
        "",
        "a block that is being evicted or written counts as held",
        FINE,
    ),
    Mutation(
        "first-required-block-not-asked",
        "validate.py",
        "start, stop = lo // size, hi // size",
        "start, stop = lo // size + 1, hi // size",
        "a hole at the beginning of a window is not seen",
        _VALIDATE,
    ),
    Mutation(
        "halo-forgotten",
        "forms.py",
        "start = p - p % geometry.ratio - geometry.halo",
        "start = p - p % geometry.ratio",
        "the rows of the block before are not required",
        _FORMS,
    ),
    Mutation(
        "window-one-key-short",
        "layers.py",
        "start = position - (self.size - 1)",
        "start = position - (self.size - 2)",
        "the oldest key of a window is not required",
        _FORMS,
    ),
    Mutation(
        "last-token-not-run",
        "resume.py",
        "(points <= num_tokens - 1)",
        "(points <= num_tokens)",
        "nothing is run, so there are no logits",
        ("tests/core/test_solver.py::test_one_position_at_least_is_run",),
    ),
    Mutation(
        "replay-without-history",
        "resume.py",
        "replayable = allowed & whole & ~ready",
        "replayable = allowed & ~ready",
        "a replay is planned over a history that has holes",
        FINE,
    ),
    Mutation(
        "replay-ignores-windows-below",
        "replay.py",
        "steps[-1] = Window(last.size + step.reach, last.entry)",
        "steps[-1] = last",
        "a replay starts too late for stacked windows",
        _SOLVER,
    ),
    Mutation(
        "claims-not-checked",
        "host_facts.py",
        "        found[bad] = facts(table, ids[bad], epochs[bad], "
        "first=first[bad], **claim)\n",
        "",
        "the index is believed",
        FINE,
    ),
    # Publishing and claims.
    Mutation(
        "rebuilt-blocks-published",
        "publication.py",
        "good = (numbers >= floor) & (numbers < total)",
        "good = (numbers >= 0) & (numbers < total)",
        "what a replay rebuilt inexactly is stored",
        FINE,
    ),
    Mutation(
        "useless-blocks-kept",
        "publication.py",
        "            good = good & _of_use(pool, numbers, kept)\n",
        "            pass\n",
        "blocks that no resume point requires are kept",
        MIXED,
    ),
    Mutation(
        "stale-claims-stay",
        "prefix_index.py",
        "            if good.all():\n                continue\n",
        "            continue\n",
        "a prefix that was lost once is never found again",
        FINE,
    ),
    Mutation(
        "hole-not-rounded",
        "prefix_index.py",
        "length = min(length, hole - hole % self._grid)",
        "length = min(length, hole)",
        "a prefix is cut between resume points",
        _INDEX,
    ),
    Mutation(
        "older-values-accepted",
        "lineage.py",
        "if stamp != self.newest:",
        "if stamp > self.newest and stamp < self.newest:",
        "claims of one future are read in another",
        FINE,
    ),
    Mutation(
        "unknown-producers-share",
        "identity.py",
        "return bool(self.weights) and bool(self.config) and bool(self.layout)",
        "return bool(self.config) and bool(self.layout)",
        "what nobody can name is reused",
        ("tests/core/test_identity.py",),
    ),
    # Reading and pooling.
    Mutation(
        "pooled-too-early",
        "compress.py",
        "closes = first + ratio <= step.end[:, None]",
        "closes = first + ratio <= step.end[:, None] + 1",
        "an entry is made before its last row is there",
        CSA,
    ),
    Mutation(
        "pooled-without-the-halo",
        "compress.py",
        "where = first[..., None] - halo + jnp.arange(halo + ratio, dtype=jnp.int32)",
        "where = first[..., None] + jnp.arange(halo + ratio, dtype=jnp.int32)",
        "an overlapping entry pools the wrong rows",
        CSA,
    ),
    Mutation(
        "replay-pools-again",
        "compress.py",
        "fresh = closes & (first >= step.held[:, number, None])",
        "fresh = closes",
        "a replay overwrites held entries by pools of inexact rows",
        CSA,
    ),
    Mutation(
        "open-unit-always-read",
        "select.py",
        "own = jnp.where((step.positions + 1) % unit != 0, step.positions // unit, -1)",
        "own = step.positions // unit",
        "the unit of the query is read twice where it is complete",
        SPARSE,
    ),
    Mutation(
        "state-of-one-token-earlier",
        "recurrent.py",
        "before = step.positions[:, 0] - 1",
        "before = step.positions[:, 0] - 2",
        "a state is read from the block of the token before",
        RECURRENT,
    ),
    Mutation(
        "offset-of-the-next-entry",
        "gather.py",
        "offset = positions % pool.block_tokens // pool.entry_tokens",
        "offset = (positions + 1) % pool.block_tokens // pool.entry_tokens",
        "single entries are read from the place beside",
        CSA,
    ),
    # The outer tier.
    Mutation(
        "digest-not-compared",
        "offload/outer.py",
        "if why is None and digest(payload.planes) != payload.digest:",
        "if why is None and False:",
        "a flipped bit comes back as if it were right",
        (_OUTER + "test_any_flipped_bit_is_found_and_changes_nothing",),
    ),
    Mutation(
        "layout-of-loads-not-compared",
        "offload/outer.py",
        "why = layout_refusal(spec, self.plan.backend, payload)",
        "why = None",
        "a block of another dtype is cast into the pool",
        (_OUTER + "test_damage_is_named_and_contained",),
    ),
    Mutation(
        "what-failed-is-not-set-aside",
        "offload/outer.py",
        "if why is not None:\n                    self.tier.quarantine(pool, place)\n",
        "if why is not None:\n",
        "a block that cannot be used is loaded again and again",
        (_OUTER + "test_b58_what_failed_once_is_not_chosen_again",),
    ),
    Mutation(
        "pending-plans-unprotected",
        "offload/outer.py",
        "                mask[ids] = True\n",
        "                mask[ids] = False\n",
        "what a pending plan needs is evicted",
        (_OUTER + "test_what_a_pending_plan_needs_is_not_evicted",),
    ),
    Mutation(
        "place-epoch-not-bumped",
        "offload/host_tier.py",
        "        table.epoch[place] += 1\n",
        "",
        "a place that was handed out again looks like the one before",
        (
            _OUTER
            + "test_any_order_of_saves_loads_and_evictions_gives_cold_states[fine]",
        ),
    ),
    Mutation(
        "payloads-alias-the-pool",
        "offload/payload.py",
        'own = {name: np.array(plane, order="C") for name, plane in planes.items()}',
        "own = planes",
        "a save shares memory with what it was made of",
        (_OUTER + "test_a_payload_has_memory_of_its_own",),
    ),
)
