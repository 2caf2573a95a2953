"""Who made a cache entry: one frozen object, used everywhere.

Entries may be reused only by a producer that would have written the same values.
What decides that is the *content* of the weights and of the settings that change
values, never a model's name, a path, a host or a time.
"""

import dataclasses
import hashlib
import json

FORMAT_VERSION = 1

LONGEST_ID = 128
"""Characters of a request's or a session's id, of a namespace, or of a content id (or
bytes of one that is bytes or an integer): the index keeps them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Producer of cache entries and the namespace they may be shared in.

    Attributes:
      weights: digest of the weights' content; None if it cannot be computed.
      config: digest of the settings that change values (window, rope, norms...).
      layout: fingerprint of the CacheSpec, which has dtypes and block sizes.
      tokenizer: digest of the tokenizer; empty if ids come from elsewhere.
      adapter: digest of the adapter's weights and scale; empty for none.
      numerics: what else of a run changes values: backend, kernels, matmul precision...
      namespace: tenant; the empty string is the one shared by all without.
      format_version: version of this library's cache format.

    Raises:
      ValueError: for a namespace that is no string: a number that counts as nothing
        would be the namespace of all.
    """

    weights: str | None
    config: str | None
    layout: str
    tokenizer: str = ""
    adapter: str = ""
    numerics: str = ""
    namespace: str = ""
    format_version: int = FORMAT_VERSION

    def __post_init__(self):
        # No tenant given and the tenant without a name are the same.
        if self.namespace is None:
            object.__setattr__(self, "namespace", "")
        elif not isinstance(self.namespace, str):
            raise ValueError(
                f"namespace must be a string, got {self.namespace!r}; give the name of "
                'the tenant, or "" or None for the one shared by all without.'
            )

    def within(self, namespace: str | None) -> "Identity":
        """The same producer in another namespace; None and "" are the same."""
        return dataclasses.replace(self, namespace=namespace)

    @property
    def complete(self) -> bool:
        """Whether the producer is known well enough to share what it writes."""
        return bool(self.weights) and bool(self.config) and bool(self.layout)

    @property
    def digest(self) -> str:
        """Hex SHA-256 over all fields; equal exactly for equal identities."""
        fields = dataclasses.asdict(self)
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    def differences(self, other: "Identity") -> tuple[str, ...]:
        """Names of the fields in which two identities differ."""
        return tuple(
            field.name
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        )
