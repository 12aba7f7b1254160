"""BERT on hard tokens: masks where a second network guesses that BERT would struggle (ELECTRA Appendix F).

Negative result 1 there: "training a model to guess which tokens BERT would struggle to predict if they were masked out
[...] resulted in fairly minor speedups over regular BERT". The paper gives no formula; this one is ours.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from electra_jax.models import heads, initial
from electra_jax.models.electra import Electra
from electra_jax.objectives import generators, losses, sampling
from electra_jax.objectives.base import Batch, Objective, Parts, Phase, apply
from electra_jax.objectives.table import ROWS

SHARE = ROWS["hard_tokens"].predicted_share  # masked, of the positions that the data offers, twice as many as BERT's


def guess(model: Electra, batch: Batch, train: bool) -> Float[Array, "batch predictions"]:
  """The generator's guess of BERT's loss in nats at each offered position, from the whole, unmasked text."""
  hidden = model.generator.encode(batch, batch["input_ids"], train, model.generator_embed())
  return model.generator.baseline_head(heads.select_positions(hidden, batch["masked_positions"]))


def predict(model: Electra, batch: Batch, train: bool) -> Array:
  """BERT's vocabulary logits at the masked positions."""
  return model.encoder.mlm_logits(batch, batch["masked_input_ids"], train)


def num_chosen(batch: Batch) -> Float[Array, "batch"]:
  """The number of positions to mask in each row: ceil(SHARE * the number offered)."""
  return jnp.ceil(SHARE * batch["masked_weights"].sum(axis=1))


def choose(rng: Array, guesses: Float[Array, "batch predictions"], batch: Batch
           ) -> tuple[Batch, Int[Array, "batch slots"]]:
  """(the batch with only `num_chosen` of the offered positions masked, the chosen slots).

  The highest sums of guess and Gumbel noise: positions are drawn without replacement with odds of e to the guess, which
  is 1 / BERT's probability of the token if the guess is right.
  """
  offered = batch["masked_weights"] > 0
  keys = jnp.where(offered, guesses + jax.random.gumbel(rng, guesses.shape), -jnp.inf)
  _, slots = jax.lax.top_k(keys, math.ceil(SHARE * keys.shape[1]))
  positions, ids = (jnp.take_along_axis(batch[name], slots, axis=1) for name in ("masked_positions", "masked_ids"))
  weights = (jnp.arange(slots.shape[1]) < num_chosen(batch)[:, None]).astype(jnp.float32)
  shown = jnp.take_along_axis(batch["masked_input_ids"], positions, axis=1)  # [MASK], or what 80/10/10 puts there
  masked = sampling.replace_ids(batch["input_ids"], positions, shown, weights)
  return batch | {"masked_positions": positions, "masked_ids": ids, "masked_weights": weights,
                  "masked_input_ids": masked}, slots


def make(parts: Parts) -> Objective:
  """A masked LM under `encoder/`, and under `generator/` the guesser, which learns the losses at masked positions.

  Evaluation masks at random, so that its loss is comparable with BERT's at half the `masking.rate`.
  """
  model = generators.make_model(parts, encoder_name="encoder", encoder_heads=("mlm_head",),
                                generator_heads=("baseline_head",))

  def count_targets(batch):
    return {"mlm": num_chosen(batch).sum()}

  def loss(params, batch, rng, train, num_targets):
    guess_rng, choice_rng, encoder_rng = jax.random.split(rng, 3)
    guesses = apply(model, params, batch, train, method=guess, rngs={"dropout": guess_rng})
    expected = jax.lax.stop_gradient(guesses) if train else jnp.zeros_like(guesses)
    chosen, slots = choose(choice_rng, expected, batch)
    logits = apply(model, params, chosen, train, method=predict, rngs={"dropout": encoder_rng})
    mlm_loss, metrics = losses.masked_lm_loss(logits, chosen)
    losses_in_nats = -jax.lax.stop_gradient(losses.log_probability(logits, chosen["masked_ids"]))
    weights = chosen["masked_weights"]
    error = jnp.sum(weights * jnp.square(jnp.take_along_axis(guesses, slots, axis=1) - losses_in_nats))
    total = (parts.objective.mlm_weight * mlm_loss + error) / num_targets["mlm"]
    return total, metrics | {"difficulty/loss": (error, weights.sum())}

  return Objective(initial.init_of(model), count_targets, (Phase(parts.num_steps, loss),))
