"""RoBERTa Table 2, row "FULL-SENTENCES": rows filled across documents, no NSP."""

from configs import common
from configs.evidence import bert_small


def get_config(argument: str | None = None):
  c = bert_small.get_config()
  c.data.format = "FULL-SENTENCES"
  return common.variant(c, argument)
