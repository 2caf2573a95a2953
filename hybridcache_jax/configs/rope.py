"""Settings of rotary position embedding, in the spellings configs use."""

import dataclasses

from hybridcache_jax.configs.reading import Fields

SCALINGS = ("default", "linear", "yarn", "llama3", "proportional")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary embedding of one kind of layer.

    Attributes:
      theta: base of the frequencies.
      scaling: one of :data:`SCALINGS`.
      factor: by how much positions or frequencies are stretched.
      partial: fraction of the head that is rotated.
      original_length: positions trained for before stretching (yarn, llama3).
      beta_fast: yarn, turns from which a dimension keeps its frequency.
      beta_slow: yarn, turns below which it is stretched whole.
      truncate: yarn, whether the ramp's ends are whole dimensions.
      attention_factor: yarn, factor on cosine and sine where the config gives one.
      mscale: yarn, see :func:`models.rope.yarn_magnitude`; 0 for none.
      mscale_all_dim: yarn, the same for the softmax scale; 0 for none.
      low_freq_factor: llama3.
      high_freq_factor: llama3.
    """

    theta: float
    scaling: str = "default"
    factor: float = 1.0
    partial: float = 1.0
    original_length: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0


def read_rope(
    parameters: Fields, *, theta: float, partial: float = 1.0, max_positions: int = 0
) -> RopeConfig:
    """A rotary embedding from a ``rope_parameters`` or ``rope_scaling`` object.

    Args:
      parameters: the object; may be empty.
      theta: the base, where the object has none.
      partial: the rotated fraction, where the object has none.
      max_positions: original length, where a scaling needs one and the object has
        none.
    """
    name = "rope_type" if parameters.has("rope_type") else "type"
    scaling = parameters.text(name, "default")
    if scaling not in SCALINGS:
        raise parameters.error(name, scaling, f"one of {', '.join(SCALINGS)}")
    attention_factor = None
    if parameters.has("attention_factor"):
        attention_factor = parameters.number("attention_factor")
    base = parameters.number("rope_theta", theta)
    factor = parameters.number("factor", 1.0)
    if base <= 0 or factor <= 0:
        raise parameters.error("rope_theta, factor", (base, factor), "numbers > 0")
    return RopeConfig(
        theta=base,
        scaling=scaling,
        factor=factor,
        partial=parameters.number("partial_rotary_factor", partial),
        original_length=parameters.integer(
            "original_max_position_embeddings", max_positions
        ),
        beta_fast=parameters.number("beta_fast", 32.0),
        beta_slow=parameters.number("beta_slow", 1.0),
        truncate=parameters.flag("truncate", True),
        attention_factor=attention_factor,
        mscale=parameters.number("mscale", 0.0),
        mscale_all_dim=parameters.number("mscale_all_dim", 0.0),
        low_freq_factor=parameters.number("low_freq_factor", 1.0),
        high_freq_factor=parameters.number("high_freq_factor", 4.0),
    )
