"""RoBERTa Table 2, row "SEGMENT-PAIR", with NSP: SQuAD 90.4/78.7, MNLI-m 84.0, SST-2 92.9, RACE 64.2."""

from configs import bert_original_base, common


def get_config(argument: str | None = None):
  c = bert_original_base.get_config()
  c.data.masking.num_static_masks = 0  # dynamic masks from section 4.1 on
  return common.variant(c, argument)
