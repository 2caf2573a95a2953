"""How widely stored prefixes are shared: scopes, and the keys that follow from them.

Reuse is switched on step by step.  A new model starts where a request finds only what
it stored itself; once its hits have proved right, an operator lets sessions, a tenant
or all tenants share.  The scope decides the key under which claims are looked up and
published, so what lies outside a scope is not filtered out: it is never met.
"""

import dataclasses
import enum
import math
import numbers
import reprlib
from collections.abc import Mapping
from types import MappingProxyType

from hybridcache_jax.codes import Provenance, Reason
from hybridcache_jax.identity import LONGEST_ID, Identity


class Scope(enum.IntEnum):
    """Who may reuse what a request stored; each scope is wider than the one before."""

    OFF = 0
    REQUEST = 1
    SESSION = 2
    NAMESPACE = 3
    GLOBAL = 4

    @classmethod
    def of(cls, scope: "Scope | str") -> "Scope":
        """The scope itself, or the one of that name in lower case.

        Raises:
          ValueError: if there is no such scope.
        """
        if isinstance(scope, Scope):
            return scope
        try:
            return _NAMES[scope]
        except (KeyError, TypeError):
            raise ValueError(
                f"There is no reuse scope {scope!r}; expected one of "
                f"{', '.join(_NAMES)}."
            ) from None


_NAMES = {scope.name.lower(): scope for scope in Scope}


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """What claims are kept under; equal exactly where reuse is allowed.

    Attributes:
      identity: the producer in its namespace; without one in the scope ``GLOBAL``.
      scope: the scope it was made in.
      owner: the request's or the session's id where the scope asks for one.
      generation: changes of the producer's scope so far, and how often its records
        were given up by others, so that nothing stored before is found after.
      provenance: what is kept under it at worst; the exact and the approximate have
        keys of their own.
    """

    identity: Identity
    scope: Scope = Scope.NAMESPACE
    owner: str = ""
    generation: int = 0
    provenance: Provenance = Provenance.EXACT

    @property
    def reason(self) -> Reason:
        """OK if claims may be kept under it, else why nothing is shared."""
        if self.scope == Scope.OFF:
            return Reason.REUSE_OFF
        if not self.identity.complete:
            return Reason.IDENTITY_UNKNOWN
        if self.scope in (Scope.REQUEST, Scope.SESSION) and not self.owner:
            return Reason.SCOPE_UNKNOWN
        return Reason.OK


@dataclasses.dataclass(frozen=True)
class ReusePolicy:
    """How widely prefixes are shared when serving begins.

    What narrows a producer later, a shadow run that differed or ``set_scope``, does so
    in that process: a server that restarts by itself takes the counter
    ``shadow_mismatches_total`` for its reason not to begin as wide again.

    Attributes:
      scope: of every producer that is not named below, as a :class:`Scope` or by name:

        - ``"off"``: nothing is matched or published;
        - ``"request"``: only what the same request stored (several answers to one
          prompt, a request that was put off and resumed);
        - ``"session"``: what the same session stored, within its namespace;
        - ``"namespace"``: what the same tenant stored;
        - ``"global"``: what any tenant stored.
      producers: scopes of producers by identity; their namespaces do not matter.
      shadow_share: share of the hits to compute again and compare, 0 to 1
        (:mod:`shadow`).
      seed: which hits those are; equal seeds choose the same ones.
      shadow_tolerance: how far numbers of a hit and of its cold run may lie apart; 0
        asks for equal bits.

    Raises:
      ValueError: for a scope that does not exist, a share outside 0 to 1, a seed that
        is no integer, a tolerance that is negative or no number, or
        producers that are no mapping.
    """

    scope: Scope | str = Scope.REQUEST
    producers: Mapping[Identity, Scope | str] = dataclasses.field(
        default_factory=dict, hash=False
    )
    shadow_share: float = 0.0
    seed: int = 0
    shadow_tolerance: float = 0.0

    def __post_init__(self):
        share, tolerance = self.shadow_share, self.shadow_tolerance
        # Written so that NaN is refused.
        if not (isinstance(share, numbers.Real) and 0 <= share <= 1):
            raise ValueError(f"shadow_share must lie between 0 and 1, got {share!r}.")
        if not (isinstance(tolerance, numbers.Real) and 0 <= tolerance < math.inf):
            raise ValueError(
                f"shadow_tolerance must be a finite number >= 0, got {tolerance!r}."
            )
        if not isinstance(self.producers, Mapping):
            raise ValueError(
                "producers must map an Identity to a scope, got "
                f"{reprlib.repr(self.producers)}."
            )
        if isinstance(self.seed, bool) or not isinstance(self.seed, numbers.Integral):
            raise ValueError(f"seed must be an integer, got {self.seed!r}.")
        object.__setattr__(self, "seed", int(self.seed))
        object.__setattr__(self, "scope", Scope.of(self.scope))
        scopes = {
            identity.within(None): Scope.of(scope)
            for identity, scope in self.producers.items()
        }
        object.__setattr__(self, "producers", MappingProxyType(scopes))

    def __reduce__(self):
        """Copied and pickled as what it was made of: a mapping proxy is neither."""
        fields = (getattr(self, each.name) for each in dataclasses.fields(self))
        plain = (dict(f) if isinstance(f, MappingProxyType) else f for f in fields)
        return type(self), tuple(plain)


