"""ELECTRA Appendix F, negative result 3: a sentence-level contrastive objective.

It "slightly decreased performance on downstream tasks".
"""

from configs import base, common


def get_config(argument: str | None = None):
  c = base.get_config()
  c.objective.name = "contrastive"
  return common.variant(c, argument)
