"""ELECTRA 15 %: learning from masked tokens only, as BERT does (ELECTRA section 3.5, Table 3: 82.4, not 85.0)."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from electra_jax.objectives import rtd
from electra_jax.objectives.base import Batch


def masked_tokens(batch: Batch, rng: Array) -> Float[Array, "batch length"]:
  """The tokens that were masked: "the sum in L_Disc is over i ∈ m instead of from 1 to n".

  >>> masked_tokens({"attention_mask": jnp.ones((1, 4), bool), "masked_positions": jnp.array([[2, 0]]),
  ...                "masked_weights": jnp.array([[1.0, 0.0]])}, jax.random.key(0)).tolist()
  [[0.0, 0.0, 1.0, 0.0]]
  """
  del rng
  rows = jnp.arange(len(batch["masked_positions"]))[:, None]
  weights = jnp.zeros(batch["attention_mask"].shape)
  return weights.at[rows, batch["masked_positions"]].add(batch["masked_weights"])  # unused slots add 0


def other_tokens(batch: Batch, rng: Array) -> Float[Array, "batch length"]:
  """As many random tokens "distinct from the subset that was originally masked out" (footnote 7: slightly worse)."""
  masked = masked_tokens(batch, rng)
  is_candidate = batch["attention_mask"] & (masked == 0)
  draws = jnp.where(is_candidate, jax.random.uniform(rng, masked.shape), 2.0)  # [batch, length]
  rank = jnp.argsort(jnp.argsort(draws, axis=1), axis=1)
  return (is_candidate & (rank < masked.sum(axis=1, keepdims=True))).astype(jnp.float32)


make = functools.partial(rtd.make, judged=masked_tokens)
make_other = functools.partial(rtd.make, judged=other_tokens)
