"""All-Tokens MLM: predicts every token, with a copy gate (ELECTRA section 3.5, 84.3).

Vocabulary logits at every position take memory for batch x length x vocabulary: raise train.accumulation_steps.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from electra_jax.models import initial
from electra_jax.models.attention import MASK_BIAS
from electra_jax.models.electra import Electra
from electra_jax.objectives import generators, losses
from electra_jax.objectives.base import Batch, Objective, Parts, Phase, apply


def make_model(parts: Parts) -> Electra:
  """A masked LM with a copy gate under `encoder/`, next to the generator."""
  return generators.make_model(parts, encoder_name="encoder", encoder_heads=("mlm_head", "copy_head"))


def predict(model: Electra, batch: Batch, ids: Array, train: bool) -> tuple[Array, Array]:
  """The gate's logits [batch, length] and the vocabulary logits [batch, length, vocab] from one pass."""
  hidden = model.encoder.encode(batch, ids, train)
  return model.encoder.copy_head(hidden), model.encoder.mlm_head(hidden, model.encoder.token_table())


def replaced_logits(model: Electra, batch: Batch, ids: Array, train: bool) -> Array:
  """Logits [batch, length] of tokens that the gate does not copy: positive means "replaced"."""
  return -model.encoder.copy_head(model.encoder.encode(batch, ids, train))


def log_likelihood(gate_logits: Float[Array, "batch length"], vocab_logits: Float[Array, "batch length vocab"],
                   input_ids: Int[Array, "batch length"], ids: Int[Array, "batch length"]
                   ) -> Float[Array, "batch length"]:
  """log p(id), where p = D 1[id is the input] + (1 - D) softmax and D = sigmoid(gate).

  The sum is taken in log space, so that neither a certain gate nor a certain softmax gives log 0.

  >>> logits = jnp.zeros((1, 2, 4))
  >>> found = log_likelihood(jnp.zeros((1, 2)), logits, jnp.array([[3, 3]]), jnp.array([[3, 1]]))
  >>> [round(x, 4) for x in jnp.exp(found)[0].tolist()]  # 1/2 + 1/2 * 1/4, 1/2 * 1/4
  [0.625, 0.125]
  """
  copied = jnp.where(input_ids == ids, jax.nn.log_sigmoid(gate_logits), MASK_BIAS)
  predicted = jax.nn.log_sigmoid(-gate_logits) + losses.log_probability(vocab_logits, ids)
  return jnp.logaddexp(copied, predicted)


def make(parts: Parts) -> Objective:
  """The generator is trained as in ELECTRA; the kept encoder predicts the original of every real token.

  The paper gives no weights for the two losses: ours are `mlm_weight` and `encoder_mlm_weight`, by default
  1 / masking.rate. The second loss is a mean over all tokens, most of which are not masked and easy to predict: with a
  weight of 1 GLUE was 11 points lower (docs/results/table3.md). The gate is also scored as a detector of replaced
  tokens.
  """
  model = make_model(parts)
  generate = generators.make(model, parts)
  mlm_weight, encoder_weight = parts.objective.mlm_weight, parts.objective.encoder_mlm_weight

  def count_targets(batch):
    return {"mlm": batch["masked_weights"].sum(), "all": batch["attention_mask"].sum()}

  def loss(params, batch, rng, train, num_targets):
    dropout_rng, sample_rng, encoder_rng = jax.random.split(rng, 3)
    generator_loss, metrics, corruption = generate(params, batch, dropout_rng, sample_rng, train)
    gate_logits, vocab_logits = apply(model, params, batch, corruption.ids, train, method=predict,
                                      rngs={"dropout": encoder_rng})
    real = batch["attention_mask"].astype(jnp.float32)
    encoder_loss = -jnp.sum(real * log_likelihood(gate_logits, vocab_logits, corruption.ids, batch["input_ids"]))
    metrics |= {"all_tokens_mlm/loss": (encoder_loss, real.sum()),
                **losses.detection_metrics(-gate_logits, corruption.is_replaced, real)}
    total = mlm_weight * generator_loss / num_targets["mlm"] + encoder_weight * encoder_loss / num_targets["all"]
    return total, metrics

  return Objective(initial.init_of(model), count_targets, (Phase(parts.num_steps, loss),))
