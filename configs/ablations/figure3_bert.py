"""ELECTRA Figure 3 right, "BERT": the baseline of the training algorithms, 82.2 GLUE at its end (Table 3)."""

from configs import bert_base, common


def get_config(argument: str | None = None):
  c = bert_base.get_config()
  return common.variant(c, argument)
