"""RoBERTa Table 3, first row at our scale: the smallest batch, the rate by its square root."""

from configs import common
from configs.evidence import bert_small


def get_config(argument: str | None = None):
  c = bert_small.get_config()
  c.train.batch_size = 128
  c.optimizer.learning_rate = 2.5e-4
  return common.variant(c, argument)
