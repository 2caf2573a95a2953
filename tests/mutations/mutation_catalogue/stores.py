"""Mistakes of stores on disk."""

from .record import Mutation

_LEFTOVERS = "tests/store/test_leftovers.py::"
_POWER = "tests/store/test_lost_power.py::"
_DAMAGE = "tests/store/test_damaged_records.py::"
_KEEPING = "tests/store/test_collection.py::"
_SNAPSHOTS = "tests/store/test_snapshots.py::"

STORES = (
    Mutation(
        "names-do-not-last",
        "store/folder.py",
        "            os.fsync(place)\n",
        "",
        "a record whose save has ended is not there after the end of the machine",
        (_POWER + "test_a_save_survives_the_end_of_the_machine",),
    ),
    Mutation(
        "half-written-objects-come-back",
        "store/folder.py",
        "_{secrets.token_hex(8)}{LEFTOVER}",
        "{LEFTOVER}",
        "who writes what a killed writer had begun fails",
        (_LEFTOVERS + "test_what_was_begun_is_no_part_of_what_is_written_next",),
    ),
    Mutation(
        "bytes-do-not-last",
        "store/folder.py",
        "        os.fsync(place)\n    finally:\n",
        "    finally:\n",
        "a record is lost with the machine after its save has ended",
        (_POWER + "test_a_save_survives_the_end_of_the_machine",),
    ),
    Mutation(
        "folders-do-not-last",
        "store/folder.py",
        "_wait_for(folder.parent, inside=folder != top)",
        "pass",
        "a folder is lost with the machine, and all that lies in it",
        (_POWER + "test_a_save_survives_the_end_of_the_machine",),
    ),
    Mutation(
        "writers-without-a-lock",
        "store/folder.py",
        "            fcntl.flock(place, fcntl.LOCK_SH)\n",
        "",
        "a sweep takes what is being written",
        (_LEFTOVERS + "test_a_sweep_leaves_alone_what_is_being_written",),
    ),
    Mutation(
        "sweeps-without-a-lock",
        "store/folder.py",
        "            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "            pass\n",
        "a sweep takes what is being written",
        (_LEFTOVERS + "test_a_sweep_leaves_alone_what_is_being_written",),
    ),
    Mutation(
        "foreign-files-listed",
        "store/objects.py",
        "return (name for name in said if is_name(name))",
        "return (name for name in said)",
        "a file that somebody else put into the folder fails every look-up",
        (_LEFTOVERS + "test_what_is_not_ours_is_neither_listed_nor_swept",),
    ),
    Mutation(
        "manifest-digest-not-compared",
        "store/manifest.py",
        "if blake3(version + body).digest(length=_DIGEST_BYTES) != "
        "data[place:HEADER_BYTES]:",
        "if False:",
        "a flipped bit of a manifest is believed",
        (_DAMAGE + "test_every_flipped_byte_of_every_file_is_found",),
    ),
    Mutation(
        "block-digest-of-a-pack-not-compared",
        "store/pack.py",
        "if block_digest(block) == places[number].digest:",
        "if True:",
        "a flipped bit of a block is believed",
        (_DAMAGE + "test_every_flipped_byte_of_every_file_is_found",),
    ),
    Mutation(
        "record-under-another-name",
        "store/finding.py",
        "if record.key.hex() != _end(name):",
        "if False:",
        "a record in another's place is passed by without a reason",
        (_DAMAGE + "test_files_in_each_others_place_are_found",),
    ),
    Mutation(
        "claims-of-any-size",
        "store/snapshot_claims.py",
        "if not 0 <= tokens <= most or",
        "if",
        "a snapshot of a few bytes asks for any amount of memory",
        (_SNAPSHOTS + "test_claims_that_no_index_has_are_refused",),
    ),
    Mutation(
        "claims-in-circles",
        "store/snapshot_claims.py",
        "(parent >= np.arange(len(parent)))",
        "False",
        "adopting a snapshot never ends",
        (_SNAPSHOTS + "test_claims_that_no_index_has_are_refused",),
    ),
    Mutation(
        "claims-beyond-what-is-believed",
        "saved_claims.py",
        "or more > most:",
        "or more > 10 * most:",
        "a snapshot is saved that no reader takes",
        (
            "tests/faults/test_adopted_claims.py::"
            "test_no_more_is_claimed_than_a_reader_believes",
        ),
    ),
    Mutation(
        "marks-of-any-key",
        "store/collection.py",
        "            and len(record.key) == KEY_BYTES\n",
        "",
        "one manifest stops every run of the collector for ever",
        (_KEEPING + "test_a_key_that_is_none_stops_no_run",),
    ),
    Mutation(
        "notes-of-any-size",
        "store/sweeps.py",
        "data = read_at_most(store, name, _MOST_BYTES)",
        "data = store.get(name)",
        "memory for a note of any size is asked for",
        (_KEEPING + "test_a_note_of_any_size_is_not_read_and_takes_nothing_along",),
    ),
    Mutation(
        "notes-without-an-end",
        "store/collection.py",
        "sorted(unused - swept.keys())[:MOST_NOTED]",
        "sorted(unused - swept.keys())",
        "a note is written that nobody reads",
        (_KEEPING + "test_what_a_note_has_no_room_for_is_noted_by_the_next_run",),
    ),
    Mutation(
        "healed-records-moved",
        "store/verification.py",
        "if not _is_whole_record(store, name) and _move(store, name)",
        "if _move(store, name)",
        "a record that was written anew meanwhile goes into quarantine",
        (
            "tests/store/test_verification.py::"
            "test_what_was_written_anew_since_it_was_found_damaged_stays",
        ),
    ),
    Mutation(
        "blocks-of-healed-records-not-compared",
        "store/verification.py",
        "return data is not None and block_digest(data) == place.digest",
        "return data is not None",
        "a record of damaged blocks stays where it is found",
        (
            "tests/store/test_verification.py::"
            "test_any_flip_or_cut_is_found_and_does_not_come_back",
        ),
    ),
    Mutation(
        "records-of-any-backend",
        "serving/build.py",
        '"backend": plan.backend,',
        '"backend": "any",',
        "replicas on other accelerators share records that they would not compute",
        (
            "tests/serving/test_build.py::"
            "test_who_computes_other_bits_is_another_producer",
        ),
    ),
    Mutation(
        "killed-snapshots-stay",
        "cli/store.py",
        "removed = 0 if arguments.dry_run else store.sweep()",
        "removed = 0 if arguments.dry_run else super(type(store), store).sweep()",
        "what killed savers of snapshots left fills the disk",
        (
            "tests/cli/test_store_command.py::"
            "test_snapshots_are_counted_and_what_killed_savers_left_goes",
        ),
    ),
    Mutation(
        "manifest-of-any-size",
        "store/prefix_store.py",
        "        if store.get(name, most, most + 1) is not None:\n",
        "        raise ShortObjectError\n        if most:\n",
        "memory for a file of any size is asked for",
        (_DAMAGE + "test_a_file_of_any_size_is_not_read_for_a_manifest",),
    ),
    Mutation(
        "snapshots-begun-out-of-reach",
        "store/orbax_store.py",
        "        if not self._within_reach:\n            # It",
        "        if False:\n            # It",
        "a snapshot is begun in a bucket that Orbax cannot write",
        (
            "tests/store/test_buckets.py::"
            "test_whole_caches_beside_a_bucket_lie_in_a_folder",
        ),
    ),
    Mutation(
        "snapshots-saved-side-by-side",
        "store/orbax_store.py",
        "        with locked(folder, fcntl.LOCK_EX):\n            yield\n",
        "        yield\n",
        "two savers of one step mix it, and one is told that its own was saved",
        (
            _SNAPSHOTS
            + "test_who_saves_a_step_that_is_being_written_waits_and_is_refused",
        ),
    ),
    Mutation(
        "snapshot-not-read-again",
        "store/orbax_store.py",
        "if _metadata(manager, step) != metadata:",
        "if False:",
        "a snapshot that another machine wrote over is called saved",
        (
            _SNAPSHOTS
            + "test_a_step_that_another_machine_wrote_over_is_not_called_saved",
        ),
    ),
)
