"""ELECTRA Figure 3 left: a generator of 64 hidden units under a Base discriminator of 768, 500k steps.

The figure prints no numbers. Smaller discriminators: --config.model.hidden_size and its fellows; the fraction stays.
"""

from configs import base, common


def get_config(argument: str | None = None):
  c = base.get_config()
  c.generator.width_fraction = 1 / 12
  c.train.num_steps = 500_000
  return common.variant(c, argument)
