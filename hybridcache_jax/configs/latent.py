"""Settings of multi-head latent attention, and the entry it leaves in the cache."""

import dataclasses

from hybridcache_jax.configs.reading import Fields
from hybridcache_jax.entry import Entry, Plane

SCALED_RUN = 128
"""Elements that share one scale in the ``"fp8"`` cache format."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """Dimensions of multi-head latent attention.

    Attributes:
      query_rank: width of the latent that queries are expanded from; None if they
        are projected directly.
      kv_rank: width of the latent that keys and values are expanded from.
      nope_dim: elements per head of keys and queries that come from the latents.
      rope_dim: elements of the key that all heads share, and of each query for it.
      value_dim: elements per value head.
    """

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    @property
    def key_dim(self) -> int:
        """Elements of an expanded key; the softmax scale is made of it."""
        return self.nope_dim + self.rope_dim

    def entry(self, cache_format: str, convention: str) -> Entry:
        """What one token leaves: its latent, and the key part that heads share.

        The key is both, joined; the value is the latent alone, for attention runs
        with queries that are absorbed into its space.

        Args:
          cache_format: a dtype for both planes; or ``"fp8"``: the latent in
            float8_e4m3fn with one float32 scale per 128 elements, the shared part in
            bfloat16.
          convention: how the shared part is rotated.
        """
        if cache_format == "fp8":
            latents = scaled_planes("latent", self.kv_rank)
            shared = Plane("rope", 1, self.rope_dim, "bfloat16")
        else:
            latents = (Plane("latent", 1, self.kv_rank, cache_format),)
            shared = Plane("rope", 1, self.rope_dim, cache_format)
        return Entry(
            (*latents, shared),
            key=("latent", "rope"),
            value=("latent",),
            convention=convention,
        )


def read_latent(fields: Fields) -> LatentConfig:
    """The dimensions, as the DeepSeek family spells them.

    All of them must be given, but for ``q_lora_rank``, where null means none.
    """
    return LatentConfig(
        query_rank=fields.positive("q_lora_rank")
        if fields.has("q_lora_rank")
        else None,
        kv_rank=fields.positive("kv_lora_rank"),
        nope_dim=fields.positive("qk_nope_head_dim"),
        rope_dim=fields.positive("qk_rope_head_dim"),
        value_dim=fields.positive("v_head_dim"),
    )


def scaled_planes(name: str, dim: int) -> tuple[Plane, Plane]:
    """A float8 plane of one head and the float32 plane that scales it.

    Args:
      name: of the scaled plane; the other gets ``"_scale"`` behind it.
      dim: elements; one scale per 128 of them, or one in all if 128 does not divide.
    """
    run = SCALED_RUN if dim % SCALED_RUN == 0 else dim
    return (
        Plane(name, 1, dim, "float8_e4m3fn", scale=f"{name}_scale", run=run),
        Plane(f"{name}_scale", 1, dim // run),
    )
