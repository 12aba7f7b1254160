"""How does attention with dropout run without a score matrix in memory? Triton kernels, written in Pallas.

One program takes the queries of one block, of one head, of one example (Dao 2023, "FlashAttention-2"). The dropout of
a weight is hashed from (example, head, query, key), so that both directions agree and nothing is stored.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from electra_jax.models import dropout

LOG2_E = math.log2(math.e)  # exp2 is the instruction that the hardware has
HIDDEN_SCORE = -1e30  # of keys that are padding; finite, so that no row is NaN

# (rows of a block of queries, of keys, warps), found by measuring on an H100
FORWARD_BLOCKS = {128: (128, 128, 8), 0: (128, 64, 4)}  # 0: longer rows
BACKWARD_BLOCKS = {128: (128, 128, 8), 0: (64, 64, 4)}


def fits(kernels: str, qkv_shape: tuple[int, ...]) -> bool:
  """Whether the kernels take [batch, length, heads, 3, head_dim]: the sizes are whole blocks."""
  _, length, _, _, head_dim = qkv_shape
  is_power = length & (length - 1) == 0
  return kernels != "xla" and head_dim in (16, 32, 64, 128) and (length % 128 == 0 or (16 <= length <= 64 and is_power))


def _blocks(table, length: int) -> tuple[int, int, int]:
  queries, keys, warps = table[128 if length <= 128 else 0]
  return min(queries, length), min(keys, length), warps


def _specs(length: int, head_dim: int, block: int | None, place: int):
  """Block of queries (0), keys (1) or values (2): its own rows, or with `block` None all of the example's."""
  if block is None:
    return pl.BlockSpec((None, length, None, None, head_dim), lambda i, n, b: (b, 0, n, place, 0))
  return pl.BlockSpec((None, block, None, None, head_dim), lambda i, n, b: (b, i, n, place, 0))


def _head_seeds(seeds_ref, num_heads: int):
  """The seeds of this program's head among all examples and heads; seeds_ref: two seeds, first example, first head."""
  seeds = (seeds_ref[0], seeds_ref[1])
  example = seeds_ref[2] + pl.program_id(2).astype(jnp.uint32)
  head = seeds_ref[3] + pl.program_id(1).astype(jnp.uint32)
  index = example * np.uint32(num_heads) + head
  return dropout.bits(seeds, index), dropout.bits(seeds[::-1], index)


def _keep(seeds, first_query, num_queries, first_key, num_keys, length, rate):
  query = (first_query + jnp.arange(num_queries)).astype(jnp.uint32)
  key = (first_key + jnp.arange(num_keys)).astype(jnp.uint32)
  return dropout.bits(seeds, query[:, None] * np.uint32(length) + key[None]) >= dropout.threshold(rate)


def _dot(a, b, contract: tuple[int, int]):
  return jax.lax.dot_general(a, b, (((contract[0],), (contract[1],)), ((), ())), preferred_element_type=jnp.float32)


def forward(seeds, lengths, qkv, *, num_heads: int, rate: float, interpret: bool):
  """Context [batch, length, heads, head_dim], and log2 of each row's sum of exponentials [batch, heads, length].

  Args:
    seeds: uint32 [4]: two seeds, the place of the first example and of the first head among all devices'.
    lengths: int32 [batch], real tokens of each example.
    qkv: [batch, length, heads, 3, head_dim].
    num_heads: of all devices.
    rate: of the dropout.
    interpret: run on any device, slowly.
  """
  batch, length, heads, _, head_dim = qkv.shape
  queries, keys, warps = _blocks(FORWARD_BLOCKS, length)
  return pl.pallas_call(
    functools.partial(_forward_kernel, num_heads=num_heads, rate=rate, block_keys=keys),
    grid=(length // queries, heads, batch),
    in_specs=[pl.BlockSpec((4,), lambda i, n, b: (0,)), pl.BlockSpec((None,), lambda i, n, b: (b,)),
              _specs(length, head_dim, queries, 0), _specs(length, head_dim, None, 1),
              _specs(length, head_dim, None, 2)],
    out_specs=[pl.BlockSpec((None, queries, None, head_dim), lambda i, n, b: (b, i, n, 0)),
               pl.BlockSpec((None, None, queries), lambda i, n, b: (b, n, i))],
    out_shape=[jax.ShapeDtypeStruct((batch, length, heads, head_dim), qkv.dtype),
               jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)],
    compiler_params=triton.CompilerParams(num_warps=warps, num_stages=2), interpret=interpret,
    name="attention_forward",
  )(seeds, lengths, qkv, qkv, qkv)


