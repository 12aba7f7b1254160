"""ELECTRA-Small with LAMB, as the paper trains it; the rate is that of LAMB's authors for runs of as few steps."""

from configs import common
from configs.evidence import electra_small


def get_config(argument: str | None = None):
  c = electra_small.get_config()
  c.optimizer.update(name="lamb", learning_rate=5e-3)  # "Large Batch Optimization": BERT in 15 600 steps
  return common.variant(c, argument)
