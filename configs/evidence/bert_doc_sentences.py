"""RoBERTa Table 2, row "DOC-SENTENCES": rows of one document, batches of equally many tokens, no NSP."""

from configs import common
from configs.evidence import bert_small


def get_config(argument: str | None = None):
  c = bert_small.get_config()
  c.data.format = "DOC-SENTENCES"
  c.train.steps_per_dispatch = 1  # batches differ in shape
  return common.variant(c, argument)
