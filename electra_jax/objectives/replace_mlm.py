"""Replace MLM: MLM whose masks a generator fills, so that [MASK] is never shown (ELECTRA section 3.5, 82.4)."""

import jax

from electra_jax.models import initial
from electra_jax.models.electra import Electra
from electra_jax.objectives import generators, losses
from electra_jax.objectives.base import Batch, Objective, Parts, Phase, apply


def make_model(parts: Parts) -> Electra:
  """A masked LM under `encoder/` next to the generator."""
  return generators.make_model(parts, encoder_name="encoder", encoder_heads=("mlm_head",))


def predict(model: Electra, batch: Batch, ids: jax.Array, train: bool) -> jax.Array:
  """The kept encoder's vocabulary logits at the masked positions of the corrupted sequence."""
  return model.encoder.mlm_logits(batch, ids, train)


def make(parts: Parts) -> Objective:
  """MLM whose masked positions hold draws of the generator, which is trained as in ELECTRA.

  The paper gives no weights for the two losses: ours are `mlm_weight` and `encoder_mlm_weight`.
  """
  model = make_model(parts)
  generate = generators.make(model, parts)
  mlm_weight, encoder_weight = parts.objective.mlm_weight, parts.objective.encoder_mlm_weight

  def count_targets(batch):
    return {"mlm": batch["masked_weights"].sum()}

  def loss(params, batch, rng, train, num_targets):
    dropout_rng, sample_rng, encoder_rng = jax.random.split(rng, 3)
    generator_loss, metrics, corruption = generate(params, batch, dropout_rng, sample_rng, train)
    logits = apply(model, params, batch, corruption.ids, train, method=predict, rngs={"dropout": encoder_rng})
    weights = batch["masked_weights"]
    encoder_loss, correct = losses.cross_entropy(logits, batch["masked_ids"], weights)
    metrics |= {"replace_mlm/loss": (encoder_loss, weights.sum()), "replace_mlm/accuracy": (correct, weights.sum())}
    return (mlm_weight * generator_loss + encoder_weight * encoder_loss) / num_targets["mlm"], metrics

  return Objective(initial.init_of(model), count_targets, (Phase(parts.num_steps, loss),))
