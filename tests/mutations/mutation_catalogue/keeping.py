"""Mistakes of the house-keeping of stores."""

from .record import Mutation

_GC = "tests/store/test_collection.py::"
_VERIFY = "tests/store/test_verification.py::"
_TICKS = "tests/store/test_ticks.py::"
_ARCHIVE = "tests/store/test_archive.py::"

KEEPING = (
    Mutation(
        "parents-age-alone",
        "store/selection.py",
        "if useful[parent.name] < useful[record.name]:",
        "if False:",
        "a record goes while one that goes on from it is of use",
        (_GC + "test_exactly_what_was_of_no_use_goes",),
    ),
    Mutation(
        "parents-before-children",
        "store/selection.py",
        "(useful[record.name], -record.stop, record.name)",
        "(useful[record.name], record.stop, record.name)",
        "a run that is cut short leaves records that nothing leads to",
        (_GC + "test_a_run_that_is_cut_anywhere_leaves_a_sound_store",),
    ),
    Mutation(
        "shared-packs-freed-at-once",
        "store/selection.py",
        "            if not self._users[pack]:\n",
        "            if True:\n",
        "a quota is thought to be kept while it is not",
        (_GC + "test_what_is_shared_is_not_freed_by_one_of_those_who_have_it",),
    ),
    Mutation(
        "packs-swept-at-once",
        "store/collection.py",
        "for pack in sorted(unused & before.keys())}",
        "for pack in sorted(unused & before.keys())} | dict.fromkeys(unused, 1)",
        "a writer whose manifest is not yet written loses its packs",
        (_GC + "test_a_writer_may_take_all_but_the_whole_time_between_runs",),
    ),
    Mutation(
        "swept-names-written-again",
        "store/pack.py",
        "if each not in noted)",
        "if True)",
        "a pack that a killed writer left is swept from under the next one",
        (_GC + "test_a_writer_may_take_all_but_the_whole_time_between_runs",),
    ),
    Mutation(
        "swept-while-a-manifest-is-unread",
        "store/collection.py",
        "                return {}, {}\n",
        "                continue\n",
        "packs of records of a later format are deleted",
        (_GC + "test_what_cannot_be_read_stays_and_no_pack_goes",),
    ),
    Mutation(
        "new-children-not-seen",
        "store/collection.py",
        "[*_parents_in(fresh), *used]",
        "[*used]",
        "a record goes though one that goes on from it was just written",
        (_GC + "test_what_a_new_record_goes_on_from_stays_if_it_was_there_still",),
    ),
    Mutation(
        "unread-children-not-counted",
        "store/collection.py",
        "needed=_parents_in([each.name for each in inventory.unread])",
        "needed=[]",
        "what a record of a later format goes on from is dropped",
        (_GC + "test_what_a_later_format_goes_on_from_stays",),
    ),
    Mutation(
        "marks-of-use-forgotten",
        "store/ticks.py",
        "(number < before and no_more)",
        "number < before",
        "records that are of use are dropped",
        (_TICKS + "test_marks_that_say_nothing_more_are_forgotten",),
    ),
    Mutation(
        "times-ahead-believed",
        "store/inventory.py",
        "max((time for time in times if time <= now), default=now)",
        "max(times)",
        "a record that says it is of next year is kept for ever",
        (_GC + "test_b87_a_wrong_time_makes_no_record_immortal_and_loses_none",),
    ),
    Mutation(
        "blocks-not-verified",
        "store/verification.py",
        "if block_digest(block) != place.digest:",
        "if False:",
        "damaged blocks are called whole",
        (_VERIFY + "test_any_flip_or_cut_is_found_and_does_not_come_back",),
    ),
    Mutation(
        "later-formats-quarantined",
        "store/verification.py",
        "Problem(name, found.reason, not found.newer)",
        "Problem(name, found.reason)",
        "records of a later format are moved away",
        (_VERIFY + "test_a_later_format_stays_and_is_named",),
    ),
    Mutation(
        "keys-not-computed-again",
        "store/record_checks.py",
        "    if keys[-1] != manifest.key:\n",
        "    if False:\n",
        "a manifest with other tokens than its key says is called sound",
        (_VERIFY + "test_a_manifest_that_lies_is_found",),
    ),
    Mutation(
        "imported-unseen",
        "store/imports.py",
        "elif not _is_whole(store, manifest):",
        "elif False:",
        "records come in whose blocks are damaged or missing",
        (_ARCHIVE + "test_records_that_lie_are_refused",),
    ),
    Mutation(
        "later-formats-replaced",
        "store/imports.py",
        'return False, f"there is one of that name, and {error}"',
        'return False, ""',
        "an import replaces a record of a later format",
        (_ARCHIVE + "test_a_record_of_a_later_format_is_not_replaced",),
    ),
    Mutation(
        "archives-read-without-bound",
        "store/archive.py",
        "left if size < 0 else min(size, left)",
        "size",
        "a size in an archive takes as much memory as it says",
        (_ARCHIVE + "test_no_size_in_an_archive_is_believed",),
    ),
)
