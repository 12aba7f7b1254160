"""Attention with dropout without a score matrix in memory: Triton kernels, written in Pallas.

One program takes the queries of one block, of one head, of one example (Dao 2023, "FlashAttention-2"). The dropout of
a weight is hashed from (example, head, query, key), so that both directions agree and nothing is stored. Each function
is jitted by itself: layers that are alike are traced and lowered once.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from electra_jax.models import dropout
from electra_jax.models.kernels.triton_rows import GPU

LOG2_E = math.log2(math.e)  # exp2 is the instruction that the hardware has
HIDDEN_SCORE = -1e30  # of keys that are padding; finite, so that no row is NaN

# Rows up to so long -> (queries of a block, keys, warps, stages of the software pipeline), measured on an H100.
FORWARD_BLOCKS = {128: (64, 64, 4, 2), 1 << 20: (64, 64, 4, 2)}
BACKWARD_BLOCKS = {128: (32, 128, 4, 1), 1 << 20: (64, 64, 4, 2)}


def fits(kernels: str, qkv_shape: tuple[int, ...]) -> bool:
  """Whether the kernels take [batch, length, heads, 3, head_dim]: the sizes are whole blocks."""
  _, length, _, _, head_dim = qkv_shape
  is_power = length & (length - 1) == 0
  return kernels in GPU and head_dim in (16, 32, 64, 128) and (length % 128 == 0 or (16 <= length <= 64 and is_power))


def _blocks(table: dict[int, tuple[int, int, int, int]], length: int) -> tuple[int, int, triton.CompilerParams]:
  queries, keys, warps, stages = next(row for longest, row in table.items() if length <= longest)
  return min(queries, length), min(keys, length), triton.CompilerParams(num_warps=warps, num_stages=stages)


def _specs(length: int, head_dim: int, block: int | None, place: int):
  """Block of queries (0), keys (1) or values (2): its own rows, or with `block` None all of the example's."""
  if block is None:
    return pl.BlockSpec((None, length, None, None, head_dim), lambda i, n, b: (b, 0, n, place, 0))
  return pl.BlockSpec((None, block, None, None, head_dim), lambda i, n, b: (b, i, n, place, 0))


def _scalars_and_bias(head_dim: int):
  return (pl.BlockSpec((4,), lambda i, n, b: (0,)), pl.BlockSpec((None,), lambda i, n, b: (b,)),
          pl.BlockSpec((None, 3, head_dim), lambda i, n, b: (n, 0, 0)))


def _head_seeds(seeds_ref, num_heads: int):
  """The seeds of this program's head among all examples and heads; seeds_ref: two seeds, first example, first head."""
  example = seeds_ref[2] + pl.program_id(2).astype(jnp.uint32)
  head = seeds_ref[3] + pl.program_id(1).astype(jnp.uint32)
  return dropout.child_seeds((seeds_ref[0], seeds_ref[1]), example * np.uint32(num_heads) + head)


def _keep(seeds, first_query, num_queries, first_key, num_keys, rate):
  return dropout.keep_pairs(seeds, (first_query + jnp.arange(num_queries)).astype(jnp.uint32),
                            (first_key + jnp.arange(num_keys)).astype(jnp.uint32), rate)


def _dropped(keep, x, rate):
  return jnp.where(keep, x * np.float32(1 / (1 - rate)), 0.0)


def _biased(product, bias):
  return product if bias is None else product + bias.astype(product.dtype)[None]


def _biases(bias_ref, adds_bias: bool):
  """Of queries, keys and values."""
  return (bias_ref[0, :], bias_ref[1, :], bias_ref[2, :]) if adds_bias else (None, None, None)


def adds_bias(length: int) -> bool:
  """Whether the kernels add the bias. Over several blocks it would stand between memory and the matrix unit."""
  return length <= 128


def _dot(a, b, contract: tuple[int, int]):
  return jax.lax.dot_general(a, b, (((contract[0],), (contract[1],)), ((), ())), preferred_element_type=jnp.float32)


