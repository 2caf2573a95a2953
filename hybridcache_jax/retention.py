"""Which resume points keep windows, tails and checkpoints, and how much that holds.

What grows with the history is one copy of it.  A bounded form is a copy for each
resume point: the policy says for which.  The rest of a bounded form comes back by a
replay, so a policy trades memory against tokens that are run again; it never changes
what comes out.  The same points decide what a row offers to the store, what a row holds
back while it runs, and how many blocks a plan sets aside.
"""

import dataclasses
import enum
import math
from collections.abc import Callable, Mapping

import numpy as np

from hybridcache_jax._whole import whole
from hybridcache_jax.forms import RULES, Form, required
from hybridcache_jax.layers import Chunk
from hybridcache_jax.replay import companions
from hybridcache_jax.spec import CacheSpec, PoolSpec

# Grid points looked at for the most blocks that one of them requires.
_SAMPLE = 256


class Keep(enum.Enum):
    """The kinds of policy."""

    EVERY = "every"
    ENDS = "ends"
    NONE = "none"


@dataclasses.dataclass(frozen=True)
class Retention:
    """Resume points at which a bounded form is kept for others.  Hashable.

    Make one with :meth:`every_block`, :meth:`every`, :meth:`ends` or :meth:`none`.

    Attributes:
      keep: the kind of policy.
      tokens: distance of the points of ``EVERY``; 0 for every grid point, and for the
        other kinds.

    Raises:
      ValueError: for a kind that is no :class:`Keep`, and for a distance that is no
        whole number, negative, beyond int32, or beside another kind.
    """

    keep: Keep
    tokens: int = 0

    def __post_init__(self):
        if not isinstance(self.keep, Keep):
            raise ValueError(f"The kind of a Retention is a Keep, got {self.keep!r}.")
        most = 2**31 - 1 if self.keep is Keep.EVERY else 0
        tokens = whole("The distance of a Retention", self.tokens, most=most)
        object.__setattr__(self, "tokens", tokens)

    @classmethod
    def every_block(cls) -> "Retention":
        """Every grid point: no hit is replayed, memory grows with the history."""
        return cls(Keep.EVERY)

    @classmethod
    def every(cls, tokens: int) -> "Retention":
        """Multiples of ``tokens``; a hit in between is replayed.

        Args:
          tokens: a multiple of the grid; the plan refuses others.

        Raises:
          ValueError: if it is no whole number, not positive, or beyond int32.
        """
        distance = whole("The distance of Retention.every", tokens, least=1)
        return cls(Keep.EVERY, distance)

    @classmethod
    def ends(cls) -> "Retention":
        """End of prompt and end of output, each at the last grid point within it.

        Of a prompt whose length is on the grid also the point before: the same prompt
        again has its last token to run.  A row holds back what its last grid point
        requires until it passes the next; publish when the prompt has been run and
        once more on release.
        """
        return cls(Keep.ENDS)

    @classmethod
    def none(cls) -> "Retention":
        """Nowhere: every hit is replayed.

        Where no form grows with the history, nothing is stored and nothing hits.
        """
        return cls(Keep.NONE)

    def __str__(self) -> str:
        if self.keep is Keep.EVERY:
            return f"every {self.tokens} tokens" if self.tokens else "every block"
        return self.keep.value

    def distance(self, grid: int) -> int:
        """Tokens between the points of ``EVERY``; the grid for other policies."""
        return self.tokens or grid

    @property
    def holds_back(self) -> bool:
        """Whether a row keeps what its last grid point requires as it runs on."""
        return self.keep is Keep.ENDS

    def keeps(
        self, points: np.ndarray, *, grid: int, prompt: int, end: int
    ) -> np.ndarray:
        """At which points the form is kept.

        Args:
          points: ``[K]`` int32 grid points, positive.
          grid: tokens between grid points.
          prompt: tokens of the prompt.
          end: tokens of the finished row; 0 while it runs.

        Returns:
          ``[K]`` bool.
        """
        if self.keep is Keep.EVERY:
            return points % self.distance(grid) == 0
        if self.keep is Keep.NONE:
            return np.zeros(points.shape, bool)
        ends = [at - at % grid for at in (prompt - 1, prompt, end)]
        return np.isin(points, ends)

    def step_end(self, start: int, stop: int, *, grid: int, prompt: int) -> int:
        """Where a step should end so that a checkpoint is taken where it is kept.

        Args:
          start: first position of the step.
          stop: where it would end otherwise, after ``start``.
          grid: tokens between grid points.
          prompt: tokens of the prompt.

        Returns:
          The last point of ``EVERY``, the first of ``ENDS``, else ``stop``.
        """
        if self.keep is Keep.EVERY:
            last = stop - stop % self.distance(grid)
            return last if last > start else stop
        if self.keep is Keep.ENDS:
            ends = (at - at % grid for at in (prompt - 1, prompt))
            return min((at for at in ends if start < at < stop), default=stop)
        return stop

    def stored_blocks(
        self, pool: PoolSpec, tokens: int, *, grid: int, length: int
    ) -> int:
        """Most blocks that stored prefixes keep in a pool.

        Args:
          pool: a bounded form.
          tokens: tokens of the stored prefixes, a multiple of the grid.
          grid: tokens between grid points.
          length: tokens of one stored sequence, prompt and output.
        """
        if self.keep is Keep.NONE:
            return 0
        points = -(-tokens // self.distance(grid))
        if self.keep is Keep.ENDS:
            # Two points at the end of the prompt, one at that of the output.
            points = 3 * -(-tokens // length)
        return min(tokens // pool.block_tokens, points * point_blocks(pool, grid))


# A plan's policies, by form in ascending order; forms left out keep every block.
Policies = tuple[tuple[Form, Retention], ...]


def policies(
    spec: CacheSpec, retention: Retention | Mapping[Form, Retention]
) -> Policies:
    """One policy per bounded form, in a form that can be hashed.

    Args:
      spec: what is cached.
      retention: one policy for all bounded forms, or one for each named.

    Raises:
      ValueError: for a form that grows or that the model does not leave, and for a
        distance that is no multiple of the grid.
    """
    bounded = {pool.form for pool in spec.pools if not RULES[pool.form].grows}
    if isinstance(retention, Retention):
        retention = dict.fromkeys(bounded, retention)
    for form, policy in retention.items():
        if form not in bounded:
            names = ", ".join(sorted(form.name for form in bounded)) or "none"
            raise ValueError(
                f"{Form(form).name} has no retention policy in this model: what grows "
                f"with the history is always kept; its bounded forms are: {names}."
            )
        if policy.tokens % spec.grid:
            raise ValueError(
                f"Retention.every({policy.tokens}) for {Form(form).name}: resume "
                f"points lie every {spec.grid} tokens; give a multiple of that."
            )
    return tuple(
        (form, retention[form])
        for form in sorted(retention)
        if retention[form] != Retention.every_block()
    )


def kept_at(
    policy: Retention,
    pool: PoolSpec,
    points: np.ndarray,
    *,
    grid: int,
    prompt: int,
    end: int,
) -> np.ndarray:
    """At which points nothing of a bounded pool is missed.

    Where its policy keeps it, and where nothing of it is required: a chunk that starts
    at the point.

    Args and returns: as for :meth:`Retention.keeps`, for one pool.
    """
    lo, hi = required(pool.form, pool.geometry, points)
    return (lo >= hi) | policy.keeps(points, grid=grid, prompt=prompt, end=end)


def policy_of(retention: Policies, form: Form) -> Retention:
    """The policy of one bounded form."""
    return dict(retention).get(form, Retention.every_block())


def stored_policy(
    spec: CacheSpec, policy: Callable[[Form], Retention], form: Form
) -> Retention:
    """At which points a bounded form is stored: where it is of use.

    That is where all the forms are kept that must be held beside it, see
    ``replay.companions``.

    Args:
      spec: what is cached.
      policy: the policy of each bounded form.
      form: which.

    Returns:
      The policy whose points those are; of ends and a distance the ends, and beside a
      chunk all that the others keep, which may be more.
    """
    # A chunk is not missed where one starts, whatever its policy: it limits nothing.
    beside = {
        other.form
        for number, pool in enumerate(spec.pools)
        if pool.form == form
        for other in (spec.pools[n] for n in companions(spec, number))
        if other.form == form or not isinstance(other.geometry.local, Chunk)
    }
    all_of_them = [policy(other) for other in sorted(beside)]
    if len(set(all_of_them)) == 1:
        return all_of_them[0]
    kinds = {each.keep for each in all_of_them}
    if Keep.NONE in kinds:
        return Retention.none()
    if Keep.ENDS in kinds:
        return Retention.ends()
    distance = math.lcm(*(each.distance(spec.grid) for each in all_of_them))
    if distance == spec.grid:
        return Retention.every_block()
    # No sequence is that long.
    return Retention.every(distance) if distance < 2**31 else Retention.none()


def point_blocks(pool: PoolSpec, grid: int) -> int:
    """Most blocks of a bounded form that one grid point requires."""
    reach = RULES[pool.form].reach(pool.geometry)
    points = grid * (-(-reach // grid) + 1 + np.arange(_SAMPLE, dtype=np.int64))
    lo, hi = required(pool.form, pool.geometry, points)
    size = pool.block_tokens
    return int(np.max(np.where(lo < hi, -(-hi // size) - lo // size, 0)))
