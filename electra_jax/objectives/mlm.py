"""BERT's and RoBERTa's objective: predict the original tokens at the masked positions (RoBERTa section 2.3)."""

from electra_jax.models import initial
from electra_jax.models.bert import Bert
from electra_jax.objectives import losses
from electra_jax.objectives.base import Objective, Parts, Phase, apply


def make(parts: Parts) -> Objective:
  """A masked LM under `encoder/`."""
  model = Bert(parts.transformer, head_names=("mlm_head",))

  def init(rng, batch):
    return {"encoder": initial.draw(model, rng, batch, batch["masked_input_ids"], False, method="mlm_logits")}

  def count_targets(batch):
    return {"mlm": batch["masked_weights"].sum()}

  def loss(params, batch, rng, train, num_targets):
    logits = apply(model, params["encoder"], batch, batch["masked_input_ids"], train,
                   method="mlm_logits", rngs={"dropout": rng})
    mlm_loss, metrics = losses.masked_lm_loss(logits, batch)
    return mlm_loss / num_targets["mlm"], metrics

  return Objective(init, count_targets, (Phase(parts.num_steps, loss),))
