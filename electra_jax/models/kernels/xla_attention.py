"""Attention without kernels that keeps no weights for its gradient: they are computed again from their log-sums.

For TPUs, where Pallas does not serve. What jax derives of the plain code keeps each weight in 32 and in 16 bits, and is
expected to be no faster there. The weights dropped are those of every other code.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from electra_jax.models import dropout
from electra_jax.models.kernels.triton_attention import HIDDEN_SCORE


def adds_bias(length: int) -> bool:
  """The compiler fuses the bias with the product before."""
  del length
  return False


def forward(seeds: Array, lengths: Array, product: Array, bias: Array, *, num_heads: int, rate: float, interpret: bool):
  """See `triton_attention.forward`; the product has its bias already."""
  del bias, interpret
  scores = _scores(lengths, product)
  log_sums = jax.nn.logsumexp(scores, axis=-1)  # [batch, heads, queries]
  kept = _dropped(jnp.exp(scores - log_sums[..., None]), seeds, num_heads, rate).astype(product.dtype)
  return jnp.einsum("bhqk,bkhd->bqhd", kept, product[:, :, :, 2]), log_sums


def backward(seeds: Array, lengths: Array, product: Array, bias: Array, context: Array, log_sums: Array,
             gradient: Array, *, num_heads: int, rate: float, interpret: bool):
  """See `triton_attention.backward`."""
  del bias, interpret
  query, key, value = (product[:, :, :, place] for place in range(3))
  wide = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
  weights = jnp.exp(_scores(lengths, product) - log_sums[..., None])  # [batch, heads, queries, keys]
  d_weights = _dropped(wide("bqhd,bkhd->bhqk", gradient, value), seeds, num_heads, rate)
  dots = wide("bqhd,bqhd->bhq", gradient, context)
  d_scores = (weights * (d_weights - dots[..., None]) * query.shape[-1] ** -0.5).astype(product.dtype)
  kept = _dropped(weights, seeds, num_heads, rate).astype(product.dtype)
  d_product = jnp.stack([jnp.einsum("bhqk,bkhd->bqhd", d_scores, key), jnp.einsum("bhqk,bqhd->bkhd", d_scores, query),
                         jnp.einsum("bhqk,bqhd->bkhd", kept, gradient)], axis=3)
  return d_product, d_product.sum((0, 1), dtype=jnp.float32)[None, None]


def _scores(lengths, product):
  query, key = product[:, :, :, 0], product[:, :, :, 1]
  scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32) * query.shape[-1] ** -0.5
  return scores + jnp.where(jnp.arange(key.shape[1]) < lengths[:, None], 0.0, HIDDEN_SCORE)[:, None, None]


def _dropped(weights, seeds, num_heads, rate):
  """What stays of [batch, heads, queries, keys], divided by the share that stays; seeds as for `triton_attention`."""
  if not rate:
    return weights
  examples, heads = (first + jnp.arange(size, dtype=jnp.uint32) for first, size in zip(seeds[2:], weights.shape))
  own = dropout.child_seeds((seeds[0], seeds[1]), (examples[:, None] * np.uint32(num_heads) + heads)[..., None])
  queries, keys = (jnp.arange(size, dtype=jnp.uint32) for size in weights.shape[2:])
  return jnp.where(dropout.keep_pairs(own, queries, keys, rate), weights * (1 / (1 - rate)), 0)
