"""ELECTRA Figure 3 left, "unigram": fake tokens by corpus frequency under a discriminator of 256, 500k steps.

The figure prints no numbers.
"""

from configs import common
from configs.ablations import figure3_generator_unigram


def get_config(argument: str | None = None):
  c = figure3_generator_unigram.get_config()
  c.model.update(hidden_size=256, embedding_size=256, intermediate_size=1024, num_attention_heads=4)
  return common.variant(c, argument)
