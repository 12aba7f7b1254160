"""RoBERTa Table 3, row "8K" at our scale: 32 times the smallest batch, as there; the rate by its square root."""

from configs import common
from configs.evidence import bert_small


def get_config(argument: str | None = None):
  c = bert_small.get_config()
  c.train.batch_size = 4096
  c.optimizer.learning_rate = 1.4e-3
  return common.variant(c, argument)
