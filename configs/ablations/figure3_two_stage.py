"""ELECTRA Figure 3 right, "two-stage": first the generator, then a discriminator that starts as its copy.

It "does not end up outperforming joint training". The figure prints no numbers and the text no n: two
stages of 400k steps cost what BERT's million does.
"""

from configs import base, common


def get_config(argument: str | None = None):
  c = base.get_config()
  c.objective.name = "two_stage"
  c.objective.weight_tying = "none"
  c.generator.width_fraction = 1  # the discriminator starts as a copy
  c.train.num_steps = 800_000
  return common.variant(c, argument)
