"""BERT-Base as the ELECTRA paper trains it (Table 4, 1M steps): MLM, dynamic 80/10/10 masks, LAMB, no NSP."""

from configs import base, common, variants


def get_config(argument: str | None = None):
  c = base.get_config()
  c.objective.name = "mlm"
  c.data.masking.update(common.BERT_MASKING)  # section 3.5: "replaced with a random token 10% of the time"
  c.train.num_steps = 1_000_000
  return variants.apply(c, argument)