def _forward_kernel(seeds_ref, lengths_ref, query_ref, key_ref, value_ref, context_ref, log_sums_ref, *, num_heads,
                    rate, block_keys):
  num_queries, head_dim = query_ref.shape
  length = key_ref.shape[0]
  real = jnp.maximum(lengths_ref[...], 1)
  query = query_ref[...]
  seeds = _head_seeds(seeds_ref, num_heads) if rate else None
  first_query = pl.program_id(0) * num_queries

  def block(index, carry):
    total, highest, denominator = carry
    rows = pl.ds(index * block_keys, block_keys)
    scores = _dot(query, key_ref[rows, :], (1, 1)) * np.float32(LOG2_E / math.sqrt(head_dim))
    is_real = index * block_keys + jnp.arange(block_keys) < real
    scores = jnp.where(is_real[None], scores, HIDDEN_SCORE)
    now_highest = jnp.maximum(highest, scores.max(1))
    weights = jnp.exp2(scores - now_highest[:, None])
    shrink = jnp.exp2(highest - now_highest)
    denominator = denominator * shrink + weights.sum(1)
    if rate:
      keep = _keep(seeds, first_query, num_queries, index * block_keys, block_keys, length, rate)
      weights = jnp.where(keep, weights, 0.0)
    added = _dot(weights.astype(query.dtype), value_ref[rows, :], (1, 0))
    return total * shrink[:, None] + added, now_highest, denominator

  start = (jnp.zeros((num_queries, head_dim), jnp.float32), jnp.full((num_queries,), HIDDEN_SCORE, jnp.float32),
           jnp.zeros((num_queries,), jnp.float32))
  total, highest, denominator = jax.lax.fori_loop(0, pl.cdiv(real, block_keys), block, start)
  context = total / (denominator * np.float32(1 - rate))[:, None]
  context_ref[...] = context.astype(context_ref.dtype)
  log_sums_ref[...] = highest + jnp.log2(denominator)


def backward(seeds, lengths, qkv, context, log_sums, gradient, *, num_heads: int, rate: float, interpret: bool):
  """(gradient of qkv, its sums over the rows of each program [batch, programs, heads, 3, head_dim])."""
  batch, length, heads, _, head_dim = qkv.shape
  queries, keys, warps = _blocks(BACKWARD_BLOCKS, length)
  one_block = queries == keys == length
  whole = pl.BlockSpec((None, length, None, head_dim), lambda i, n, b: (b, 0, n, 0))
  per_row = pl.BlockSpec((None, None, length), lambda i, n, b: (b, n, 0))
  programs = length // queries
  inputs, specs = [qkv, qkv, qkv, gradient], [_specs(length, head_dim, None, place) for place in range(3)] + [whole]
  if not one_block:
    dots = jnp.einsum("bsnd,bsnd->bns", context.astype(jnp.float32), gradient.astype(jnp.float32))
    inputs, specs = [*inputs, log_sums, dots], [*specs, per_row, per_row]
  return pl.pallas_call(
    functools.partial(_backward_one_block if one_block else _backward_blocks, num_heads=num_heads, rate=rate,
                      **({} if one_block else {"block": queries})),
    grid=(programs, heads, batch),
    in_specs=[pl.BlockSpec((4,), lambda i, n, b: (0,)), pl.BlockSpec((None,), lambda i, n, b: (b,)), *specs],
    out_specs=[pl.BlockSpec((None, queries, None, 3, head_dim), lambda i, n, b: (b, i, n, 0, 0)),
               pl.BlockSpec((None, None, None, 3, head_dim), lambda i, n, b: (b, i, n, 0, 0))],
    out_shape=[jax.ShapeDtypeStruct(qkv.shape, qkv.dtype),
               jax.ShapeDtypeStruct((batch, programs, heads, 3, head_dim), jnp.float32)],
    compiler_params=triton.CompilerParams(num_warps=warps, num_stages=2), interpret=interpret,
    name="attention_backward",
  )(seeds, lengths, *inputs)


