"""BERT-Small beside electra_small.py: the same data, batch, optimizer and FLOPs; MLM with 80/10/10 masks, no NSP."""

from configs import common
from configs.evidence import electra_small


def get_config(argument: str | None = None):
  c = electra_small.get_config()
  c.objective.name = "mlm"
  c.data.masking.policy = "bert"  # section 3.5
  return common.variant(c, argument)
