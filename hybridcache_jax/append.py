"""Writing tokens: begin a step, write entries, end it.

A step takes tokens for some rows.  ``begin`` checks each row's lease once more,
frees blocks that fell behind what is still required, and reserves blocks for the new
tokens; ``write`` puts a layer's entries in place; ``end`` moves the rows on and seals
the blocks that are full.  A row whose status is not OK writes nothing and stays where
it was.  All shapes come from the plan and from the inputs' bucket.

A recurrent state is written once per step, after its last token, into the block of
that token; it becomes a checkpoint where the step ends exactly at the block's end.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from hybridcache_jax import lifecycle
from hybridcache_jax import rows as rowlib
from hybridcache_jax._indexing import get, put
from hybridcache_jax._typing import AnyArray
from hybridcache_jax.codes import Status
from hybridcache_jax.forms import RULES, required
from hybridcache_jax.planes import quantise, to_storage
from hybridcache_jax.spec import PoolSpec
from hybridcache_jax.state import HybridCache, tick
from pallas_kernels.lanes import Lanes


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepInputs:
    """Tokens to run, for up to ``B`` rows and up to ``T`` tokens of each.

    Padding rows have a row number outside the table and count 0.
    """

    rows: AnyArray  # [B] int32
    tickets: AnyArray  # [B] int32, from the leases
    tokens: AnyArray  # [B, T] int32
    counts: AnyArray  # [B] int32, tokens of each row that are real


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Step:
    """What ``begin`` settled, for the layers and for ``end``."""

    rows: jax.Array  # [B] int32; past the end where the row does not run
    tokens: AnyArray  # [B, T] int32
    status: jax.Array  # [B] int32, codes.Status
    positions: jax.Array  # [B, T] int32
    end: jax.Array  # [B] int32, one past the last position; 0 if not run
    count: jax.Array  # [B] int32, tokens run; 0 if not run
    since: jax.Array  # [B, G] int32
    held: jax.Array  # [B, G] int32, entries below are read and never written
    blocks: tuple[jax.Array, ...]  # G times [B, C] int32
    slots: tuple[jax.Array, ...]  # G times [B, T] int32, block to write; P for none


def begin(
    cache: HybridCache, inputs: StepInputs, vocab_size: int
) -> tuple[HybridCache, Step]:
    """Checks leases, frees what fell behind, reserves what is coming.

    Args:
      cache: the cache; only tables and rows change here.
      inputs: tokens and leases.
      vocab_size: ids must lie in ``[0, vocab_size)``.

    Raises:
      ValueError: if the inputs are wider than the plan's ``max_chunk``.
    """
    width = inputs.tokens.shape[1]
    if width > cache.plan.max_chunk:
        raise ValueError(
            f"A step of {width} tokens exceeds the plan's max_chunk "
            f"{cache.plan.max_chunk}; use a smaller chunk or plan a larger one."
        )
    status = _status(cache, inputs, vocab_size)
    cache = dataclasses.replace(cache, clock=tick(cache.clock))
    cache = _trim(cache, inputs.rows, status)
    cache, status = _reserve(cache, inputs, status)
    ran = status == Status.OK
    view = rowlib.gather(cache, inputs.rows)
    count = jnp.where(ran, inputs.counts, 0)
    positions = view.length[:, None] + jnp.arange(width, dtype=jnp.int32)
    real = jnp.arange(width) < count[:, None]
    slots = tuple(
        _slots(pool, view, index, positions, real, cache.plan.blocks[index])
        for index, pool in enumerate(cache.plan.spec.pools)
    )
    return cache, Step(
        rows=jnp.where(ran, inputs.rows, cache.plan.max_sequences),
        tokens=inputs.tokens,
        status=status,
        positions=positions,
        end=jnp.where(ran, view.length + count, 0),
        count=count,
        since=view.since,
        held=view.held,
        blocks=view.blocks,
        slots=slots,
    )


def write(
    pool: PoolSpec,
    memory: dict[str, jax.Array],
    layer: int,
    blocks: jax.Array,
    positions: jax.Array,
    planes: Mapping[str, jax.Array],
    backend: str,
) -> dict[str, jax.Array]:
    """Puts entries of one layer in place.

    Args:
      pool: layout.
      memory: plane to ``[L, P, S, width]``, or to ``[L, P, rows, 128]`` in lanes.
      layer: position on the pool's layer axis.
      blocks: ``[B, N]`` int32; ids outside the pool are dropped.
      positions: ``[B, N]`` int32, any position that the entry stands for.
      planes: plane to ``[B, N, heads, dim]``, without the planes of scales.
      backend: decides the storage dtype.

    Raises:
      ValueError: for planes of other names or shapes than the spec declares.
    """
    for name, value in planes.items():
        _check_shape(pool, name, value.shape, positions.shape)
    offset = positions % pool.block_tokens // pool.entry_tokens
    try:
        values = quantise(pool.entry, planes)
    except ValueError as error:
        raise ValueError(f"{pool.name}: {error}") from error
    written = {}
    for plane in pool.entry.planes:
        array, laid = memory[plane.name], Lanes.of(pool, plane)
        value = to_storage(plane, values[plane.name], backend)
        if laid.holds(array):
            where = laid.places(layer, blocks, offset, array.shape[1])
            new = put(laid.view(array), where, laid.split(value))
            written[plane.name] = new.reshape(array.shape)
        else:
            written[plane.name] = put(array, (layer, blocks, offset), value)
    return written


def end(cache: HybridCache, step: Step) -> HybridCache:
    """Moves the rows on by what they ran and seals the blocks that are full.

    Args:
      cache: after every layer has written.
      step: as ``begin`` settled it.
    """
    rows = cache.rows
    real = jnp.arange(step.tokens.shape[1]) < step.count[:, None]
    column = jnp.where(real, step.positions, cache.plan.max_length)
    rows = dataclasses.replace(
        rows,
        length=put(rows.length, step.rows, step.end),
        tokens=put(rows.tokens, (step.rows[:, None], column), step.tokens),
    )
    tables = []
    for index, pool in enumerate(cache.plan.spec.pools):
        last = (step.positions + 1) % pool.block_tokens == 0
        full = jnp.where(real & last, step.slots[index], cache.plan.blocks[index])
        tables.append(lifecycle.seal(cache.tables[index], full.reshape(-1)))
    return dataclasses.replace(cache, tables=tuple(tables), rows=rows)


def _status(cache: HybridCache, inputs: StepInputs, vocab_size: int) -> jax.Array:
    """``[B]`` status before room is reserved; the last one set wins."""
    rows, counts = inputs.rows, inputs.counts
    width = inputs.tokens.shape[1]
    length = rowlib.gather(cache, rows).length
    real = jnp.arange(width) < counts[:, None]
    foreign = (inputs.tokens < 0) | (inputs.tokens >= vocab_size)
    known = (rows >= 0) & (rows < cache.plan.max_sequences)
    place = jnp.arange(rows.shape[0])
    twice = jnp.any(
        (rows[:, None] == rows[None, :]) & (place[:, None] > place[None, :]), axis=1
    )
    status = rowlib.check(cache, rows, inputs.tickets)
    for wrong, code in (
        (_differs(cache, inputs, length, real), Status.OTHER_TOKEN),
        (length + counts > cache.plan.max_length, Status.TOO_LONG),
        (jnp.any(real & foreign, axis=1), Status.BAD_TOKEN),
        ((counts < 0) | (counts > width), Status.BAD_COUNT),
    ):
        status = jnp.where(wrong & (status == Status.OK), int(code), status)
    status = jnp.where(~known | twice, int(Status.BAD_ROW), status)
    return jnp.where(counts == 0, int(Status.IDLE), status)


def _differs(
    cache: HybridCache, inputs: StepInputs, length: jax.Array, real: jax.Array
) -> jax.Array:
    """``[B]`` bool: a replay that would run another token than the log has."""
    positions = length[:, None] + jnp.arange(real.shape[1], dtype=jnp.int32)
    known = get(cache.rows.known, inputs.rows, 0)
    logged = get(cache.rows.tokens, (inputs.rows[:, None], positions), 0)
    again = real & (positions < known[:, None])
    return jnp.any(again & (logged != inputs.tokens), axis=1)


def _trim(cache: HybridCache, rows: AnyArray, status: jax.Array) -> HybridCache:
    """Lets go of blocks behind what the next token, or what is held back, requires."""
    rows = jnp.where(status == Status.OK, rows, cache.plan.max_sequences)
    view = rowlib.gather(cache, rows)
    tables, blocks = list(cache.tables), list(cache.rows.blocks)
    for index, pool in enumerate(cache.plan.spec.pools):
        if RULES[pool.form].grows:
            continue
        size, count = pool.block_tokens, cache.plan.blocks[index]
        number = rowlib.block_numbers(view.length, size, view.blocks[index].shape[1])
        back = cache.plan.held_from(pool.form, view.length)
        seen, _ = required(pool.form, pool.geometry, back)
        behind = (number >= 0) & ((number + 1) * size <= seen[:, None])
        gone = jnp.where(behind, view.blocks[index], count)
        tables[index] = rowlib.let_go(
            tables[index], gone, view.epochs[index], cache.clock
        )
        blocks[index] = put(
            blocks[index], rows, jnp.where(behind, count, view.blocks[index])
        )
    return dataclasses.replace(
        cache,
        tables=tuple(tables),
        rows=dataclasses.replace(cache.rows, blocks=tuple(blocks)),
    )


def _reserve(
    cache: HybridCache, inputs: StepInputs, status: jax.Array
) -> tuple[HybridCache, jax.Array]:
    """Hands out the blocks that the new tokens need, all of a row's or none."""
    view = rowlib.gather(cache, inputs.rows)
    width = inputs.tokens.shape[1]
    wants: list[jax.Array] = []
    numbers: list[jax.Array] = []
    for index, pool in enumerate(cache.plan.spec.pools):
        size, columns = pool.block_tokens, view.blocks[index].shape[1]
        number = view.length[:, None] // size + jnp.arange(-(-width // size) + 1)
        held = jnp.take_along_axis(view.blocks[index], number % columns, axis=1)
        ahead = number * size < (view.length + inputs.counts)[:, None]
        want = ahead & (held == cache.plan.blocks[index])
        if RULES[pool.form].exact:
            last = view.length + inputs.counts - 1
            want = want & (number == (last // size)[:, None])
        want = want & (status == Status.OK)[:, None]
        wants.append(want)
        numbers.append(number)
    granted = _grant(wants, [table.num_free for table in cache.tables])
    no_room = (status == Status.OK) & ~granted
    status = jnp.where(no_room, int(Status.NO_ROOM), status)
    tables, blocks, epochs = [], [], []
    for index, pool in enumerate(cache.plan.spec.pools):
        want, number = wants[index] & (status == Status.OK)[:, None], numbers[index]
        table, ids = lifecycle.allocate(
            cache.tables[index],
            want.reshape(-1),
            form=pool.form,
            version=jnp.broadcast_to(view.version[:, None], want.shape).reshape(-1),
            provenance=jnp.broadcast_to(view.provenance[:, None], want.shape).reshape(
                -1
            ),
            first=(number * pool.block_tokens).reshape(-1),
            clock=cache.clock,
        )
        epoch = get(table.epoch, ids, 0)
        columns = view.blocks[index].shape[1]
        column = jnp.where(want, number % columns, columns)
        where = (inputs.rows[:, None], column)
        tables.append(table)
        blocks.append(put(cache.rows.blocks[index], where, ids.reshape(want.shape)))
        epochs.append(put(cache.rows.epochs[index], where, epoch.reshape(want.shape)))
    rows = dataclasses.replace(cache.rows, blocks=tuple(blocks), epochs=tuple(epochs))
    return dataclasses.replace(cache, tables=tuple(tables), rows=rows), status


def _grant(wants: list[jax.Array], free: list[jax.Array]) -> jax.Array:
    """Which rows get all they want, in the batch's order.

    A row that is refused takes nothing from those behind it.

    Args:
      wants: per pool, ``[B, K]`` bool, blocks wanted by each row.
      free: per pool, ``[]`` int32.

    Returns:
      ``[B]`` bool.
    """

    def serve(left, need):
        fits = jnp.all(need <= left)
        return left - jnp.where(fits, need, 0), fits

    needs = jnp.stack(
        [jnp.sum(want, axis=1, dtype=jnp.int32) for want in wants], axis=1
    )
    return jax.lax.scan(serve, jnp.stack(free), needs)[1]


def _slots(
    pool: PoolSpec,
    view: rowlib.RowView,
    index: int,
    positions: jax.Array,
    real: jax.Array,
    nowhere: int,
) -> jax.Array:
    """``[B, T]`` block that each token is written to; ``nowhere`` for none.

    Entries that were held when the row was admitted are read by a replay and never
    written.
    """
    columns = view.blocks[index].shape[1]
    column = positions // pool.block_tokens % columns
    blocks = jnp.take_along_axis(view.blocks[index], column, axis=1)
    if RULES[pool.form].exact:
        # The state after the last real token.
        real = real & ~jnp.pad(real[:, 1:], ((0, 0), (0, 1)))
    return jnp.where(real & (positions >= view.held[:, index, None]), blocks, nowhere)


def _check_shape(pool: PoolSpec, name: str, shape, where) -> None:
    """Refuses a plane of another shape; unknown names are refused elsewhere."""
    for plane in pool.entry.planes:
        want = (*where, plane.heads, plane.dim)
        if plane.name == name and shape != want:
            raise ValueError(
                f"{pool.name}, plane {name}: expected [..., heads, dim] = {want}, "
                f"got {shape}."
            )