@functools.partial(jax.jit, static_argnames=("num_heads", "rate", "interpret"))
def forward(seeds: Array, lengths: Array, product: Array, bias: Array, *, num_heads: int, rate: float, interpret: bool):
  """Context [batch, length, heads, head_dim], and log2 of each row's sum of exponentials [batch, heads, length].

  Args:
    seeds: uint32 [4]: two seeds, the place of the first example and of the first head among all devices'.
    lengths: int32 [batch], real tokens of each example.
    product: [batch, length, heads, 3, head_dim], of the query, key and value maps.
    bias: float32 [heads, 3, head_dim], of these maps; where not `adds_bias(length)`, the product has it already.
    num_heads: of all devices.
    rate: of the dropout.
    interpret: run on any device, slowly.
  """
  batch, length, heads, _, head_dim = product.shape
  queries, keys, compiler_params = _blocks(FORWARD_BLOCKS, length)
  return pl.pallas_call(
    functools.partial(_forward_kernel, num_heads=num_heads, rate=rate, block_keys=keys, is_short=adds_bias(length)),
    grid=(length // queries, heads, batch),
    in_specs=[*_scalars_and_bias(head_dim), _specs(length, head_dim, queries, 0),
              _specs(length, head_dim, None, 1), _specs(length, head_dim, None, 2)],
    out_specs=[pl.BlockSpec((None, queries, None, head_dim), lambda i, n, b: (b, i, n, 0)),
               pl.BlockSpec((None, None, queries), lambda i, n, b: (b, n, i))],
    out_shape=[jax.ShapeDtypeStruct((batch, length, heads, head_dim), product.dtype),
               jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)],
    compiler_params=compiler_params, interpret=interpret,
    name="attention_forward",
  )(seeds, lengths, bias, product, product, product)


def _forward_kernel(seeds_ref, lengths_ref, bias_ref, query_ref, key_ref, value_ref, context_ref, log_sums_ref, *,
                    num_heads, rate, block_keys, is_short):
  num_queries, head_dim = query_ref.shape
  real = jnp.maximum(lengths_ref[...], 1)
  query_bias, key_bias, value_bias = _biases(bias_ref, is_short)
  query = _biased(query_ref[...], query_bias)
  seeds = _head_seeds(seeds_ref, num_heads) if rate else None
  first_query = pl.program_id(0) * num_queries

  def block(index, carry):
    total, highest, denominator = carry
    rows = pl.ds(index * block_keys, block_keys)
    key, value = _biased(key_ref[rows, :], key_bias), _biased(value_ref[rows, :], value_bias)
    scores = _dot(query, key, (1, 1)) * np.float32(LOG2_E / math.sqrt(head_dim))
    is_real = index * block_keys + jnp.arange(block_keys) < real
    scores = jnp.where(is_real[None], scores, HIDDEN_SCORE)
    now_highest = jnp.maximum(highest, scores.max(1))
    weights = jnp.exp2(scores - now_highest[:, None])
    shrink = jnp.exp2(highest - now_highest)
    denominator = denominator * shrink + weights.sum(1)
    if rate:
      keep = _keep(seeds, first_query, num_queries, index * block_keys, block_keys, rate)
      weights = jnp.where(keep, weights, 0.0)
    added = _dot(weights.astype(query.dtype), value, (1, 0))
    return total * shrink[:, None] + added, now_highest, denominator

  start = (jnp.zeros((num_queries, head_dim), jnp.float32), jnp.full((num_queries,), HIDDEN_SCORE, jnp.float32),
           jnp.zeros((num_queries,), jnp.float32))
  total, highest, denominator = jax.lax.fori_loop(0, pl.cdiv(real, block_keys), block, start)
  context = total / (denominator * np.float32(1 - rate))[:, None]
  context_ref[...] = context.astype(context_ref.dtype)
  log_sums_ref[...] = highest + jnp.log2(denominator)


