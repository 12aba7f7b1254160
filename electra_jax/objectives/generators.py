"""Generators of replacements: a masked LM that learns next to the encoder, or token counts (ELECTRA section 3.2).

Every objective with a generator begins with the same step, `make`: predict the masked tokens, draw, replace.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree
from ml_collections import ConfigDict

from electra_jax.models.attention import MASK_BIAS
from electra_jax.models.electra import Electra, make_generator_config
from electra_jax.objectives import losses, sampling
from electra_jax.objectives.base import Batch, Metrics, Parts, apply
from electra_jax.objectives.table import counts_tokens

# (params, batch, rng, train) -> logits [batch, predictions, vocab]
LogitsFn = Callable[[PyTree, Batch, Array, bool], Array]


class Corruption(NamedTuple):
  """What the kept encoder reads, and what was done to it."""

  ids: Int[Array, "batch length"]
  is_replaced: Bool[Array, "batch length"]  # False where the draw is the original: such a token is "real" (section 2)
  sampled_ids: Int[Array, "batch predictions"]


def learned(model: Electra, token_counts: np.ndarray | None) -> LogitsFn:
  """The masked LM of section 2, of any width and depth."""
  del token_counts

  def logits(params, batch, rng, train):
    return apply(model, params, batch, train, method="generator_logits", rngs={"dropout": rng})

  return logits


def unigram(model: Electra, token_counts: np.ndarray) -> LogitsFn:
  """Tokens "according to their frequency in the train corpus", whatever the context (section 3.2)."""
  return _fixed(model, np.log(np.maximum(token_counts, 1)), token_counts)


def uniform(model: Electra, token_counts: np.ndarray) -> LogitsFn:
  """Every token of the training corpus with equal probability: a unigram with infinite temperature."""
  return _fixed(model, np.zeros(len(token_counts)), token_counts)


GENERATORS: dict[str, Callable[[Electra, Any], LogitsFn]] = {  # (model, token_counts; None for `learned`)
  "learned": learned, "unigram": unigram, "uniform": uniform,
}


def make_model(parts: Parts, **heads_and_name) -> Electra:
  """Both networks; `heads_and_name` goes to `Electra`."""
  if counts_tokens(parts.generator):
    return Electra(parts.transformer, None, "none", **heads_and_name)
  generator = make_generator_config(parts.transformer, parts.generator)
  return Electra(parts.transformer, generator, parts.objective.weight_tying, **heads_and_name)


def make(model: Electra, parts: Parts) -> Callable:
  """(params, batch, dropout_rng, sample_rng, train) -> (sum of the generator's MLM losses, metrics, Corruption)."""
  if counts_tokens(parts.generator) and parts.token_counts is None:
    raise ValueError(f"generator.kind {parts.generator.kind!r} needs the token_counts of the training corpus")
  logits_of = GENERATORS[parts.generator.kind](model, parts.token_counts)

  def generate(params, batch, dropout_rng, sample_rng, train) -> tuple[Array, Metrics, Corruption]:
    logits = logits_of(params, batch, dropout_rng, train)
    corruption = corrupt(sample_rng, logits, batch, parts.objective)
    if counts_tokens(parts.generator):
      return jnp.zeros(()), {}, corruption
    return *losses.masked_lm_loss(logits, batch), corruption

  return generate


def proposal_logits(logits: Float[Array, "batch predictions vocab"], batch: Batch,
                    config_objective: ConfigDict) -> Float[Array, "batch predictions vocab"]:
  """The logits that replacements are drawn from, with the changes of `objective.sampling_*`."""
  excluded_ids = batch["masked_ids"] if config_objective.sampling_excludes_original else None
  return sampling.proposal_logits(logits, config_objective.sampling_temperature, excluded_ids)


def corrupt(rng: Array, logits: Float[Array, "batch predictions vocab"], batch: Batch,
            config_objective: ConfigDict) -> Corruption:
  """x̂ ~ p_G and x^corrupt = REPLACE(x, m, x̂) (section 2)."""
  sampled_ids = sampling.sample_ids(rng, proposal_logits(logits, batch, config_objective))
  ids = sampling.replace_ids(batch["input_ids"], batch["masked_positions"], sampled_ids, batch["masked_weights"])
  return Corruption(ids, ids != batch["input_ids"], sampled_ids)


def _fixed(model: Electra, log_weights: np.ndarray, token_counts: np.ndarray) -> LogitsFn:
  """The same logits everywhere; ids with a count of 0, such as special ones, are never drawn."""
  row = np.full(model.encoder_config.vocab_size, MASK_BIAS, np.float32)
  row[: len(token_counts)] = np.where(token_counts > 0, log_weights, MASK_BIAS)
  return lambda params, batch, rng, train: jnp.broadcast_to(row, (*batch["masked_ids"].shape, len(row)))