def _backward_one_block(seeds_ref, lengths_ref, query_ref, key_ref, value_ref, gradient_ref, d_qkv_ref, sums_ref,
                        *, num_heads, rate):
  """The whole example in one block: the weights are computed again, and nothing of the forward pass is read."""
  length, head_dim = query_ref.shape
  scale = np.float32(1 / math.sqrt(head_dim))
  query, key, value, gradient = query_ref[...], key_ref[...], value_ref[...], gradient_ref[...]
  scores = _dot(query, key, (1, 1)) * (scale * np.float32(LOG2_E))
  is_real = jnp.arange(length) < jnp.maximum(lengths_ref[...], 1)
  scores = jnp.where(is_real[None], scores, HIDDEN_SCORE)
  weights = jnp.exp2(scores - scores.max(1)[:, None])
  weights = weights / weights.sum(1)[:, None]
  d_weights = _dot(gradient, value, (1, 1))
  dropped = weights
  if rate:
    keep = _keep(_head_seeds(seeds_ref, num_heads), 0, length, 0, length, length, rate)
    dropped = jnp.where(keep, weights * np.float32(1 / (1 - rate)), 0.0)
    d_weights = jnp.where(keep, d_weights * np.float32(1 / (1 - rate)), 0.0)
  d_value = _dot(dropped.astype(query.dtype), gradient, (0, 0))
  d_scores = weights * (d_weights - (weights * d_weights).sum(1)[:, None]) * scale
  d_scores = d_scores.astype(query.dtype)
  _store((_dot(d_scores, key, (1, 0)), _dot(d_scores, query, (0, 0)), d_value), d_qkv_ref, sums_ref)


def _backward_blocks(seeds_ref, lengths_ref, query_ref, key_ref, value_ref, gradient_ref, log_sums_ref, dots_ref,
                     d_qkv_ref, sums_ref, *, num_heads, rate, block):
  """First as the program of a block of keys, over all queries; then as that of a block of queries, over all keys."""
  length, head_dim = query_ref.shape
  scale = np.float32(1 / math.sqrt(head_dim))
  real = jnp.maximum(lengths_ref[...], 1)
  seeds = _head_seeds(seeds_ref, num_heads) if rate else None
  own = pl.program_id(0) * block
  own_rows = pl.ds(own, block)

  def weights_and_scores(query, key, value, gradient, log_sums, dots, first_query, first_key):
    scores = _dot(query, key, (1, 1)) * (scale * np.float32(LOG2_E))
    is_real = first_key + jnp.arange(block) < real
    weights = jnp.where(is_real[None], jnp.exp2(scores - log_sums[:, None]), 0.0)
    d_weights = _dot(gradient, value, (1, 1))
    dropped = weights
    if rate:
      keep = _keep(seeds, first_query, block, first_key, block, length, rate)
      dropped = jnp.where(keep, weights * np.float32(1 / (1 - rate)), 0.0)
      d_weights = jnp.where(keep, d_weights * np.float32(1 / (1 - rate)), 0.0)
    return dropped.astype(query.dtype), (weights * (d_weights - dots[:, None]) * scale).astype(query.dtype)

  key, value = key_ref[own_rows, :], value_ref[own_rows, :]

  def over_queries(index, carry):
    d_key, d_value = carry
    rows = pl.ds(index * block, block)
    query, gradient = query_ref[rows, :], gradient_ref[rows, :]
    dropped, d_scores = weights_and_scores(query, key, value, gradient, log_sums_ref[rows], dots_ref[rows],
                                           index * block, own)
    return d_key + _dot(d_scores, query, (0, 0)), d_value + _dot(dropped, gradient, (0, 0))

  zeros = jnp.zeros((block, head_dim), jnp.float32)
  d_key, d_value = jax.lax.fori_loop(0, length // block, over_queries, (zeros, zeros))
  query, gradient = query_ref[own_rows, :], gradient_ref[own_rows, :]
  log_sums, dots = log_sums_ref[own_rows], dots_ref[own_rows]

  def over_keys(index, d_query):
    rows = pl.ds(index * block, block)
    _, d_scores = weights_and_scores(query, key_ref[rows, :], value_ref[rows, :], gradient, log_sums, dots, own,
                                     index * block)
    return d_query + _dot(d_scores, key_ref[rows, :], (1, 0))

  d_query = jax.lax.fori_loop(0, pl.cdiv(real, block), over_keys, zeros)
  _store((d_query, d_key, d_value), d_qkv_ref, sums_ref)


def _store(gradients, d_qkv_ref, sums_ref):
  for place, gradient in enumerate(gradients):
    d_qkv_ref[:, place, :] = gradient.astype(d_qkv_ref.dtype)
    sums_ref[place, :] = gradient.sum(0)
