"""Figure 3 right, "two-stage": first the generator alone, then a discriminator that starts as its copy."""

from configs import common
from configs.evidence import electra_small


def get_config(argument: str | None = None):
  c = electra_small.get_config()
  c.objective.name = "two_stage"
  c.objective.weight_tying = "none"
  c.generator.width_fraction = 1  # the discriminator starts as a copy
  return common.variant(c, argument)
