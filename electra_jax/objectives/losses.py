"""Losses as sums, never means: objectives divide them by counts over the whole global batch."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from electra_jax.objectives.base import Batch, Metrics

AUC_BINS = 2048  # histogram bins over logits in [-AUC_RANGE, AUC_RANGE]; more bins round the AUC less
AUC_RANGE = 12.0


def cross_entropy(logits: Float[Array, "batch predictions vocab"], ids: Int[Array, "batch predictions"],
                  weights: Float[Array, "batch predictions"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
  """Sum of -log p(id) and number of correct argmax predictions, both over the positions of weight 1.

  >>> loss, correct = cross_entropy(jnp.zeros((1, 2, 4)), jnp.array([[0, 3]]), jnp.array([[1.0, 0.0]]))
  >>> round(float(loss), 4), float(correct)  # ln 4; argmax of equal logits is id 0
  (1.3863, 1.0)
  """
  correct = jnp.argmax(logits, axis=-1) == ids
  return -jnp.sum(log_probability(logits, ids) * weights), jnp.sum(correct * weights)


def masked_lm_loss(logits: Float[Array, "batch predictions vocab"], batch: Batch) -> tuple[Float[Array, ""], Metrics]:
  """Sum of -log p(original) over the masked positions, and its metrics."""
  weights = batch["masked_weights"]
  loss, correct = cross_entropy(logits, batch["masked_ids"], weights)
  return loss, {"mlm/loss": (loss, weights.sum()), "mlm/accuracy": (correct, weights.sum())}


@jax.custom_vjp
def log_probability(logits: Float[Array, "batch positions vocab"],
                    ids: Int[Array, "batch positions"]) -> Float[Array, "batch positions"]:
  """log softmax(logits) at the ids, in float32.

  The id's logit is picked by comparing with an iota, because the gradient of a gather is a scatter into the logits. The
  gradient is written out, so that besides the sums only the logits themselves are kept for it.

  >>> round(float(log_probability(jnp.log(jnp.array([[[1.0, 3.0]]])), jnp.array([[0]]))[0, 0]), 4)  # ln 1/4
  -1.3863
  """
  return _log_probability_forward(logits, ids)[0]


def _log_probability_forward(logits, ids):
  wide = logits.astype(jnp.float32)
  log_sums = jax.nn.logsumexp(wide, axis=-1)
  is_id = jnp.arange(logits.shape[-1]) == ids[..., None]  # [batch, positions, vocab]
  return jnp.sum(jnp.where(is_id, wide, 0.0), axis=-1) - log_sums, (logits, ids, log_sums)


def _log_probability_backward(residuals, gradient):
  logits, ids, log_sums = residuals
  is_id = jnp.arange(logits.shape[-1]) == ids[..., None]
  share = jnp.exp(logits.astype(jnp.float32) - log_sums[..., None])
  return ((is_id - share) * gradient[..., None]).astype(logits.dtype), None


log_probability.defvjp(_log_probability_forward, _log_probability_backward)


def binary_cross_entropy(logits: Float[Array, "batch length"], is_replaced: Bool[Array, "batch length"],
                         weights: Float[Array, "batch length"]) -> Float[Array, ""]:
  """Sum of -log p(label) with p(replaced) = sigmoid(logit), over the positions of weight 1 (ELECTRA section 2).

  >>> float(binary_cross_entropy(jnp.zeros((1, 2)), jnp.array([[True, False]]), jnp.ones((1, 2)))).__round__(4)
  1.3863
  """
  losses = jax.nn.softplus(jnp.where(is_replaced, -logits, logits))
  return jnp.sum(losses * weights)


def detection_metrics(logits: Float[Array, "batch length"], is_replaced: Bool[Array, "batch length"],
                      weights: Float[Array, "batch length"]) -> Metrics:
  """Accuracy, precision and recall of "replaced" as (sum, weight) pairs."""
  predicted = logits > 0
  hits = jnp.sum(weights * (predicted & is_replaced))
  return {
    "rtd/accuracy": (jnp.sum(weights * (predicted == is_replaced)), jnp.sum(weights)),
    "rtd/precision": (hits, jnp.sum(weights * predicted)),
    "rtd/recall": (hits, jnp.sum(weights * is_replaced)),
  }


def auc_histograms(logits: Float[Array, "batch length"], is_replaced: Bool[Array, "batch length"],
                   weights: Float[Array, "batch length"]) -> tuple[Float[Array, "bins"], Float[Array, "bins"]]:
  """Histograms of the scores of replaced and of original tokens, which add up over batches; they give the AUC."""
  share = (jnp.clip(logits, -AUC_RANGE, AUC_RANGE) + AUC_RANGE) / (2 * AUC_RANGE)
  bins = jnp.minimum((share * AUC_BINS).astype(jnp.int32), AUC_BINS - 1)
  empty = jnp.zeros(AUC_BINS)
  return empty.at[bins].add(weights * is_replaced), empty.at[bins].add(weights * ~is_replaced)
