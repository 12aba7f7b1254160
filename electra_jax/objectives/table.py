"""Table of objectives by name, for the config, the FLOPs, prediction and the loop; without jax."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ml_collections import ConfigDict


class Row(NamedTuple):
  """What the rest of the code knows about an objective."""

  make: str | Callable  # the module of this folder with its function `make`, or MODULE.FUNCTION; or the function
  networks: Mapping[str, tuple[str, ...]]  # what a step runs, each with its heads (`flops.HEADS`)
  predictor: str  # how a trained run answers: a row of `predictors.PREDICTORS`
  predicted_share: float = 1.0  # share of the data's masked positions that a step predicts


ELECTRA = {"generator": ("mlm",), "discriminator": ("rtd",)}

ROWS = {
  "mlm": Row("mlm", {"encoder": ("mlm",)}, "masked_lm"),  # RoBERTa; the BERT of ELECTRA's tables
  "mlm_nsp": Row("mlm_nsp", {"encoder": ("mlm", "nsp")}, "masked_lm"),  # the original BERT
  "rtd": Row("rtd", ELECTRA, "electra"),  # ELECTRA
  "electra_15": Row("electra_15", ELECTRA, "electra"),  # the discriminator learns from the masked positions only
  "electra_15_other": Row("electra_15.make_other", ELECTRA, "electra"),  # ... from as many other tokens (footnote 7)
  "replace_mlm": Row("replace_mlm", {"generator": ("mlm",), "encoder": ("mlm",)}, "replace_mlm"),
  "all_tokens_mlm": Row("all_tokens_mlm", {"generator": ("mlm",), "encoder": ("full_mlm", "copy")}, "all_tokens_mlm"),
  "two_stage": Row("two_stage", ELECTRA, "electra"),
  "adversarial": Row("adversarial", {"generator": ("mlm", "baseline"), "discriminator": ("rtd",)}, "electra"),
  "hard_tokens": Row("hard_tokens", {"generator": ("baseline",), "encoder": ("mlm",)}, "masked_lm", 0.5),
  "contrastive": Row("contrastive", {"generator": ("mlm",), "discriminator": ("rtd", "sentence")}, "electra"),
}


def counts_tokens(config_generator: ConfigDict) -> bool:
  """Whether the generator is made of token counts, without a network or a loss."""
  return config_generator.kind != "learned"
