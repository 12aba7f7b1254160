"""Figure 3 left: a generator as wide as the discriminator."""

from configs import common
from configs.evidence import electra_small


def get_config(argument: str | None = None):
  c = electra_small.get_config()
  c.generator.width_fraction = 1
  return common.variant(c, argument)
