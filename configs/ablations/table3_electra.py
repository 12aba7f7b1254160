"""ELECTRA Table 3, row "ELECTRA": 85.0 GLUE; ELECTRA-Base as it is."""

from configs import base, common


def get_config(argument: str | None = None):
  c = base.get_config()
  return common.variant(c, argument)
