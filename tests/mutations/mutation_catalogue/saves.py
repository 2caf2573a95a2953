"""Mistakes between a cache and its store."""

from .record import Mutation

_SAVED = "tests/faults/test_saved_prefixes.py::"
_LOGITS = "tests/faults/test_stored_logits.py::"
_BACK = "tests/faults/test_write_back.py::"

SAVES = (
    Mutation(
        "record-of-a-lost-block",
        "offload/saves.py",
        "if RULES[pool.form].grows and not there.all():",
        "if False:",
        "a history with a hole is saved as if it were whole",
        (_SAVED + "test_a_history_with_a_hole_is_not_saved",),
    ),
    Mutation(
        "claims-not-checked-before-a-save",
        "offload/saves.py",
        "good = np.flatnonzero(holds(pool, ids, epochs, first))",
        "good = np.arange(len(ids))",
        "what took the place of a block is saved as that block",
        (_SAVED + "test_a_save_whose_block_changed_hands_writes_no_record",),
    ),
    Mutation(
        "saves-outlive-their-scope",
        "prefix_parts.py",
        "            self._link.drop(which)\n",
        "            pass\n",
        "what waits to be saved is saved after its producer was narrowed",
        (_SAVED + "test_a_save_that_waits_ends_with_its_scope",),
    ),
    Mutation(
        "records-not-given-up",
        "prefix_parts.py",
        "                self._link.give_up(producer)\n",
        "                pass\n",
        "other processes go on finding what one of them found to be wrong",
        (_SAVED + "test_records_of_a_producer_that_was_narrowed_are_found_by_nobody",),
    ),
    Mutation(
        "requests-share-records",
        "offload/store_link.py",
        "shared = key.scope > Scope.REQUEST and key.reason == Reason.OK",
        "shared = key.reason == Reason.OK",
        "what only its request may find is written for others",
        (_SAVED + "test_the_scope_decides_who_finds_a_record[request]",),
    ),
    Mutation(
        "damaged-packs-asked-again",
        "offload/host_tier.py",
        "            self.refuse(where.pack)\n",
        "            pass\n",
        "one damaged pack fails one load after the other",
        (
            _SAVED
            + "test_a_block_that_is_damaged_fails_one_load_and_is_not_asked_for_again",
        ),
    ),
    Mutation(
        "damaged-records-not-replaced",
        "offload/stored_blocks.py",
        "        if sound and record.stop <= found.length:\n",
        "        if record.stop <= found.length:\n",
        "a record with a damaged block counts as saved for ever",
        (
            _SAVED
            + "test_a_block_that_is_damaged_fails_one_load_and_is_not_asked_for_again",
        ),
    ),
    Mutation(
        "memory-given-up-for-nothing",
        "offload/host_tier.py",
        "        if place in self._stored[pool]:\n",
        "        if False:\n",
        "a block that lies in the store is dropped for want of memory",
        (_SAVED + "test_what_is_longer_than_host_memory_comes_back_from_the_store",),
    ),
    Mutation(
        "loads-forget-where-blocks-lie",
        "offload/outer.py",
        "self.whereabouts.lies(pool, block, int(epochs[block]), where)",
        "pass",
        "what came from the store is lost when it is evicted",
        (_SAVED + "test_what_is_longer_than_host_memory_comes_back_from_the_store",),
    ),
    Mutation(
        "damaged-copies-are-saved",
        "offload/whereabouts.py",
        "            and payload.holds_what_it_says()\n",
        "",
        "a block that was damaged in host memory gets a new digest",
        (_SAVED + "test_a_block_that_was_damaged_in_host_memory_is_not_saved",),
    ),
    Mutation(
        "packs-refused-for-ever",
        "offload/whereabouts.py",
        "        self._tier.refused.discard(pack)\n",
        "        pass\n",
        "what was computed anew is saved again and again",
        (_SAVED + "test_what_was_computed_anew_counts_again_in_the_same_process",),
    ),
    Mutation(
        "write-back-forgotten",
        "offload/store_link.py",
        "        if self._write_back:\n",
        "        if False:\n",
        "what is never evicted is written, too",
        (_BACK + "test_what_is_not_evicted_is_not_written_and_lost_with_the_process",),
    ),
    Mutation(
        "evictions-unnoticed",
        "offload/outer.py",
        "        self.evictions += 1\n",
        "",
        "what is evicted is never written back",
        (_BACK + "test_an_eviction_saves_the_prefix_that_it_is_of_and_no_other",),
    ),
    Mutation(
        "every-eviction-writes-all",
        "offload/held_back.py",
        "(self._due if leaving else kept).append(each)",
        "self._due.append(each)",
        "prefixes are saved of which nothing was evicted",
        (_BACK + "test_an_eviction_saves_the_prefix_that_it_is_of_and_no_other",),
    ),
    Mutation(
        "held-back-not-flushed",
        "offload/held_back.py",
        "        self._due.extend(self._held)\n",
        "",
        "a flush before the process ends loses what was not evicted",
        (_BACK + "test_a_flush_saves_all_that_was_published",),
    ),
    Mutation(
        "logits-of-a-longer-record",
        "offload/store_link.py",
        "record.stop != len(tokens) or part is None",
        "part is None",
        "a prompt gets the logits of one that goes on from it",
        (_LOGITS + "test_other_prompts_and_producers_get_none",),
    ),
    Mutation(
        "logits-off-the-grid",
        "prefix_leases.py",
        "logits = logits if whole else None",
        "logits = logits",
        "a record has the logits of a position behind it",
        (
            _LOGITS
            + "test_a_row_off_the_grid_keeps_none_and_a_longer_save_takes_none_away",
        ),
    ),
    Mutation(
        "logits-merged-away",
        "offload/held_back.py",
        "self.logits is None\n            and self.key == key",
        "self.key == key",
        "an answer that is published takes the logits of its prompt away",
        (
            _LOGITS
            + "test_a_row_off_the_grid_keeps_none_and_a_longer_save_takes_none_away",
        ),
    ),
    Mutation(
        "packs-of-logits-swept",
        "store/manifest.py",
        "return self.parts if self.logits is None else (*self.parts, self.logits)",
        "return self.parts",
        "house-keeping deletes logits that a record names",
        (_LOGITS + "test_house_keeping_knows_them",),
    ),
    Mutation(
        "older-claims-say-where-blocks-lie",
        "offload/whereabouts.py",
        "            if epoch >= seen:\n",
        "            if True:\n",
        "of a block that lies in the store it is forgotten where",
        (_SAVED + "test_a_claim_of_before_does_not_say_where_a_block_lies",),
    ),
    Mutation(
        "records-of-refused-packs",
        "offload/saves.py",
        "if place.pack in self._whereabouts.refused:",
        "if False:",
        "a record names what is known to be damaged",
        (_SAVED + "test_a_record_names_no_pack_of_which_a_load_failed_meanwhile",),
    ),
    Mutation(
        "records-never-parted",
        "offload/saves.py",
        "if start < parted < len(save.tokens):",
        "if False:",
        "of many documents behind one beginning most are not found",
        (_SAVED + "test_many_documents_behind_one_beginning_are_each_found",),
    ),
    Mutation(
        "records-beside-those-that-lead",
        "offload/saves.py",
        "return (stop, more | places) if stop > start else (start, places)",
        "return start, places",
        "of many documents behind one beginning some are not found",
        (_SAVED + "test_many_documents_behind_one_beginning_are_each_found",),
    ),
)