@functools.partial(jax.jit, static_argnames=("num_heads", "rate", "interpret"))
def backward(seeds: Array, lengths: Array, product: Array, bias: Array, context: Array, log_sums: Array,
             gradient: Array, *, num_heads: int, rate: float, interpret: bool):
  """(gradient of the product, its sums over the rows of each program [batch, programs, heads, 3, head_dim])."""
  batch, length, heads, _, head_dim = product.shape
  queries, keys, compiler_params = _blocks(BACKWARD_BLOCKS, length)
  all_keys = keys == length
  whole = pl.BlockSpec((None, length, None, head_dim), lambda i, n, b: (b, 0, n, 0))
  per_row = pl.BlockSpec((None, None, length), lambda i, n, b: (b, n, 0))
  programs = 1 if all_keys else length // queries
  inputs, specs = [product] * 3 + [gradient], [_specs(length, head_dim, None, place) for place in range(3)] + [whole]
  if not all_keys:
    dots = jnp.einsum("bsnd,bsnd->bns", context.astype(jnp.float32), gradient.astype(jnp.float32))
    inputs, specs = [*inputs, log_sums, dots], [*specs, per_row, per_row]
  return pl.pallas_call(
    functools.partial(_backward_all_keys if all_keys else _backward_blocks, num_heads=num_heads, rate=rate,
                      block=queries, is_short=adds_bias(length)),
    grid=(programs, heads, batch),
    in_specs=[*_scalars_and_bias(head_dim), *specs],
    out_specs=[pl.BlockSpec((None, length // programs, None, 3, head_dim), lambda i, n, b: (b, i, n, 0, 0)),
               pl.BlockSpec((None, None, None, 3, head_dim), lambda i, n, b: (b, i, n, 0, 0))],
    out_shape=[jax.ShapeDtypeStruct(product.shape, product.dtype),
               jax.ShapeDtypeStruct((batch, programs, heads, 3, head_dim), jnp.float32)],
    compiler_params=compiler_params, interpret=interpret,
    name="attention_backward",
  )(seeds, lengths, bias, *inputs)


def _backward_all_keys(seeds_ref, lengths_ref, bias_ref, query_ref, key_ref, value_ref, gradient_ref, d_qkv_ref,
                       sums_ref, *, num_heads, rate, block, is_short):
  """All keys in one block: the weights are computed again, and nothing of the forward pass is read."""
  length, head_dim = query_ref.shape
  scale = np.float32(1 / math.sqrt(head_dim))
  query_bias, key_bias, value_bias = _biases(bias_ref, is_short)
  key, value = _biased(key_ref[...], key_bias), _biased(value_ref[...], value_bias)
  is_real = jnp.arange(length) < jnp.maximum(lengths_ref[...], 1)
  seeds = _head_seeds(seeds_ref, num_heads) if rate else None

  def over_queries(index, carry):
    d_key, d_value, d_query_sum = carry
    rows = pl.ds(index * block, block)
    query, gradient = _biased(query_ref[rows, :], query_bias), gradient_ref[rows, :]
    scores = _dot(query, key, (1, 1)) * (scale * np.float32(LOG2_E))
    scores = jnp.where(is_real[None], scores, HIDDEN_SCORE)
    weights = jnp.exp2(scores - scores.max(1)[:, None])
    weights = weights / weights.sum(1)[:, None]
    d_weights = _dot(gradient, value, (1, 1))
    dropped = weights
    if rate:
      keep = _keep(seeds, index * block, block, 0, length, rate)
      dropped, d_weights = _dropped(keep, weights, rate), _dropped(keep, d_weights, rate)
    d_value = d_value + _dot(dropped.astype(query.dtype), gradient, (0, 0))
    d_scores = weights * (d_weights - (weights * d_weights).sum(1)[:, None]) * scale
    d_scores = d_scores.astype(query.dtype)
    d_query = _dot(d_scores, key, (1, 0))
    d_qkv_ref[rows, 0, :] = d_query.astype(d_qkv_ref.dtype)
    return d_key + _dot(d_scores, query, (0, 0)), d_value, d_query_sum + d_query.sum(0)

  zeros = jnp.zeros((length, head_dim), jnp.float32)
  carry = (zeros, zeros, jnp.zeros((head_dim,), jnp.float32))
  d_key, d_value, d_query_sum = jax.lax.fori_loop(0, length // block, over_queries, carry)
  _store((d_key, d_value), d_qkv_ref, sums_ref, first=1)
  sums_ref[0, :] = d_query_sum


def _backward_blocks(seeds_ref, lengths_ref, bias_ref, query_ref, key_ref, value_ref, gradient_ref, log_sums_ref,
                     dots_ref, d_qkv_ref, sums_ref, *, num_heads, rate, block, is_short):
  """First as the program of a block of keys, over all queries; then as that of a block of queries, over all keys."""
  length, head_dim = query_ref.shape
  scale = np.float32(1 / math.sqrt(head_dim))
  real = jnp.maximum(lengths_ref[...], 1)
  seeds = _head_seeds(seeds_ref, num_heads) if rate else None
  query_bias, key_bias, value_bias = _biases(bias_ref, is_short)
  own = pl.program_id(0) * block
  own_rows = pl.ds(own, block)

  def weights_and_scores(query, key, value, gradient, log_sums, dots, first_query, first_key):
    scores = _dot(query, key, (1, 1)) * (scale * np.float32(LOG2_E))
    is_real = first_key + jnp.arange(block) < real
    weights = jnp.where(is_real[None], jnp.exp2(scores - log_sums[:, None]), 0.0)
    d_weights = _dot(gradient, value, (1, 1))
    dropped = weights
    if rate:
      keep = _keep(seeds, first_query, block, first_key, block, rate)
      dropped, d_weights = _dropped(keep, weights, rate), _dropped(keep, d_weights, rate)
    return dropped.astype(query.dtype), (weights * (d_weights - dots[:, None]) * scale).astype(query.dtype)

  key, value = _biased(key_ref[own_rows, :], key_bias), _biased(value_ref[own_rows, :], value_bias)

  def over_queries(index, carry):
    d_key, d_value = carry
    rows = pl.ds(index * block, block)
    query, gradient = _biased(query_ref[rows, :], query_bias), gradient_ref[rows, :]
    dropped, d_scores = weights_and_scores(query, key, value, gradient, log_sums_ref[rows], dots_ref[rows],
                                           index * block, own)
    return d_key + _dot(d_scores, query, (0, 0)), d_value + _dot(dropped, gradient, (0, 0))

  zeros = jnp.zeros((block, head_dim), jnp.float32)
  d_key, d_value = jax.lax.fori_loop(0, length // block, over_queries, (zeros, zeros))
  query, gradient = _biased(query_ref[own_rows, :], query_bias), gradient_ref[own_rows, :]
  log_sums, dots = log_sums_ref[own_rows], dots_ref[own_rows]

  def over_keys(index, d_query):
    rows = pl.ds(index * block, block)
    key, value = _biased(key_ref[rows, :], key_bias), _biased(value_ref[rows, :], value_bias)
    _, d_scores = weights_and_scores(query, key, value, gradient, log_sums, dots, own, index * block)
    return d_query + _dot(d_scores, key, (1, 0))

  d_query = jax.lax.fori_loop(0, pl.cdiv(real, block), over_keys, zeros)
  _store((d_query, d_key, d_value), d_qkv_ref, sums_ref)


def _store(gradients, d_qkv_ref, sums_ref, first: int = 0):
  for place, gradient in enumerate(gradients, first):
    d_qkv_ref[:, place, :] = gradient.astype(d_qkv_ref.dtype)
    sums_ref[place, :] = gradient.sum(0)
