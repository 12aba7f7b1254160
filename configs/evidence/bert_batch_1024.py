"""RoBERTa Table 3, row "2K" at our scale: eight times the smallest batch, as there; the rate by its square root."""

from configs import common
from configs.evidence import bert_small


def get_config(argument: str | None = None):
  c = bert_small.get_config()
  c.train.batch_size = 1024
  c.optimizer.learning_rate = 7e-4
  return common.variant(c, argument)
