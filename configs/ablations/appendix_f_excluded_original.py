"""ELECTRA Appendix F, negative result 2: the generator never draws the correct token; did not improve results."""

from configs import base, common


def get_config(argument: str | None = None):
  c = base.get_config()
  c.objective.sampling_excludes_original = True
  return common.variant(c, argument)
