"""RoBERTa Table 2, row "DOC-SENTENCES", without NSP: SQuAD 90.6/79.7, MNLI-m 84.7, SST-2 92.7, RACE 65.6."""

from configs import bert_original_base, common


def get_config(argument: str | None = None):
  c = bert_original_base.get_config()
  c.objective.name = "mlm"
  c.data.format = "DOC-SENTENCES"  # batches of as many tokens, so of more sequences
  c.data.masking.num_static_masks = 0
  return common.variant(c, argument)
