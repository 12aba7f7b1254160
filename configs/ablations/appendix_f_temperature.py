"""ELECTRA Appendix F, negative result 2: a raised temperature of the generator's softmax; did not improve results.

The paper names no temperature: 2 is ours.
"""

from configs import base, common


def get_config(argument: str | None = None):
  c = base.get_config()
  c.objective.sampling_temperature = 2.0
  return common.variant(c, argument)
