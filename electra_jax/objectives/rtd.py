"""ELECTRA's objective: a generator fills the masks, a discriminator finds what it replaced (ELECTRA section 2)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from electra_jax.models import initial
from electra_jax.models.electra import Electra
from electra_jax.objectives import generators, losses
from electra_jax.objectives.base import Batch, LossFn, Metrics, Objective, Parts, Phase, apply

# (batch, rng) -> weights [batch, length] of the tokens that the discriminator judges.
JudgedFn = Callable[[Batch, Array], Array]


def every_token(batch: Batch, rng: Array) -> Float[Array, "batch length"]:
  """All n tokens: what makes ELECTRA efficient (section 3.5)."""
  del rng
  return batch["attention_mask"].astype(jnp.float32)


def make(parts: Parts, judged: JudgedFn = every_token) -> Objective:
  """Joint training of both networks; parameters live under `discriminator/` and `generator/`."""
  model = generators.make_model(parts)
  generate = generators.make(model, parts)
  loss = make_loss(model, generate, parts.objective.mlm_weight, parts.objective.rtd_weight, judged)
  return Objective(initial.init_of(model), count_targets, (Phase(parts.num_steps, loss),))


def count_targets(batch: Batch) -> dict[str, Array]:
  """k, the number of masked positions, and n, that of tokens."""
  return {"mlm": batch["masked_weights"].sum(), "rtd": batch["attention_mask"].sum()}


def make_loss(model: Electra, generate: Callable, mlm_weight: float, rtd_weight: float,
              judged: JudgedFn = every_token) -> LossFn:
  """L_MLM / k + λ L_Disc / n, whichever tokens are judged, so that each keeps the weight that it has in ELECTRA.

  Section 3.5: ELECTRA 15% is "identical to ELECTRA except the sum in L_Disc is over i ∈ m instead of from 1 to n".

  Differs from the preprint's formula, where both losses are sums (section 2): taken literally λ would weigh n/k times
  as much. Means are the released code's.
  """

  def loss(params, batch, rng, train, num_targets):
    dropout_rng, sample_rng, discriminator_rng, judged_rng = jax.random.split(rng, 4)
    mlm_loss, metrics, corruption = generate(params, batch, dropout_rng, sample_rng, train)
    logits = apply(model, params, batch, corruption.ids, train, method="discriminator_logits",
                   rngs={"dropout": discriminator_rng})
    rtd_loss, rtd_metrics = discriminator_loss(logits, corruption.is_replaced, judged(batch, judged_rng), train)
    total = mlm_weight * mlm_loss / num_targets["mlm"] + rtd_weight * rtd_loss / num_targets["rtd"]
    return total, metrics | rtd_metrics

  return loss


def discriminator_loss(logits: Float[Array, "batch length"], is_replaced: Bool[Array, "batch length"],
                       weights: Float[Array, "batch length"], train: bool) -> tuple[Float[Array, ""], Metrics]:
  """Sum of L_Disc over the tokens of weight 1, and its metrics."""
  loss = losses.binary_cross_entropy(logits, is_replaced, weights)
  metrics = {"rtd/loss": (loss, weights.sum()), **losses.detection_metrics(logits, is_replaced, weights)}
  if not train:  # the histogram is a scatter: evaluation only
    metrics["rtd/auc"] = losses.auc_histograms(logits, is_replaced, weights)
  return loss, metrics
