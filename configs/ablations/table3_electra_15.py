"""ELECTRA Table 3, row "ELECTRA 15%": 82.4 GLUE; the discriminator's loss at the masked positions only."""

from configs import base, common


def get_config(argument: str | None = None):
  c = base.get_config()
  c.objective.name = "electra_15"
  return common.variant(c, argument)
