"""ELECTRA Figure 3 left: a generator of 128 hidden units under a discriminator of 512, 500k steps.

The figure prints no numbers; the layers stay Base's twelve.
"""

from configs import common
from configs.ablations import figure3_generator_512_discriminator_512 as equal_sizes


def get_config(argument: str | None = None):
  c = equal_sizes.get_config()
  c.generator.width_fraction = 1 / 4
  return common.variant(c, argument)
