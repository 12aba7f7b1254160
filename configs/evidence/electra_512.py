"""ELECTRA-Small on rows of 512 tokens: as many tokens a batch as electra_small.py has in rows of 128."""

from configs import common
from configs.evidence import electra_small


def get_config(argument: str | None = None):
  c = electra_small.get_config()
  c.data.sequence_length = 512
  c.train.batch_size //= 4
  c.eval.max_examples //= 4
  return common.variant(c, argument)
