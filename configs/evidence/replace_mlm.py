"""Table 3, row "Replace MLM": BERT whose masks are filled with samples of a generator."""

from configs import common
from configs.evidence import electra_small


def get_config(argument: str | None = None):
  c = electra_small.get_config()
  c.objective.name = "replace_mlm"
  return common.variant(c, argument)
