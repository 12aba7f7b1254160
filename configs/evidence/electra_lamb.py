"""ELECTRA-Small with LAMB, as the paper trains it; the rate is the best of four (docs/results/lamb-vs-adamw.md)."""

from configs import common
from configs.evidence import electra_small


def get_config(argument: str | None = None):
  c = electra_small.get_config()
  c.optimizer.update(name="lamb", learning_rate=1e-3)
  return common.variant(c, argument)
