"""ELECTRA Figure 3 left, "unigram": fake tokens by their frequency in the training corpus, 500k steps.

The figure prints no numbers.
"""

from configs import base, common


def get_config(argument: str | None = None):
  c = base.get_config()
  c.generator.kind = "unigram"
  c.train.num_steps = 500_000
  return common.variant(c, argument)
