"""Table 3, row "All-Tokens MLM": the encoder predicts every token of the corrupted text, or copies it."""

from configs import common
from configs.evidence import electra_small


def get_config(argument: str | None = None):
  c = electra_small.get_config()
  c.objective.name = "all_tokens_mlm"
  return common.variant(c, argument)
