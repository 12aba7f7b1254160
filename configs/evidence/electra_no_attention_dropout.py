"""ELECTRA-Small without dropout on the attention weights: fused attention kernels need none of it in memory."""

from configs import common
from configs.evidence import electra_small


def get_config(argument: str | None = None):
  c = electra_small.get_config()
  c.model.attention_probs_dropout_prob = 0.0
  return common.variant(c, argument)
