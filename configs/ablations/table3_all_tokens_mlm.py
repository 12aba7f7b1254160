"""ELECTRA Table 3, row "All-Tokens MLM": 84.3 GLUE; predicts every token, with a copy gate."""

from configs import base, common


def get_config(argument: str | None = None):
  c = base.get_config()
  c.objective.name = "all_tokens_mlm"
  return common.variant(c, argument)
