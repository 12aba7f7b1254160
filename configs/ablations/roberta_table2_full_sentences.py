"""RoBERTa Table 2, row "FULL-SENTENCES", without NSP: SQuAD 90.4/79.1, MNLI-m 84.7, SST-2 92.5, RACE 64.8."""

from configs import bert_original_base, common


def get_config(argument: str | None = None):
  c = bert_original_base.get_config()
  c.objective.name = "mlm"
  c.data.format = "FULL-SENTENCES"
  c.data.masking.num_static_masks = 0
  return common.variant(c, argument)
