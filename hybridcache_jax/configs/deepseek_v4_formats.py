"""How DeepSeek-V4's cache entries lie: planes, dtypes, scales."""

import math

from hybridcache_jax.entry import Entry, Plane

QUANTISED = ("fp8", "fp8_fp4")

_FP8, _FP4, _POWER_OF_TWO = "float8_e4m3fn", "float4_e2m1fn", "float8_e8m0fnu"
_FP8_RUN, _FP4_RUN = 64, 32
_SCALE_BYTES = 8


class EntryFormats:
    """Layouts of rows, entries and index keys in one cache format.

    ``"fp8"`` is the layout of the released models: the elements that are not rotated
    in 8 bits with a power-of-two scale for each 64, those that are in bfloat16, index
    keys in 8 bits with one float32 scale.  ``"fp8_fp4"`` stores index keys in 4 bits
    with a power-of-two scale for each 32.

    Args:
      name: one of :data:`QUANTISED`, or the dtype of everything.

    Raises:
      ValueError: if it is neither.
    """

    def __init__(self, name: str):
        self.name = name
        if name not in QUANTISED:
            try:
                Plane("k", 1, 1, name)
            except ValueError as error:
                raise ValueError(
                    f"Unknown cache format {name!r}; expected a dtype such as "
                    f"'bfloat16', or one of {', '.join(QUANTISED)}."
                ) from error

    def entry(self, nope_dim: int, rope_dim: int) -> Entry:
        """One window row or compressed entry; it is key and value at once.

        Args:
          nope_dim: elements that are not rotated, plane ``k``.
          rope_dim: elements that are, plane ``k_rope``; they follow in the key.
        """
        key = ("k", "k_rope")
        if self.name not in QUANTISED:
            planes = (
                Plane("k", 1, nope_dim, self.name),
                Plane("k_rope", 1, rope_dim, self.name),
            )
            return Entry(planes, key=key)
        # A run must divide the elements, also those of models smaller than one run.
        run = math.gcd(nope_dim, _FP8_RUN)
        scales = -(-(nope_dim // run) // _SCALE_BYTES) * _SCALE_BYTES
        planes = (
            Plane("k", 1, nope_dim, _FP8, scale="k_scale", run=run),
            Plane("k_scale", 1, scales, _POWER_OF_TWO),
            Plane("k_rope", 1, rope_dim, "bfloat16"),
        )
        return Entry(planes, key=key)

    def index_key(self, dim: int) -> Entry:
        """One key of the indexer: plane ``k`` of ``dim`` elements."""
        if self.name not in QUANTISED:
            return Entry((Plane("k", 1, dim, self.name),))
        if self.name == "fp8":
            plane = Plane("k", 1, dim, _FP8, scale="k_scale", run=dim)
            return Entry((plane, Plane("k_scale", 1, 1, "float32")))
        run = math.gcd(dim, _FP4_RUN)
        plane = Plane("k", 1, dim, _FP4, scale="k_scale", run=run)
        return Entry((plane, Plane("k_scale", 1, dim // run, _POWER_OF_TWO)))

    def raw(self, dim: int) -> Entry:
        """One token that waits to be pooled: planes ``value`` and ``gate``.

        With overlap ``dim`` is twice that of the entry: the first half goes into the
        next block's entry, the second into that of the token's own block.
        """
        return Entry(
            (Plane("value", 1, dim), Plane("gate", 1, dim)),
            convention="gate without position bias",
        )
