"""Generators of replacements: a masked LM that learns next to the encoder, or token counts (ELECTRA section 3.2).

Every objective with a generator begins with the same step, `make`: predict the masked tokens, draw, replace.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from electra_jax.models.attention import MASK_BIAS
from electra_jax.models.electra import Electra, make_generator_config
from electra_jax.objectives import losses, sampling
from electra_jax.objectives.base import Batch, Metrics, Parts, apply
from electra_jax.objectives.table import counts_tokens

# generator.kind -> log-weights of tokens by their counts in the training corpus, whatever the context (section 3.2).
LOG_WEIGHTS = {
  "unigram": lambda counts: np.log(np.maximum(counts, 1)),  # "according to their frequency in the train corpus"
  "uniform": lambda counts: np.zeros(len(counts)),  # a unigram with infinite temperature
}


class Corruption(NamedTuple):
  """What the kept encoder reads, and what was done to it."""

  ids: Int[Array, "batch length"]
  is_replaced: Bool[Array, "batch length"]  # False where the draw is the original: such a token is "real" (section 2)
  sampled_ids: Int[Array, "batch predictions"]


def make_model(parts: Parts, **heads_and_name) -> Electra:
  """Both networks; `heads_and_name` goes to `Electra`."""
  if counts_tokens(parts.generator):
    return Electra(parts.transformer, None, "none", **heads_and_name)
  generator = make_generator_config(parts.transformer, parts.generator)
  return Electra(parts.transformer, generator, parts.objective.weight_tying, **heads_and_name)


def make(model: Electra, parts: Parts) -> Callable:
  """(params, batch, dropout_rng, sample_rng, train) -> (sum of the generator's MLM losses, metrics, Corruption)."""
  if counts_tokens(parts.generator):
    row = count_logits(parts)

    def draw(params, batch, dropout_rng, sample_rng, train) -> tuple[Array, Metrics, Corruption]:
      logits = jnp.broadcast_to(row, (*batch["masked_ids"].shape, len(row)))
      return jnp.zeros(()), {}, corrupt(sample_rng, logits, batch, parts.objective)

    return draw

  def generate(params, batch, dropout_rng, sample_rng, train) -> tuple[Array, Metrics, Corruption]:
    logits = apply(model, params, batch, train, method="generator_logits", rngs={"dropout": dropout_rng})
    corruption = corrupt(sample_rng, logits, batch, parts.objective)
    return *losses.masked_lm_loss(logits, batch), corruption

  return generate


def count_logits(parts: Parts) -> Float[np.ndarray, "vocab"]:
  """The same logits everywhere; ids with a count of 0, such as special ones, are never drawn."""
  counts = parts.token_counts
  if counts is None:
    raise ValueError(f"generator.kind {parts.generator.kind!r} needs the token_counts of the training corpus")
  row = np.full(parts.transformer.vocab_size, MASK_BIAS, np.float32)
  row[: len(counts)] = np.where(counts > 0, LOG_WEIGHTS[parts.generator.kind](counts), MASK_BIAS)
  return row


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
