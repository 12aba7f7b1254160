"""RoBERTa Table 2, row "SENTENCE-PAIR": pairs of sentences with NSP, batches of equally many tokens."""

from configs import common
from configs.evidence import bert_small


def get_config(argument: str | None = None):
  c = bert_small.get_config()
  c.objective.name = "mlm_nsp"
  c.data.format = "SENTENCE-PAIR"
  c.train.steps_per_dispatch = 1  # batches differ in shape
  return common.variant(c, argument)
