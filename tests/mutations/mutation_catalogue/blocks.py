"""Mistakes about blocks: how they come, stay and leave."""

from .record import Mutation

_LIFECYCLE = "tests/core/test_lifecycle.py::"

BLOCKS = (
    # Blocks.
    Mutation(
        "epoch-not-bumped-on-allocation",
        "lifecycle.py",
        "        epoch=add(table.epoch, ids, 1),\n"
        "        pins=put(table.pins, ids, pins),\n",
        "        pins=put(table.pins, ids, pins),\n",
        "a block that is handed out again looks like the one before",
        (_LIFECYCLE + "test_freeing_clears_the_label_and_moves_the_epoch",),
    ),
    Mutation(
        "epoch-not-bumped-on-free",
        "lifecycle.py",
        "        epoch=add(table.epoch, ids, 1),\n"
        "        pins=put(table.pins, ids, 0),\n",
        "        pins=put(table.pins, ids, 0),\n",
        "a block that was evicted looks as if it were there",
        (_LIFECYCLE + "test_freeing_clears_the_label_and_moves_the_epoch",),
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
        (_LIFECYCLE + "test_freeing_clears_the_label_and_moves_the_epoch",),
    ),
    Mutation(
        "keep-mark-not-cleared",
        "lifecycle.py",
        "        kept=put(table.kept, ids, False),\n        first",
        "        first",
        "a free block is still marked as stored",
        (_LIFECYCLE + "test_freeing_clears_the_label_and_moves_the_epoch",),
    ),
    Mutation(
        "position-not-cleared",
        "lifecycle.py",
        "        first=put(table.first, ids, -1),\n",
        "",
        "a free block still has a position",
        (_LIFECYCLE + "test_freeing_clears_the_label_and_moves_the_epoch",),
    ),
    Mutation(
        "allocated-without-a-pin",
        "lifecycle.py",
        "Stage.WRITING, 1, clock, **labels)",
        "Stage.WRITING, 0, clock, **labels)",
        "the block a row writes is pinned by nobody",
        (_LIFECYCLE + "test_any_history_of_transitions_agrees_with_the_model",),
    ),
    Mutation(
        "pin-missing",
        "lifecycle.py",
        "pins=add(table.pins, ids, 1),",
        "pins=table.pins,",
        "what a lease reads may be evicted",
        (_LIFECYCLE + "test_any_history_of_transitions_agrees_with_the_model",),
    ),
    Mutation(
        "pin-not-returned",
        "lifecycle.py",
        "pins=add(table.pins, ids, -1), used",
        "pins=table.pins, used",
        "a released block is never free again",
        (_LIFECYCLE + "test_the_last_of_several_receipts_frees",),
    ),
    Mutation(
        "unstored-blocks-stay",
        "lifecycle.py",
        "    stored = get(table.kept, ids, True) & (",
        "    stored = (",
        "a sealed block that nobody stores leaks",
        (_LIFECYCLE + "test_the_last_of_several_receipts_frees",),
    ),
    Mutation(
        "unfinished-blocks-are-kept",
        "lifecycle.py",
        "kept=put(table.kept, _masked(table, ids, sealed), True)",
        "kept=put(table.kept, ids, True)",
        "a half written block is stored",
        (
            _LIFECYCLE
            + "test_only_finished_blocks_are_kept_and_only_written_ones_sealed",
        ),
    ),
    Mutation(
        "pinned-blocks-are-evictable",
        "lifecycle.py",
        "return (table.stage == Stage.SEALED) & table.kept & (table.pins == 0)",
        "return (table.stage == Stage.SEALED) & table.kept",
        "what a row reads is evicted",
        (_LIFECYCLE + "test_what_is_pinned_unfinished_or_not_stored_is_never_evicted",),
    ),
    Mutation(
        "free-stack-overwritten",
        "lifecycle.py",
        "place = jnp.where(valid, table.num_free + rank, size)",
        "place = jnp.where(valid, table.num_free, size)",
        "of several blocks freed at once all but one are lost",
        (_LIFECYCLE + "test_blocks_that_go_at_once_are_all_free",),
    ),
    # Eviction.
    Mutation(
        "one-block-too-many-evicted",
        "eviction.py",
        "(jnp.arange(order.shape[0]) < count)",
        "(jnp.arange(order.shape[0]) <= count)",
        "an eviction takes one more than was asked for",
        (_LIFECYCLE + "test_the_oldest_goes_first_and_among_equals_the_deepest",),
    ),
    Mutation(
        "beginning-evicted-before-end",
        "eviction.py",
        "jnp.lexsort((-table.first, table.used, ~candidates))",
        "jnp.lexsort((table.first, table.used, ~candidates))",
        "a chain loses its beginning first, and all of it with it",
        (_LIFECYCLE + "test_the_oldest_goes_first_and_among_equals_the_deepest",),
    ),
    Mutation(
        "recover-brings-back-dead-weight",
        "eviction.py",
        "    back = jnp.where(begun & table.kept, jnp.int32(Stage.SEALED), "
        "table.stage)\n"
        "    gone = begun & ~table.kept\n",
        "    back = jnp.where(begun, jnp.int32(Stage.SEALED), table.stage)\n"
        "    gone = begun & False\n",
        "a block that nobody stores comes back and leaks",
        (_LIFECYCLE + "test_what_became_dead_weight_while_it_went_does_not_come_back",),
    ),
    Mutation(
        "dead-weight-freed-under-a-row",
        "eviction.py",
        "gone = dead & (table.stage == Stage.SEALED) & (table.pins == 0)",
        "gone = dead & (table.stage == Stage.SEALED)",
        "a row's block is given away while it reads it",
        (_LIFECYCLE + "test_dead_weight_stays_while_a_row_reads_it",),
    ),
)
