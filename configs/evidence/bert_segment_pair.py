"""RoBERTa Table 2, row "SEGMENT-PAIR": pairs of segments with next sentence prediction."""

from configs import common
from configs.evidence import bert_small


def get_config(argument: str | None = None):
  c = bert_small.get_config()
  c.objective.name = "mlm_nsp"
  c.data.format = "SEGMENT-PAIR"
  c.data.short_sequence_share = 0.0  # section 3.1
  return common.variant(c, argument)
