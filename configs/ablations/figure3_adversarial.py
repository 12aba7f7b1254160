"""ELECTRA Figure 3 right, "adversarial": REINFORCE for a generator of 256 hidden units, above BERT, below ELECTRA.

The figure prints no numbers; the generator's masked-LM accuracy is 54 %, not the 65 % of ELECTRA's (Appendix D).
"""

from configs import base, common


def get_config(argument: str | None = None):
  c = base.get_config()
  c.objective.name = "adversarial"
  return common.variant(c, argument)
