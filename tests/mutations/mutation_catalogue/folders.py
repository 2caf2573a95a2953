"""Mistakes on the way to a record and back, which host memory does not show."""

from .record import Mutation

_KEYS = "tests/faults/test_keys_in_folders.py::"
_GIVEN_UP = "tests/faults/test_records_given_up.py::"
_LATE = "tests/faults/test_late_lookups.py::"
_BLOCKS = "tests/faults/test_blocks_in_folders.py::"

FOLDERS = (
    Mutation(
        "salt-lost-on-the-way-to-a-store",
        "store/trust.py",
        "stored = current_key(store, key)",
        "stored = current_key("
        "store, dataclasses.replace(key, identity=key.identity.within(None)))",
        "tenants who share nothing in memory share their records",
        (
            _KEYS + "test_a_record_is_found_under_its_own_key_and_under_no_other",
            _KEYS + "test_nothing_that_b_can_observe_of_a_folder_depends_on_a",
        ),
    ),
    Mutation(
        "contents-lost-on-the-way-to-a-store",
        "store/trust.py",
        "contents.before(len(tokens))",
        "Contents()",
        "a question about one picture is answered from the record of another",
        (_KEYS + "test_as_much_is_found_as_has_equal_tokens_and_contents",),
    ),
    Mutation(
        "layout-of-records-not-compared",
        "offload/stored_blocks.py",
        "expected = pool.name, pool.form.name, pool.block_tokens, layout_of(pool)",
        "expected = pool.name, pool.form.name, pool.block_tokens, part.planes",
        "bits of another dtype are read as if they were of one's own",
        (_BLOCKS + "test_bits_come_back_as_they_were_or_the_layout_is_refused",),
    ),
    Mutation(
        "a-save-keeps-the-cache-of-before",
        "offload/saving.py",
        "            cache, holds = yield\n",
        "            cache, holds = yield\n            yield\n",
        "a save copies from memory that a step has donated since, and ends",
        (_BLOCKS + "test_saves_hold_what_was_there_when_they_were_called",),
    ),
    Mutation(
        "late-answers-thrown-away",
        "offload/lookups.py",
        "            self._kept = [*self._kept, (key, late.result())][-_MOST_KEPT:]\n",
        "            pass\n",
        "a chain of records in a store far away is never found",
        (_LATE + "test_a_chain_that_is_told_late_is_found_at_the_next_match",),
    ),
    Mutation(
        "late-answers-outlive-their-records",
        "store/finding.py",
        "if keys[at : at + 1] == [record.parent]:",
        "if at < len(keys):",
        "what was found before it was given up is found once more",
        (_LATE + "test_what_was_told_late_and_given_up_since_is_not_used",),
    ),
    Mutation(
        "uses-do-not-look",
        "offload/uses.py",
        "                looked.append(current_key(self._store, key))\n",
        "                del key\n",
        "who serves from the device alone goes on with what others found to be wrong",
        (_GIVEN_UP + "test_who_serves_from_the_device_alone_hears_of_it",),
    ),
    Mutation(
        "adopted-claims-begin-with-the-first-look",
        "prefix_snapshots.py",
        "            self._link.adopted(self._index.stored_keys())\n",
        "            pass\n",
        "what was adopted is taken for newer than what it was given up with",
        (_GIVEN_UP + "test_what_was_adopted_goes_when_its_records_are_given_up",),
    ),
)
