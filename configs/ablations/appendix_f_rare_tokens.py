"""ELECTRA Appendix F, negative result 1: rarer tokens are masked more often; "fairly minor speedups over regular BERT".

The paper gives no formula: odds of one over the square root of a token's count are ours.
"""

from configs import bert_base, common


def get_config(argument: str | None = None):
  c = bert_base.get_config()
  c.data.masking.rarity_exponent = 0.5
  return common.variant(c, argument)
