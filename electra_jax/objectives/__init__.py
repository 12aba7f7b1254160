"""Which objectives exist? One row each; a new one is a file in this folder and a line here."""

from electra_jax.models.transformer import TransformerConfig
from electra_jax.objectives import mlm, rtd
from electra_jax.objectives.contract import Objective, Phase

OBJECTIVES = {
  "mlm": mlm.make,  # BERT, RoBERTa
  "rtd": rtd.make,  # ELECTRA
}


def make(transformer: TransformerConfig, config_generator, config_objective, num_steps: int) -> Objective:
  """The objective that `config_objective.name` names, over the encoder that `transformer` describes."""
  return OBJECTIVES[config_objective.name](transformer, config_generator, config_objective, num_steps)


__all__ = ["OBJECTIVES", "Objective", "Phase", "make"]
