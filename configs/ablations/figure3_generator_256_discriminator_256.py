"""ELECTRA Figure 3 left: a generator of 256 hidden units under a discriminator of 256, 500k steps.

The figure prints no numbers; the layers stay Base's twelve.
"""

from configs import common
from configs.ablations import figure3_generator_768


def get_config(argument: str | None = None):
  c = figure3_generator_768.get_config()
  c.model.update(hidden_size=256, embedding_size=256, intermediate_size=1024, num_attention_heads=4)
  return common.variant(c, argument)
