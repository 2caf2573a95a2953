"""Fixed capacities, one per pool, what they take, and the report.

All shapes follow from the plan, so nothing retraces while serving.  The budget
counts pools, state tables, row tables and the host's index alike (red line 1).
"""

import dataclasses
import math

import numpy as np

from hybridcache_jax._whole import whole
from hybridcache_jax.block_counts import (
    held_back,
    live_blocks,
    minimum_blocks,
    stored_blocks,
)
from hybridcache_jax.byte_sizes import format_bytes
from hybridcache_jax.forms import RULES, Form
from hybridcache_jax.planes import block_in_memory
from hybridcache_jax.reads import reads
from hybridcache_jax.retention import Policies, Retention, policies, policy_of
from hybridcache_jax.retention_cost import RetentionCost, retention_cost
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.validate import alignment, layout
from pallas_kernels.choice import Kernel, choose
from pallas_kernels.contracts import MOSAIC_GPU, XLA

INT32_BYTES = 4
INT32_MAX = 2**31 - 1


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
        for caches without one.  See ``staging_bytes``.
      kernels: which implementations read the pools; see ``choice.choose``.
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
    kernels: str = "auto"

    def __post_init__(self):
        for name in ("max_sequences", "max_length", "max_chunk", "stored_length"):
            whole(name, getattr(self, name), least=1)
        for name in ("stored_tokens", "staging_blocks", "rollback"):
            whole(name, getattr(self, name))
        if self.rollback > self.max_length:
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

    def kernel(self, pool: int, read: str) -> Kernel:
        """Which implementation serves a read of a pool, and why.

        Args:
          pool: index of the pool.
          read: one of ``reads.reads(spec, pool)``.
        """
        return choose(
            read, self.spec.pools[pool], backend=self.backend, wanted=self.kernels
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
        return min(whole, live_blocks(spec, behind) + 1)

    def policy(self, form: Form) -> Retention:
        """At which resume points a bounded form is kept."""
        return policy_of(self.retention, form)

    def stored_blocks(self, pool: int, tokens: int) -> int:
        """Most blocks that stored prefixes keep in a pool.

        Args:
          pool: index of the pool.
          tokens: of the stored prefixes, a multiple of the grid.
        """
        layout, length = self.spec.pools[pool], self.stored_length
        return stored_blocks(self.spec, layout, self.retention, tokens, length)

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
        return self.rollback + held_back(self.spec, self.policy(form))

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
    def lanes(self) -> bool:
        """Whether blocks lie in rows of 128 lanes, as the TPU kernels read them.

        What leaves the device does not: a block outside is the same on every backend.
        """
        return self.backend == "tpu" or self.kernels == "interpret"

    def block_bytes(self, pool: int) -> int:
        """Bytes of one block in device memory, with its padding if it has any.

        Args:
          pool: index of the pool.
        """
        stored = self.spec.pools[pool]
        blocks = [
            block_in_memory(stored, plane, self.backend, self.lanes)
            for plane in stored.entry.planes
        ]
        each = sum(math.prod(block.shape) * block.dtype.itemsize for block in blocks)
        return len(stored.layers) * each

    @property
    def pool_bytes(self) -> tuple[int, ...]:
        """Bytes of each pool."""
        return tuple(
            self.block_bytes(number) * count for number, count in enumerate(self.blocks)
        )

    @property
    def staging_bytes(self) -> int:
        """Most bytes that blocks on their way to or from an outer tier take.

        On the device a batch of ``staging_blocks`` blocks of one pool, which was taken
        out of it or is about to be placed in it; in host memory the same batch, and on
        the way out the payload of one block that the tier has not taken yet.  What the
        tier holds is in its own budget.
        """
        # One batch of one pool is copied at a time.
        largest = max(self.block_bytes(n) for n in range(len(self.blocks)))
        blocks = 2 * self.staging_blocks + 1 if self.staging_blocks else 0
        return blocks * largest

    @property
    def overhead_bytes(self) -> int:
        """Bytes of state tables, row tables, the host's index and staging."""
        pools = len(self.blocks)
        # Per block nine int32 and the keep mark; per pool `num_free`; clock and stamp.
        tables = sum(self.blocks) * (9 * INT32_BYTES + 1) + (pools + 2) * INT32_BYTES
        columns = sum(self.columns(pool) for pool in range(pools))
        # Per row id and epoch of each column, `since` and `held` of each pool, ticket,
        # version, provenance, length, `known`, deadline, the token log, and one flag.
        row = (2 * columns + 2 * pools + 6 + self.max_length) * INT32_BYTES + 1
        index = self.index_bytes(self.index_tokens)
        return tables + self.max_sequences * row + index + self.staging_bytes

    def index_bytes(self, tokens: int) -> int:
        """Most bytes of the host's index for so many stored tokens.

        Args:
          tokens: shared parts counted once.
        """
        # Per token its id and what it is compared by where tokens have content, and an
        # id and an epoch for each pool's block, held or not.
        claims = sum(tokens // pool.block_tokens for pool in self.spec.pools)
        # Every grid unit may be a node of its own, alone under a key of its own.
        node = node_bytes(self.spec) + KEY_BYTES
        return 2 * (tokens + claims) * INT32_BYTES + tokens // self.spec.grid * node

    @property
    def total_bytes(self) -> int:
        """Everything that the budget pays for."""
        return sum(self.pool_bytes) + self.overhead_bytes

    def retention_cost(self) -> RetentionCost:
        """What the retention policies keep, and what a hit then runs again."""
        sizes = tuple(self.block_bytes(pool) for pool in range(len(self.blocks)))
        return retention_cost(self.spec, self.policy, self.stored_length, sizes)

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
        if cost.pools and cost.deepest_hit:
            lines.append(
                f"in stored sequences of {cost.length} tokens a hit, at most at "
                f"{cost.deepest_hit}, runs {cost.mean_replayed:.0f} tokens again on "
                f"average, {cost.most_replayed} at most, {cost.end_replayed} at the end"
            )
        elif cost.pools:
            lines.append(
                f"of sequences of {cost.length} tokens nothing is stored, and nothing "
                "hits: no form grows with the history and none is kept at a point"
            )
        return "\n".join(lines)


KEY_BYTES = 1408
"""Most bytes of a key of the host's index with its root: a request's id, a tenant's
namespace (``identity.LONGEST_ID`` characters each) and the objects around them."""


def node_bytes(spec: CacheSpec) -> int:
    """Most bytes of a node of the host's index besides its tokens and claims.

    As Python 3.11 to 3.13 allocate it, rounded up; a node has one grid unit at least.
    ``hybridcache bench index-memory`` has the measurement.
    """
    # Claims of one block size are one array; the unit is the key in its parent.
    arrays = len({pool.block_tokens for pool in spec.pools})
    return 512 + 192 * arrays + spec.grid * INT32_BYTES


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
        for read in reads(plan.spec, number):
            plan.kernel(number, read)  # or says why the kernels asked for cannot
    if refusals:
        raise ValueError("The layout cannot be read: " + "; ".join(refusals) + ".")


def _check_positions(plan: CapacityPlan) -> None:
    """Whether int32 holds every position that is computed, those past the end too."""
    for pool, count in zip(plan.spec.pools, plan.blocks, strict=True):
        if count * pool.block_tokens > INT32_MAX:
            raise ValueError(
                f"Pool {pool.name}: {count} blocks of {pool.block_tokens} tokens "
                f"exceed the int32 range of positions; plan fewer blocks."
            )
    longest = max(pool.block_tokens for pool in plan.spec.pools)
    # A step looks up to two blocks past its last token.
    last = plan.max_length + plan.max_chunk + 2 * longest
    if max(last, plan.stored_tokens, plan.stored_length) > INT32_MAX:
        raise ValueError(
            f"max_length {plan.max_length}, max_chunk {plan.max_chunk}, blocks of "
            f"{longest} tokens, {plan.stored_tokens} stored tokens and stored_length "
            f"{plan.stored_length} exceed the int32 range of positions; lower them."
        )
    if plan.kernels == MOSAIC_GPU.name and last > MOSAIC_GPU.positions:
        raise ValueError(
            f"The {MOSAIC_GPU.name} kernels count positions up to "
            f"{MOSAIC_GPU.positions}, max_length {plan.max_length} with max_chunk "
            f"{plan.max_chunk} exceeds that; take kernels='auto', or lower it."
        )
    reach = sum(layer.local.size for layer in plan.spec.layers if layer.local)
    if reach > INT32_MAX:
        raise ValueError(
            f"The windows and chunks of all layers reach {reach} tokens back, beyond "
            "the int32 range of positions; declare layers that see everything as "
            "Entries."
        )
