"""ELECTRA section 3.2, "Weight Sharing": 84.4 GLUE for all encoder weights tied, 500k steps.

The generator is as large as the discriminator.
"""

from configs import base, common


def get_config(argument: str | None = None):
  c = base.get_config()
  c.objective.weight_tying = "all"
  c.generator.width_fraction = 1
  c.train.num_steps = 500_000
  return common.variant(c, argument)