_WORD = 2**64 - 1


def chosen(seed: int, number: int, share: float) -> bool:
    """Whether a hit is one of those to be computed again.

    The stream of SplitMix64 (Steele, Lea and Flood, 2014), read at place ``number``: it
    depends on nothing else, so that a run can be repeated.

    Args:
      seed: any integer.
      number: how many hits came before.
      share: of the hits that are chosen, 0 to 1.
    """
    bits = (seed + (number + 1) * 0x9E3779B97F4A7C15) & _WORD
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _WORD
    bits ^= bits >> 31
    # 53 bits are what a float holds exactly; all of them lie below a share of 1.
    return bits >> 11 < share * 2**53


class Rollout:
    """The scopes of this moment: the policy, and what was changed since."""

    def __init__(self, policy: ReusePolicy):
        """Every producer stands where the policy puts it."""
        self.policy = policy
        self._scopes: dict[Identity, Scope] = {}
        self._generations: dict[Identity, int] = {}
        self._hits = 0

    def next_chosen(self) -> bool:
        """Counts a hit, and says whether it is to be computed again."""
        number, self._hits = self._hits, self._hits + 1
        return chosen(self.policy.seed, number, self.policy.shadow_share)

    def scope(self, identity: Identity) -> Scope:
        """The scope of a producer, whatever the namespace."""
        producer = identity.within(None)
        planned = self.policy.producers.get(producer, self.policy.scope)
        return self._scopes.get(producer, Scope.of(planned))

    def set_scope(self, identity: Identity, scope: Scope | str) -> bool:
        """Moves a producer to another scope, wider or narrower.

        Nothing stored so far is found in the new one, not even after coming back:
        wider, because it was stored for fewer readers; narrower, because the change
        says that it is not trusted.

        Args:
          identity: the producer; its namespace does not matter.
          scope: where to.

        Returns:
          Whether that is a change.

        Raises:
          ValueError: for a scope that does not exist.
        """
        producer, scope = identity.within(None), Scope.of(scope)
        if scope == self.scope(producer):
            return False
        self._scopes[producer] = scope
        self.renew(producer)
        return True

    def renew(self, producer: Identity) -> None:
        """Nothing stored so far is found again; the scope stays what it is.

        Args:
          producer: without a namespace.
        """
        self._generations[producer] = self._generations.get(producer, 0) + 1

    def narrower(self, identity: Identity) -> Scope:
        """Where a producer goes whose hit was wrong: ``REQUEST``, from it ``OFF``."""
        wide = self.scope(identity) > Scope.REQUEST
        return Scope.REQUEST if wide else Scope.OFF

    def key(self, identity: Identity, *, request: str = "", session: str = "") -> Key:
        """The key of a producer, and of a request or session, in today's scope.

        Args:
          identity: producer and namespace.
          request: id of the request; "" for none.
          session: id of the session; "" for none.

        Raises:
          ValueError: for an id that is no string of at most ``LONGEST_ID`` characters,
            or a longer namespace, or an identity that is none.
        """
        if not isinstance(identity, Identity):
            raise ValueError(
                "identity must be the Identity of who reads and writes, got "
                f"{reprlib.repr(identity)}; of a producer that is not known make one "
                "with weights=None."
            )
        named = {
            "request": request,
            "session": session,
            "namespace": identity.namespace,
        }
        for name, given in named.items():
            if not isinstance(given, str) or len(given) > LONGEST_ID:
                raise ValueError(
                    f"{name} must be a string of at most {LONGEST_ID} characters, got "
                    f"{reprlib.repr(given)}; give a digest of a longer one."
                )
        scope = self.scope(identity)
        owners = {Scope.REQUEST: request, Scope.SESSION: session}
        return Key(
            identity=identity.within(None) if scope == Scope.GLOBAL else identity,
            scope=scope,
            owner=owners.get(scope, ""),
            generation=self._generations.get(identity.within(None), 0),
        )

    def holds(self, key: Key) -> bool:
        """Whether claims may be kept under a key, by the scopes of this moment."""
        producer = key.identity.within(None)
        return (
            key.reason == Reason.OK
            and key.scope == self.scope(producer)
            and key.generation == self._generations.get(producer, 0)
        )
