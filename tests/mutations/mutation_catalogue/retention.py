"""Mistakes about what retention policies keep, and what that costs."""

from .record import PUBLICATION, Mutation

_POLICIES = "tests/core/test_retention.py::"

RETENTION = (
    Mutation(
        "forms-planned-one-by-one",
        "retention.py",
        "all_of_them = [policy(other) for other in sorted(beside)]",
        "all_of_them = [policy(form)]",
        "tails are planned for beside windows that are never kept",
        (_POLICIES + "test_what_is_stored_is_of_use",),
    ),
    Mutation(
        "end-of-output-not-kept",
        "retention.py",
        "for at in (prompt - 1, prompt, end)]",
        "for at in (prompt - 1, prompt)]",
        "the next turn of a conversation is replayed",
        (_POLICIES + "test_the_points_that_keep",),
    ),
    Mutation(
        "grid-points-beside-the-distance-kept",
        "retention.py",
        "return points % self.distance(grid) == 0",
        "return points % grid == 0",
        "a policy keeps every block whatever it says",
        (_POLICIES + "test_the_points_that_keep",),
    ),
    Mutation(
        "step-passes-the-point-before-the-last",
        "retention.py",
        "ends = (at - at % grid for at in (prompt - 1, prompt))",
        "ends = (at - at % grid for at in (prompt,))",
        "no checkpoint is taken where the same prompt resumes",
        (_POLICIES + "test_a_step_ends_where_a_checkpoint_is_kept",),
    ),
    Mutation(
        "one-end-too-few-planned",
        "retention.py",
        "points = 3 * -(-tokens // length)",
        "points = 2 * -(-tokens // length)",
        "stored prefixes do not fit into what was set aside",
        (_POLICIES + "test_ends_need_far_fewer_blocks_than_every_block",),
    ),
    Mutation(
        "first-block-of-a-point-not-counted",
        "retention.py",
        "-(-hi // size) - lo // size",
        "-(-hi // size) - -(-lo // size)",
        "a window that starts inside a block is one block short",
        (_POLICIES + "test_blocks_of_one_point",),
    ),
    Mutation(
        "grid-point-not-held-back",
        "capacity.py",
        "return back - back % self.spec.grid if self.policy(form).holds_back else back",
        "return back",
        "a row lets go of what its end will keep",
        (_POLICIES + "test_a_row_holds_back_its_last_grid_point",),
    ),
    Mutation(
        "hits-promised-where-nothing-is-stored",
        "retention_cost.py",
        "if len(kept) == len(spec.pools):",
        "if len(kept) > len(spec.pools):",
        "the report promises hits to models of bounded forms that keep none",
        (_POLICIES + "test_what_a_hit_costs",),
    ),
    Mutation(
        "checkpoints-alone-start-no-replay",
        "retention_cost.py",
        "points[all_keep(states)]",
        "points[all_keep(list(kept))]",
        "the report says that hits cost more than they do",
        (_POLICIES + "test_what_a_hit_costs",),
    ),
    Mutation(
        "block-behind-the-point-kept",
        "publication.py",
        'np.searchsorted(points, first, side="right")',
        'np.searchsorted(points, first, side="left")',
        "a block that no kept point requires is stored",
        PUBLICATION,
    ),
    Mutation(
        "unfinished-checkpoints-count",
        "publication.py",
        "            numbers = numbers[tables[number].stage[ids] == Stage.SEALED]\n",
        "            pass\n",
        "windows are kept beside a checkpoint that is not there",
        PUBLICATION,
    ),
)
