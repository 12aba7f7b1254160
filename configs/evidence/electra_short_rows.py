"""ELECTRA-Small on rows of 512 tokens that are cut to 128 for nine tenths of the updates (BERT Appendix A.2)."""

from configs import common
from configs.evidence import electra_512


def get_config(argument: str | None = None):
  c = electra_512.get_config()
  c.data.initial_sequence_length = 128
  return common.variant(c, argument)
