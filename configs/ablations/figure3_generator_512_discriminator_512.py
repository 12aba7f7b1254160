"""ELECTRA Figure 3 left: a generator of 512 hidden units under a discriminator of 512, 500k steps.

The figure prints no numbers; the layers stay Base's twelve.
"""

from configs import common
from configs.ablations import figure3_generator_768


def get_config(argument: str | None = None):
  c = figure3_generator_768.get_config()
  c.model.update(hidden_size=512, embedding_size=512, intermediate_size=2048, num_attention_heads=8)
  return common.variant(c, argument)
