"""Which objectives exist? One row each; a new one is a file in this folder and a line here."""

import numpy as np

from electra_jax.models.transformer import TransformerConfig
from electra_jax.objectives import (
  adversarial,
  all_tokens_mlm,
  contrastive,
  electra_15,
  mlm,
  mlm_nsp,
  replace_mlm,
  rtd,
  two_stage,
)
from electra_jax.objectives.contract import Objective, Phase
from electra_jax.objectives.generators import counts_tokens

OBJECTIVES = {
  "mlm": mlm.make,  # RoBERTa; the BERT of ELECTRA's tables
  "mlm_nsp": mlm_nsp.make,  # the original BERT
  "rtd": rtd.make,  # ELECTRA
  "electra_15": electra_15.make,  # the discriminator learns from the masked positions only
  "electra_15_other": electra_15.make_other,  # ... from as many other tokens (footnote 7)
  "replace_mlm": replace_mlm.make,
  "all_tokens_mlm": all_tokens_mlm.make,
  "two_stage": two_stage.make,
  "adversarial": adversarial.make,
  "contrastive": contrastive.make,
}


def make(transformer: TransformerConfig, config_generator, config_objective, num_steps: int,
         token_counts: np.ndarray | None = None) -> Objective:
  """The objective that `config_objective.name` names, over the encoder that `transformer` describes.

  Args:
    token_counts: int [tokens], of the training corpus, 0 for special ids; only where `counts_tokens(config_generator)`.
  """
  return OBJECTIVES[config_objective.name](transformer, config_generator, config_objective, num_steps, token_counts)


__all__ = ["OBJECTIVES", "Objective", "Phase", "counts_tokens", "make"]
