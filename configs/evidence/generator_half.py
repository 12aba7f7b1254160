"""Figure 3 left: a generator of half the discriminator's width; electra_small.py has a quarter."""

from configs import common
from configs.evidence import electra_small


def get_config(argument: str | None = None):
  c = electra_small.get_config()
  c.generator.width_fraction = 1 / 2
  return common.variant(c, argument)
