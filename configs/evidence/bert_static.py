"""RoBERTa Table 1, row "static": ten masks of each example, used in turn, epoch by epoch."""

from configs import common
from configs.evidence import bert_small


def get_config(argument: str | None = None):
  c = bert_small.get_config()
  c.data.masking.num_static_masks = 10
  return common.variant(c, argument)
