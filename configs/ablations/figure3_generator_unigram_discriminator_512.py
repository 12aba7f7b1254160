"""ELECTRA Figure 3 left, "unigram": fake tokens by corpus frequency under a discriminator of 512, 500k steps.

The figure prints no numbers.
"""

from configs import common
from configs.ablations import figure3_generator_unigram


def get_config(argument: str | None = None):
  c = figure3_generator_unigram.get_config()
  c.model.update(hidden_size=512, embedding_size=512, intermediate_size=2048, num_attention_heads=8)
  return common.variant(c, argument)
