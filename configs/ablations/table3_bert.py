"""ELECTRA Table 3, row "BERT": 82.2 GLUE; BERT-Base as the paper trains it."""

from configs import bert_base, common


def get_config(argument: str | None = None):
  c = bert_base.get_config()
  return common.variant(c, argument)
