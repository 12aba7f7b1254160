"""The original BERT's objective: masked LM plus next sentence prediction (RoBERTa section 2.3)."""

from electra_jax.models import initial
from electra_jax.models.bert import Bert
from electra_jax.objectives import losses
from electra_jax.objectives.base import Objective, Parts, Phase, apply


def make(parts: Parts) -> Objective:
  """Mean loss per masked token plus mean loss per pair; parameters live under `encoder/`.

  The batch needs `nsp_label` (data.format SEGMENT-PAIR or SENTENCE-PAIR); rows of label -1 do not count.
  """
  model = Bert(parts.transformer, head_names=("mlm_head", "nsp_head"))

  def init(rng, batch):
    return {"encoder": initial.draw(model, rng, batch, batch["masked_input_ids"], False, method="mlm_and_nsp_logits")}

  def count_targets(batch):
    return {"mlm": batch["masked_weights"].sum(), "nsp": (batch["nsp_label"] >= 0).sum()}

  def loss(params, batch, rng, train, num_targets):
    mlm_logits, nsp_logits = apply(model, params["encoder"], batch, batch["masked_input_ids"], train,
                                   method="mlm_and_nsp_logits", rngs={"dropout": rng})
    mlm_loss, metrics = losses.masked_lm_loss(mlm_logits, batch)
    pairs = (batch["nsp_label"] >= 0).astype(mlm_loss.dtype)
    nsp_loss, nsp_correct = losses.cross_entropy(nsp_logits[:, None], batch["nsp_label"][:, None], pairs[:, None])
    metrics |= {"nsp/loss": (nsp_loss, pairs.sum()), "nsp/accuracy": (nsp_correct, pairs.sum())}
    return mlm_loss / num_targets["mlm"] + nsp_loss / num_targets["nsp"], metrics

  return Objective(init, count_targets, (Phase(parts.num_steps, loss),))
