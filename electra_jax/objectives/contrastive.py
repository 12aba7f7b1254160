"""Sentence-level contrastive task: corrupted inputs told from unchanged ones (ELECTRA Appendix F: hurts slightly)"""

import jax
import jax.numpy as jnp

from electra_jax.models import initial
from electra_jax.models.electra import Electra
from electra_jax.objectives import generators, losses, rtd
from electra_jax.objectives.base import Batch, Objective, Parts, Phase, apply

UNCHANGED_SHARE = 0.2  # of the sequences, which are not corrupted (Appendix F)


def judge(model: Electra, batch: Batch, ids: jax.Array, train: bool) -> tuple[jax.Array, jax.Array]:
  """Logits of "replaced" [batch, length] and, from [CLS], of "corrupted" [batch], from one pass."""
  hidden = model.encoder.encode(batch, ids, train)
  return model.encoder.rtd_head(hidden), model.encoder.sentence_head(hidden[:, :1])[:, 0]


def keep_rows(rng: jax.Array, corruption: generators.Corruption, input_ids: jax.Array) -> generators.Corruption:
  """Undoes the corruption of a random UNCHANGED_SHARE of the rows."""
  is_kept = jax.random.bernoulli(rng, UNCHANGED_SHARE, (len(input_ids), 1))
  return corruption._replace(ids=jnp.where(is_kept, input_ids, corruption.ids),
                             is_replaced=corruption.is_replaced & ~is_kept)


def make(parts: Parts) -> Objective:
  """ELECTRA's objective plus a binary loss per sequence; UNCHANGED_SHARE of the sequences stay unchanged.

  A row in which every draw happens to be the original counts as unchanged, just as such a token counts as real. The
  paper gives neither the head (ours is a second replaced-token head, on [CLS]) nor the loss's weight (ours is 1).
  """
  model = generators.make_model(parts, encoder_heads=("rtd_head", "sentence_head"))
  generate = generators.make(model, parts)

  def count_targets(batch):
    return {**rtd.count_targets(batch), "sentence": batch["attention_mask"].any(axis=1).sum()}

  def loss(params, batch, rng, train, num_targets):
    dropout_rng, sample_rng, keep_rng, encoder_rng = jax.random.split(rng, 4)
    mlm_loss, metrics, corruption = generate(params, batch, dropout_rng, sample_rng, train)
    corruption = keep_rows(keep_rng, corruption, batch["input_ids"])
    logits, sentence_logits = apply(model, params, batch, corruption.ids, train, method=judge,
                                    rngs={"dropout": encoder_rng})
    real = batch["attention_mask"].astype(jnp.float32)
    rtd_loss, rtd_metrics = rtd.discriminator_loss(logits, corruption.is_replaced, real, train)
    is_row = batch["attention_mask"].any(axis=1)  # [batch]; an evaluation's last batch is padded with empty rows
    is_corrupted = corruption.is_replaced.any(axis=1)
    sentence_loss = losses.binary_cross_entropy(sentence_logits[:, None], is_corrupted[:, None],
                                                is_row[:, None].astype(jnp.float32))
    correct = jnp.sum(is_row & ((sentence_logits > 0) == is_corrupted))
    metrics |= {**rtd_metrics, "sentence/loss": (sentence_loss, is_row.sum()),
                "sentence/accuracy": (correct, is_row.sum())}
    total = (parts.objective.mlm_weight * mlm_loss / num_targets["mlm"]
             + parts.objective.rtd_weight * rtd_loss / num_targets["rtd"]
             + sentence_loss / num_targets["sentence"])
    return total, metrics

  return Objective(initial.init_of(model), count_targets, (Phase(parts.num_steps, loss),))
