"""Table 3, row "ELECTRA 15%": the discriminator learns from the masked positions alone."""

from configs import common
from configs.evidence import electra_small


def get_config(argument: str | None = None):
  c = electra_small.get_config()
  c.objective.name = "electra_15"
  return common.variant(c, argument)
