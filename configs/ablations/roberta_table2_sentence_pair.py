"""RoBERTa Table 2, row "SENTENCE-PAIR", with NSP: SQuAD 88.7/76.2, MNLI-m 82.9, SST-2 92.1, RACE 63.0."""

from configs import bert_original_base, common


def get_config(argument: str | None = None):
  c = bert_original_base.get_config()
  c.data.format = "SENTENCE-PAIR"  # batches of as many tokens, so of more sequences
  c.data.masking.num_static_masks = 0
  return common.variant(c, argument)
