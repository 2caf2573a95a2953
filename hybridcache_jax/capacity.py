"""From a byte budget to fixed capacities, one per pool, with the report.

All shapes follow from the plan, so nothing retraces while serving.  The budget
counts pools, state tables, row tables and the host's index alike (red line 1).
"""

import bisect
import dataclasses
import re
from collections.abc import Mapping

import jax
import numpy as np

from hybridcache_jax.forms import RULES, Form
from hybridcache_jax.retention import Policies, Retention, policies, stored_policy
from hybridcache_jax.retention_cost import RetentionCost, retention_cost
from hybridcache_jax.spec import CacheSpec, PoolSpec
from hybridcache_jax.validate import alignment, layout
from pallas_kernels.contracts import XLA

_INT32 = 4
_INT32_MAX = 2**31 - 1
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[_letter + "b"] = 1000**_power
    _UNITS[_letter + "ib"] = 1024**_power


@dataclasses.dataclass(frozen=True)
class CapacityPlan:
    """Fixed sizes of one cache.  Hashable; the static part of ``HybridCache``.

    Attributes:
      spec: what is cached.
      max_sequences: rows, that is sequences alive at once.
      max_length: most tokens of one sequence.
      max_chunk: most tokens of one row in one step.
      blocks: blocks of each pool.
      backend: ``"cpu"``, ``"gpu"`` or ``"tpu"``; decides storage dtypes.
      rollback: a row can be rewound so far below the furthest it stood, within what
        it ran itself; but for recurrent states, which exist at checkpoints alone.
      retention: policies of bounded forms, ascending; the others keep every block.
      stored_tokens: tokens of stored prefixes that were planned for.
      stored_length: tokens that one stored sequence was taken to have, prompt and
        output; decides how often ``Retention.ends`` keeps something.
      staging_blocks: blocks that are copied to or from an outer tier in one call; 0
        for caches without one.
    """

    spec: CacheSpec
    max_sequences: int
    max_length: int
    max_chunk: int
    blocks: tuple[int, ...]
    backend: str
    rollback: int = 0
    retention: Policies = ()
    stored_tokens: int = 0
    stored_length: int = 1
    staging_blocks: int = 0

    def __post_init__(self):
        for name in ("max_sequences", "max_length", "max_chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")
        if self.stored_length < 1 or self.stored_tokens < 0:
            raise ValueError(
                f"stored_length must be >= 1 and stored_tokens >= 0, got "
                f"{self.stored_length} and {self.stored_tokens}."
            )
        if self.staging_blocks < 0:
            raise ValueError(f"staging_blocks must be >= 0, got {self.staging_blocks}.")
        if not 0 <= self.rollback <= self.max_length:
            raise ValueError(
                f"rollback must be 0 to max_length {self.max_length} tokens, got "
                f"{self.rollback}."
            )
        if self.max_chunk > self.max_length:
            raise ValueError(
                f"max_chunk {self.max_chunk} exceeds max_length {self.max_length}; "
                "a step never runs more tokens than a sequence may have."
            )
        if len(self.blocks) != len(self.spec.pools):
            raise ValueError(
                f"blocks must have one number per pool ({len(self.spec.pools)}), "
                f"got {len(self.blocks)}."
            )
        policies(self.spec, dict(self.retention))
        _check_positions(self)
        _check_layout(self)
        for pool, count in zip(self.spec.pools, self.blocks, strict=True):
            least = minimum_blocks(
                pool,
                self.max_sequences,
                self.max_length,
                self.max_chunk,
                self._margin(pool.form),
            )
            if count < least:
                raise ValueError(
                    f"Pool {pool.name} needs at least {least} blocks to serve "
                    f"{self.max_sequences} sequences, got {count}."
                )

    def columns(self, pool: int) -> int:
        """Columns of a row's block table in one pool.

        Forms that grow have one column per block of ``max_length``; bounded forms
        use their table as a ring, block ``j`` in column ``j % columns``.
        """
        spec = self.spec.pools[pool]
        whole = -(-self.max_length // spec.block_tokens)
        if RULES[spec.form].grows:
            return whole
        behind = self.max_chunk + self._margin(spec.form)
        return min(whole, _live_blocks(spec, behind) + 1)

    def policy(self, form: Form) -> Retention:
        """At which resume points a bounded form is kept."""
        return _policy(self.retention, form)

    def stored_blocks(self, pool: int, tokens: int) -> int:
        """Most blocks that stored prefixes keep in a pool.

        Args:
          pool: index of the pool.
          tokens: of the stored prefixes, a multiple of the grid.
        """
        layout, length = self.spec.pools[pool], self.stored_length
        return _stored_blocks(self.spec, layout, self.retention, tokens, length)

    def held_from(self, form: Form, length):
        """Position as if standing at which a row holds a bounded form.

        Args:
          form: a bounded form.
          length: int or int32 array ``[...]``, where the row stands.

        Returns:
          Of the same shape, at most ``length``: less the rollback, and for
          ``Retention.ends`` at the last grid point, which may become the output's end.
        """
        back = length - self.rollback
        back = back * (back > 0)
        return back - back % self.spec.grid if self.policy(form).holds_back else back

    def _margin(self, form: Form) -> int:
        """Most tokens between ``held_from`` and the row's length."""
        return self.rollback + _held_back(self.spec, self.policy(form))

    @property
    def index_tokens(self) -> int:
        """Most tokens that the host's index holds.

        What grows with the history bounds them: every token of the index has its block
        in each such pool.  A model without such forms keeps tokens without blocks
        between its resume points; there :class:`PrefixCache` keeps to this number.
        """
        sizes = [
            (pool, count * pool.block_tokens)
            for pool, count in zip(self.spec.pools, self.blocks, strict=True)
        ]
        growing = [tokens for pool, tokens in sizes if RULES[pool.form].grows]
        if growing:
            return min(growing)
        return max(self.max_length, self.stored_tokens, *(n for _, n in sizes))

    @property
    def pool_bytes(self) -> tuple[int, ...]:
        """Bytes of each pool."""
        return tuple(
            pool.block_bytes * count
            for pool, count in zip(self.spec.pools, self.blocks, strict=True)
        )

    @property
    def overhead_bytes(self) -> int:
        """Bytes of state tables, row tables, the host's index and staging."""
        pools = len(self.blocks)
        # Per block nine int32 and the keep mark; per pool `num_free`; clock and stamp.
        tables = sum(self.blocks) * (9 * _INT32 + 1) + (pools + 2) * _INT32
        columns = sum(self.columns(pool) for pool in range(pools))
        # Per row id and epoch of each column, `since` and `held` of each pool, ticket,
        # version, provenance, length, `known`, deadline, the token log, and one flag.
        row = (2 * columns + 2 * pools + 6 + self.max_length) * _INT32 + 1
        # One pool is copied at a time.
        staging = self.staging_blocks * max(p.block_bytes for p in self.spec.pools)
        index = self.index_bytes(self.index_tokens)
        return tables + self.max_sequences * row + index + staging

    def index_bytes(self, tokens: int) -> int:
        """Bytes of the host's index for so many stored tokens.

        Args:
          tokens: shared parts counted once.
        """
        # Per token its id, and an id and an epoch for each pool's block, held or not.
        claims = sum(tokens // pool.block_tokens for pool in self.spec.pools)
        return (tokens + 2 * claims) * _INT32

    @property
    def total_bytes(self) -> int:
        """Everything that the budget pays for."""
        return sum(self.pool_bytes) + self.overhead_bytes

    def retention_cost(self) -> RetentionCost:
        """What the retention policies keep, and what a hit then runs again."""
        return retention_cost(self.spec, self.policy, self.stored_length)

    def report(self) -> str:
        """A table for people: blocks, tokens and bytes per pool, cost of retention."""
        lines = [
            f"resume points every {self.spec.grid} tokens; a prompt of up to "
            f"{self.spec.grid} tokens can never hit",
            f"{'pool':<24}{'layers':>7}{'blocks':>9}{'tokens':>11}{'MiB':>10}",
        ]
        for pool, count, size in zip(
            self.spec.pools, self.blocks, self.pool_bytes, strict=True
        ):
            lines.append(
                f"{pool.name:<24}{len(pool.layers):>7}{count:>9}"
                f"{count * pool.block_tokens:>11}{size / 2**20:>10.1f}"
            )
        lines.append(
            f"{'tables, index, staging':<51}{self.overhead_bytes / 2**20:>10.1f}"
        )
        lines.append(f"{'total':<24}{'':>27}{self.total_bytes / 2**20:>10.1f}")
        cost = self.retention_cost()
        lines += [
            f"{pool.pool} is kept at {pool.policy}: {format_bytes(pool.point_bytes)} a "
            f"resume point, {format_bytes(pool.bytes_per_1000_tokens)} per 1,000 "
            "stored tokens"
            for pool in cost.pools
        ]
        if cost.pools:
            lines.append(
                f"in stored sequences of {cost.length} tokens a hit runs "
                f"{cost.mean_replayed:.0f} tokens again on average, "
                f"{cost.most_replayed} at most, {cost.end_replayed} at the end"
            )
        return "\n".join(lines)


def plan_capacity(
    spec: CacheSpec,
    *,
    budget: int | str,
    max_sequences: int,
    max_length: int,
    max_chunk: int = 256,
    stored_tokens: int | None = None,
    stored_length: int | None = None,
    rollback: int = 0,
    retention: Retention | Mapping[Form, Retention] = Retention.every_block(),
    staging_blocks: int = 0,
    backend: str | None = None,
) -> CapacityPlan:
    """Divides a byte budget over the pools of a spec.

    Every pool first gets what live sequences need: one sequence of ``max_length``
    and one block for each other row in the growing pools, a full window, tail or
    state for every row in the bounded ones.  What is left goes to stored prefixes, so
    that all pools serve the same number of further tokens; a bounded pool gets the
    blocks that its retention policy keeps for so many.

    Args:
      spec: what is cached.
      budget: bytes, or text such as ``"8GiB"`` or ``"500MB"``.
      max_sequences: rows alive at once.
      max_length: most tokens of one sequence.
      max_chunk: most tokens of one row in one step.
      stored_tokens: tokens of stored prefixes to plan for, rounded up to the grid;
        None uses the whole budget.
      stored_length: tokens of a stored sequence, prompt and output, on average; None
        for ``max_length``.  Where sequences are shorter than that, pools under
        ``Retention.ends`` fill up sooner, and hits are replayed more often.
      rollback: tokens by which a row can be rewound below the furthest it stood,
        within what it ran itself; what the last step ran needs no margin.
      retention: at which resume points bounded forms are kept; one policy for all of
        them, or one for each form that is named.
      staging_blocks: blocks that are copied to or from an outer tier in one call; a
        ``PrefixCache`` with a tier needs at least one, 16 are plenty.
      backend: None for JAX's default backend.

    Raises:
      ValueError: for a budget that cannot be read or does not fit, saying how many
        bytes the smallest plan needs; for a retention policy of a form that grows, or
        whose distance is no multiple of the grid.
    """
    size = parse_bytes(budget)
    backend = jax.default_backend() if backend is None else backend
    max_chunk = min(max_chunk, max_length)
    length = max_length if stored_length is None else stored_length
    kept = policies(spec, retention)
    least = tuple(
        minimum_blocks(
            pool,
            max_sequences,
            max_length,
            max_chunk,
            rollback + _held_back(spec, _policy(kept, pool.form)),
        )
        for pool in spec.pools
    )

    def plan(grids: int) -> CapacityPlan:
        tokens = grids * spec.grid
        blocks = tuple(
            base + _stored_blocks(spec, pool, kept, tokens, length)
            for base, pool in zip(least, spec.pools, strict=True)
        )
        return CapacityPlan(
            spec=spec,
            max_sequences=max_sequences,
            max_length=max_length,
            max_chunk=max_chunk,
            blocks=blocks,
            backend=backend,
            rollback=rollback,
            retention=kept,
            stored_tokens=tokens,
            stored_length=length,
            staging_blocks=staging_blocks,
        )

    if stored_tokens is None:
        # Index and growing pools alone tell how many can be at most; one more than
        # int32 can count says so when it is tried.
        per_grid = spec.grid * (_INT32 + int(spec.bytes_per_token()))
        most = min(size // per_grid, _INT32_MAX // spec.grid) + 2
        fitting = range(most)
        grids = bisect.bisect(fitting, size, key=lambda n: plan(n).total_bytes) - 1
    else:
        grids = -(-stored_tokens // spec.grid)
    made = plan(max(grids, 0))
    if made.total_bytes > size:
        raise ValueError(
            f"The plan does not fit: {max_sequences} sequences of up to {max_length} "
            f"tokens"
            + ("" if stored_tokens is None else f" and {stored_tokens} stored tokens")
            + f" need {format_bytes(made.total_bytes)}, the budget is "
            f"{format_bytes(size)}. Raise the budget, or lower max_length, "
            f"max_sequences or stored_tokens."
        )
    return made


def minimum_blocks(
    pool: PoolSpec,
    max_sequences: int,
    max_length: int,
    max_chunk: int,
    rollback: int = 0,
) -> int:
    """Fewest blocks with which a pool can serve ``max_sequences`` rows.

    Room for a chunk is made while the blocks of the chunk before are still pinned, so
    a bounded form needs its window and two chunks, and a state itself three times.
    What a row holds back, for a rollback or for its last grid point, comes on top.

    Args:
      pool: the pool.
      max_sequences: rows.
      max_length: most tokens of a row.
      max_chunk: most tokens of a row in one step.
      rollback: tokens behind its length at which a row holds a bounded form.
    """
    whole = -(-max_length // pool.block_tokens)
    if RULES[pool.form].grows:
        return whole + max_sequences - 1
    if RULES[pool.form].exact:
        return max_sequences * min(whole, 3 + -(-rollback // pool.block_tokens))
    tokens = 2 * max_chunk + rollback
    return max_sequences * min(whole, _live_blocks(pool, tokens))


def parse_bytes(text: int | str) -> int:
    """Bytes from a number or from text such as ``"8GiB"``.

    Raises:
      ValueError: if it is no positive amount.
    """
    if isinstance(text, int):
        size = text
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
        if match is None or match[2].lower() not in _UNITS:
            raise ValueError(
                f"Cannot read {text!r} as an amount of memory; write for example "
                f"'8GiB', '500MB' or a number of bytes."
            )
        size = int(float(match[1]) * _UNITS[match[2].lower()])
    if size < 1:
        raise ValueError(f"An amount of memory must be positive, got {text!r}.")
    return size


def format_bytes(size: float) -> str:
    """Bytes for people, for example ``"1.5 GiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def _check_layout(plan: CapacityPlan) -> None:
    """Validation layers 2 and 4, for every block there will be."""
    refusals = list(layout(plan.spec, XLA))
    for number, pool in enumerate(plan.spec.pools):
        # Addresses are multiples of the block's length: the ends tell for all.
        ids = np.array([0, plan.blocks[number] - 1], np.int32)
        if alignment(plan.spec, number, ids, XLA).any():
            refusals.append(
                f"{pool.name}: blocks of {pool.block_tokens} tokens are no multiple of "
                f"{XLA.block_alignment} bytes in every plane; make them longer"
            )
    if refusals:
        raise ValueError("The layout cannot be read: " + "; ".join(refusals) + ".")


def _check_positions(plan: CapacityPlan) -> None:
    """Whether int32 holds every position that is computed, those past the end too."""
    for pool, count in zip(plan.spec.pools, plan.blocks, strict=True):
        if count * pool.block_tokens > _INT32_MAX:
            raise ValueError(
                f"Pool {pool.name}: {count} blocks of {pool.block_tokens} tokens "
                f"exceed the int32 range of positions; plan fewer blocks."
            )
    longest = max(pool.block_tokens for pool in plan.spec.pools)
    # A step looks up to two blocks past its last token.
    last = plan.max_length + plan.max_chunk + 2 * longest
    if max(last, plan.stored_tokens) > _INT32_MAX:
        raise ValueError(
            f"max_length {plan.max_length}, max_chunk {plan.max_chunk}, blocks of "
            f"{longest} tokens and {plan.stored_tokens} stored tokens exceed the int32 "
            "range of positions; lower them."
        )
    reach = sum(layer.local.size for layer in plan.spec.layers if layer.local)
    if reach > _INT32_MAX:
        raise ValueError(
            f"The windows and chunks of all layers reach {reach} tokens back, beyond "
            "the int32 range of positions; declare layers that see everything as "
            "Entries."
        )


def _live_blocks(pool: PoolSpec, tokens: int) -> int:
    """Most blocks that a bounded form and ``tokens`` tokens behind it can touch."""
    reach = RULES[pool.form].reach(pool.geometry)
    return -(-(reach + tokens) // pool.block_tokens) + 1


def _policy(retention: Policies, form: Form) -> Retention:
    return dict(retention).get(form, Retention.every_block())


def _held_back(spec: CacheSpec, policy: Retention) -> int:
    """Most tokens between a row's last grid point and its length, if that matters."""
    return spec.grid - 1 if policy.holds_back else 0


def _stored_blocks(
    spec: CacheSpec, pool: PoolSpec, retention: Policies, tokens: int, length: int
) -> int:
    """Blocks of a pool for so many tokens of stored sequences of a length."""
    if RULES[pool.form].grows:
        return tokens // pool.block_tokens
    policy = stored_policy(spec, lambda form: _policy(retention, form), pool.form)
    return policy.stored_blocks(pool, tokens, grid=spec.grid, length=length)
