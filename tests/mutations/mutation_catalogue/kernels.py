"""Mistakes in the kernels for TPUs and GPUs."""

import functools

from .record import Mutation

_HISTORIES = ("tests/kernels/test_mosaic_tpu.py::test_whole_histories",)
_WINDOWS = ("tests/kernels/test_mosaic_tpu.py::test_windows",)
_FETCHED = (
    "tests/kernels/test_mosaic_tpu.py::"
    "test_only_blocks_that_a_query_reaches_are_fetched",
)
_LANES = "tests/core/test_lanes.py::test_entries_lie_where_they_should"
_SELECTED = "tests/kernels/test_mosaic_tpu_selected.py::"
_REGISTERS = ("tests/kernels/test_mosaic_gpu_fragments.py",)
_COPIED = (
    "tests/kernels/test_mosaic_gpu_blocks.py::test_only_what_a_row_needs_is_copied",
)
_Mutation = functools.partial(Mutation, package="pallas_kernels")

KERNELS = (
    _Mutation(
        "dead-values-weighted",
        "mosaic_tpu/entries.py",
        "values = jnp.where(alive, values, 0.0).astype(_product_dtype(entry))",
        "values = values.astype(_product_dtype(entry))",
        "what was never written reaches an output by way of 0 times NaN",
        _HISTORIES,
    ),
    _Mutation(
        "dead-scales-weighted",
        "mosaic_tpu/entries.py",
        "scaled = jnp.where(weights == 0, 0.0, weights * scales)",
        "scaled = weights * scales",
        "scales that were never written reach an output by way of 0 times NaN",
        _HISTORIES,
    ),
    _Mutation(
        "scales-of-the-next-run",
        "mosaic_tpu/entries.py",
        "code = (code >> (bits * (number % per))) & 0xFF",
        "code = (code >> (bits * ((number + 1) % per))) & 0xFF",
        "values are multiplied by the scales of others",
        _HISTORIES,
    ),
    _Mutation(
        "strips-of-the-whole-block",
        "lanes.py",
        "row = slots // size * (size * self.pieces) + piece * size + slots % size",
        "row = piece * self.entries + slots",
        "an entry is written where another one is read",
        (_LANES,),
    ),
    _Mutation(
        "lost-blocks-read",
        "mosaic_tpu/blocks.py",
        "there = (block >= 0) & (block < num_blocks) & (number + n < stop[b])",
        "there = number + n < stop[b]",
        "an id that refers to nothing reads somebody else's block",
        _HISTORIES,
    ),
    _Mutation(
        "next-entry-seen-early",
        "mosaic_tpu/blocks.py",
        "last = begin + stored.entry_tokens - 1",
        "last = begin",
        "an entry is read before its last token was run",
        _HISTORIES,
    ),
    _Mutation(
        "maximum-not-carried",
        "mosaic_tpu/attend.py",
        "carry = jnp.exp(old - finite)",
        "carry = jnp.exp(finite - finite)",
        "sums of different scale are added",
        _HISTORIES,
    ),
    _Mutation(
        "window-one-too-wide",
        "mosaic_tpu/blocks.py",
        "seen = seen & (begin >= reach.first_visible(at))",
        "seen = seen & (begin >= reach.first_visible(at) - 1)",
        "a query sees the key before its window",
        _WINDOWS,
    ),
    _Mutation(
        "ring-not-turned",
        "mosaic_tpu/schedule.py",
        "column = number % columns if reach.ring else number",
        "column = number",
        "a window reads the column of an older block",
        _WINDOWS,
    ),
    _Mutation(
        "blocks-behind-the-window-fetched",
        "mosaic_tpu/schedule.py",
        "since = jnp.maximum(since, reach.first_visible(position))",
        "since = since + 0 * reach.first_visible(position)",
        "the whole history is fetched for a window",
        _FETCHED,
    ),
    _Mutation(
        "last-block-fetched-again",
        "mosaic_tpu/schedule.py",
        "last = first + (stop - 1 - first - place) // count * count + place",
        "last = stop - 1",
        "steps beyond the last block fetch it in every place",
        _FETCHED,
    ),
    _Mutation(
        "strips-read-whole",
        "mosaic_tpu/selected.py",
        "return jax.lax.shift_right_logical(found, number % size) & 1",
        "return found",
        "a query reads the neighbours of the entries that were selected for it",
        (_SELECTED + "test_selected_entries",),
    ),
    _Mutation(
        "gaps-fetched",
        "mosaic_tpu/schedule.py",
        "there = jnp.where(before >= 0, before, jnp.maximum(after, 0))",
        "there = jnp.maximum(after, 0)",
        "places that a step does not read are filled for nothing",
        (_SELECTED + "test_each_strip_that_is_read_is_fetched_once",),
    ),
    _Mutation(
        "step-judged-by-its-first-block",
        "mosaic_tpu/index_scores.py",
        "needed = needed | (parts[b, j * count + place] >= 0)",
        "needed = needed | (parts[b, j * count] >= 0)",
        "keys beside a block that is not read get no scores",
        (_SELECTED + "test_the_best_units",),
    ),
    _Mutation(
        "gpu-halves-of-a-value-swapped",
        "mosaic_gpu/fragments.py",
        "return halves.transpose(2, 0, 1, 3)",
        "return halves.transpose(2, 0, 3, 1)",
        "registers of a left operand stand in another order than mma reads them",
        _REGISTERS,
    ),
    _Mutation(
        "gpu-parts-of-a-query-swapped",
        "mosaic_gpu/fragments.py",
        "return halves.transpose(0, 2, 1)",
        "return halves.transpose(2, 0, 1)",
        "registers of a right operand stand in another order than mma reads them",
        _REGISTERS,
    ),
    _Mutation(
        "gpu-block-at-the-end-copied",
        "mosaic_gpu/parts.py",
        "needed = (start < end) &",
        "needed = (start <= end) &",
        "a block is copied that no query reaches",
        _COPIED,
    ),
    _Mutation(
        "gpu-ring-not-turned",
        "mosaic_gpu/parts.py",
        "column = jax.lax.rem(column, jnp.int32(columns))",
        "column = jnp.int32(column)",
        "a window reads the column of an older block",
        _COPIED,
    ),
    _Mutation(
        "gpu-card-not-asked",
        "contracts.py",
        "if capability in self.capabilities:",
        "if capability:",
        "a kernel is compiled for a card that lacks its instructions",
        ("tests/kernels/test_choice.py",),
    ),
    _Mutation(
        "gpu-kernel-by-itself",
        "choice.py",
        """            "xla",
            refusal
            or""",
        """            "xla" if refusal else "mosaic_gpu",
            refusal
            or""",
        "a plan takes a kernel that never ran on its hardware",
        ("tests/kernels/test_choice.py",),
    ),
    _Mutation(
        "gpu-weights-not-counted",
        "mosaic_gpu/sizes.py",
        "room = contract.shared_bytes - contract.weights_bytes(stored, queries)",
        "room = contract.shared_bytes + (32 << 10)",
        "a thread block asks for more shared memory than there is",
        ("tests/kernels/test_mosaic_gpu_sizes.py",),
    ),
)
