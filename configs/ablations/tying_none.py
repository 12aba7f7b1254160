"""ELECTRA section 3.2, "Weight Sharing": 83.6 GLUE for no weight tying, 500k steps.

The generator is as large as the discriminator.
"""

from configs import base, common


def get_config(argument: str | None = None):
  c = base.get_config()
  c.objective.weight_tying = "none"
  c.generator.width_fraction = 1
  c.train.num_steps = 500_000
  return common.variant(c, argument)
