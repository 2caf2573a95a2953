"""Settings of the mixture of experts of the DeepSeek-V3 family."""

import dataclasses

from hybridcache_jax.configs.reading import Fields
from hybridcache_jax.errors import CheckpointError


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoutingConfig:
    """How tokens are routed, and how wide the experts are.

    Attributes:
      num_experts: routed experts.
      experts_per_token: routed experts of one token.
      num_groups: groups of equal size that the experts are split into.
      chosen_groups: groups whose experts a token may use.
      normalize: whether the weights of a token's experts are made to sum to one.
      scaling: factor on the weights after that.
      inner: width within an expert.
      shared_experts: experts that every token passes, joined into one MLP.
    """

    num_experts: int
    experts_per_token: int
    num_groups: int
    chosen_groups: int
    normalize: bool
    scaling: float
    inner: int
    shared_experts: int

    def __post_init__(self):
        size, rest = divmod(self.num_experts, self.num_groups)
        if rest or not 1 <= self.chosen_groups <= self.num_groups:
            raise ValueError(
                f"{self.num_experts} experts must split into {self.num_groups} groups "
                f"of equal size, 1 to {self.num_groups} of them chosen, got "
                f"{self.chosen_groups} chosen."
            )
        if self.chosen_groups < self.num_groups and size < 2:
            raise ValueError(
                f"Groups are ranked by their two best experts and need two at least, "
                f"got {self.num_groups} groups of {size}."
            )
        if not 1 <= self.experts_per_token <= size * self.chosen_groups:
            raise ValueError(
                f"A token can use 1 to {size * self.chosen_groups} experts, those of "
                f"its {self.chosen_groups} groups, got {self.experts_per_token}."
            )


def read_routing(
    fields: Fields,
    *,
    experts: str = "n_routed_experts",
    per_token: str = "num_experts_per_tok",
    groups: str = "n_group",
    normalize: str = "norm_topk_prob",
    shared: str = "n_shared_experts",
    num_groups: int,
    chosen_groups: int,
    scaling: float,
) -> RoutingConfig:
    """The settings from a config.

    Args:
      fields: the config.
      experts: name of the field with the number of routed experts.
      per_token: name of the field with the experts of one token.
      groups: name of the field with the number of groups.
      normalize: name of the field that says whether weights sum to one.
      shared: name of the field with the number of shared experts.
      num_groups: the family's default.
      chosen_groups: the family's default.
      scaling: the family's default.

    Raises:
      CheckpointError: if a field is missing or damaged, or they do not fit together.
    """
    try:
        return RoutingConfig(
            num_experts=fields.positive(experts),
            experts_per_token=fields.positive(per_token),
            num_groups=fields.positive(groups, num_groups),
            chosen_groups=fields.positive("topk_group", chosen_groups),
            normalize=fields.flag(normalize, True),
            scaling=fields.number("routed_scaling_factor", scaling),
            inner=fields.positive("moe_intermediate_size"),
            shared_experts=fields.positive(shared, 1),
        )
    except ValueError as error:
        raise CheckpointError(
            f"The config of this {fields.model_type} model routes to experts that it "
            f"does not have: {error} Mend the config, or fetch it anew."
        ) from error
