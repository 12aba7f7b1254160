"""ELECTRA footnote 7: ELECTRA 15% on random other tokens than the masked ones; slightly below Table 3's 82.4."""

from configs import base, common


def get_config(argument: str | None = None):
  c = base.get_config()
  c.objective.name = "electra_15_other"
  return common.variant(c, argument)
