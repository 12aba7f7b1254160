"""Losses of fine-tuning: for each kind of head, the loss of every row of a batch."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Batch = Mapping[str, Array]
PHRASE_ALPHA, PHRASE_BETA = 5.0, 0.4


def classification(outputs: Mapping[str, Array], batch: Batch) -> Float[Array, "batch"]:
  """-log p(label)."""
  return _cross_entropy(outputs["classification_head"], batch["label"])


def multi_label(outputs: Mapping[str, Array], batch: Batch) -> Float[Array, "batch"]:
  """Mean over the labels of the binary cross-entropy, each label with its own sigmoid."""
  logits = outputs["classification_head"]
  return jnp.mean(jax.nn.softplus(logits) - logits * batch["labels"], axis=-1)


def regression(outputs: Mapping[str, Array], batch: Batch) -> Float[Array, "batch"]:
  """Squared error of the score on the scale of the files (STS-B: 0 to 5), as in BERT's and RoBERTa's code.

  Differs from the released ELECTRA code, which scales scores to [0, 1].
  """
  return jnp.square(outputs["classification_head"][:, 0] - batch["label"])


def tagging(outputs: Mapping[str, Array], batch: Batch) -> Float[Array, "batch"]:
  """Mean of -log p(tag) over the words of a sentence."""
  has_tag = batch["tags"] >= 0  # [batch, length]
  losses = _cross_entropy(outputs["tagging_head"], jnp.maximum(batch["tags"], 0))
  return jnp.sum(losses * has_tag, axis=-1) / jnp.maximum(jnp.sum(has_tag, axis=-1), 1)


def span(outputs: Mapping[str, Array], batch: Batch) -> Float[Array, "batch"]:
  """Mean of -log p(start) and -log p(end), plus the binary cross-entropy of `is_impossible` if the batch has it.

  Differs from the released ELECTRA code, whose softmax is over the context and [CLS]: here it is over all real tokens,
  the question's included, as in BERT's.
  """
  start, end = (jnp.where(batch["attention_mask"], outputs["span_head"][..., i], -1e9) for i in (0, 1))
  loss = (_cross_entropy(start, batch["start"]) + _cross_entropy(end, batch["end"])) / 2
  if "is_impossible" in batch:
    logit = outputs["answerable_head"]
    loss += jax.nn.softplus(jnp.where(batch["is_impossible"] > 0, -logit, logit))
  return loss


def joint_span(outputs: Mapping[str, Array], batch: Batch) -> Float[Array, "batch"]:
  """As `span`, with log p(start) and log p(end | the right start)."""
  return span({**outputs, "span_head": outputs["joint_span_head"]}, batch)


def multiple_choice(outputs: Mapping[str, Array], batch: Batch) -> Float[Array, "batch"]:
  """-log p(right choice), with the softmax over the choices of a question."""
  return _cross_entropy(outputs["multiple_choice_head"], batch["label"])


def ranking(outputs: Mapping[str, Array], batch: Batch) -> Float[Array, "batch"]:
  """max(0, 1 - (score of the first choice - score of the second)): for WNLI without a masked LM.

  Differs from RoBERTa's loss, which is `phrase`: a new head's scores are not likelihoods, so only the margin is left.
  """
  del batch
  scores = outputs["multiple_choice_head"]  # [batch, 2]
  return jax.nn.relu(1 - (scores[:, 0] - scores[:, 1]))


def phrase(outputs: Mapping[str, Array], batch: Batch) -> Float[Array, "batch"]:
  """-log P(right) + alpha max(0, log P(other) - log P(right) + beta), P from the masked LM: Kocijan et al. (2019).

  RoBERTa section 5.1, for WNLI. alpha and beta are those of fairseq's recipe for WinoGrande: RoBERTa prints none.
  """
  del batch
  right, other = outputs["mlm_head"][:, 0], outputs["mlm_head"][:, 1]  # [batch, 2]: mean log-probabilities of phrases
  return -right + PHRASE_ALPHA * jax.nn.relu(other - right + PHRASE_BETA)


def answer_ranking(outputs: Mapping[str, Array], batch: Batch) -> Float[Array, "batch"]:
  """-log p(the first choice is better), plus the mean binary cross-entropy of the two: for RoBERTa section 5.1.

  Differences of scores do not fix their zero. The second part does, for sentences that are compared with no other.
  """
  del batch
  scores = outputs["multiple_choice_head"]  # [batch, 2]
  first, second = scores[:, 0], scores[:, 1]
  return jax.nn.softplus(second - first) + (jax.nn.softplus(-first) + jax.nn.softplus(second)) / 2


def _cross_entropy(logits: Float[Array, "*rows labels"], ids: Array) -> Float[Array, "*rows"]:
  return -jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], axis=-1)[..., 0]


LOSSES: dict[str, Callable[[Mapping[str, Array], Batch], Array]] = {
  "classification": classification, "multi_label": multi_label, "regression": regression, "tagging": tagging,
  "span": span, "joint_span": joint_span, "multiple_choice": multiple_choice, "ranking": ranking,
  "answer_ranking": answer_ranking, "phrase": phrase,
}
