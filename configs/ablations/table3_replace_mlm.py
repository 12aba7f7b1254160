"""ELECTRA Table 3, row "Replace MLM": 82.4 GLUE; masked tokens replaced by the generator's, MLM loss."""

from configs import base, common


def get_config(argument: str | None = None):
  c = base.get_config()
  c.objective.name = "replace_mlm"
  return common.variant(c, argument)
