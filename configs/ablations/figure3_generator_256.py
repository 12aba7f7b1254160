"""ELECTRA Figure 3 left: a generator of 256 hidden units under a Base discriminator of 768, 500k steps.

Inside the 1/4 to 1/2 that "work best". The figure prints no numbers.
Smaller discriminators: figure3_generator_*_discriminator_*.
"""

from configs import base, common


def get_config(argument: str | None = None):
  c = base.get_config()
  c.generator.width_fraction = 1 / 3
  c.train.num_steps = 500_000
  return common.variant(c, argument)
