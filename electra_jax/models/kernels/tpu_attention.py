"""Attention with dropout without a score matrix in memory: kernels for TPUs, written in Pallas.

One program takes two heads of one example: 64 + 64 columns fill the 128 lanes. Everything of size keys x queries lives
in fast memory with the queries along the lanes, so that sums over keys go down the rows and no such array is ever
turned around. The dropout is that of `triton_attention`, bit by bit. Nothing here was timed on a TPU.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from electra_jax.models import dropout
from electra_jax.models.kernels.triton_attention import HIDDEN_SCORE, LOG2_E

HEAD_DIM = 64
LANES = 128  # columns of two heads, and queries of a block
PAIR = 3 * LANES  # columns of the queries, keys and values of two heads: [q0 k0], [v0 q1], [k1 v1]
LONGEST = 512  # all keys of a block of queries are in fast memory at once


def fits(kernels: str, shape: tuple[int, ...], dtype, tensor: int = 1) -> bool:
  """Whether the kernels take a product [batch, length, heads, 3, head_dim], its heads split over `tensor` devices."""
  _, length, heads, _, head_dim = shape
  is_wanted = (kernels == "pallas" and dtype == jnp.bfloat16) or kernels == "interpret_pallas"
  return is_wanted and head_dim == HEAD_DIM and heads % (2 * tensor) == 0 and length % LANES == 0 and length <= LONGEST


def adds_bias(length: int) -> bool:
  """The compiler fuses the bias with the product before."""
  del length
  return False


def _pair_rows(length: int, columns: int):
  """Block of all rows of an example and the columns of two heads."""
  return pl.BlockSpec((None, length, columns), lambda b, p, *_: (b, 0, p))


def _per_pair(*block: int):
  return pl.BlockSpec((None, None, *block), lambda b, p, *_: (b, p, 0, 0))


def _cost(shape: tuple[int, ...], products: int, arrays: int) -> pl.CostEstimate:
  """Of products of keys x queries x head_dim, and of reading or writing arrays of the context's size."""
  batch, length, heads, _, head_dim = shape
  pairs = batch * heads * length * length
  return pl.CostEstimate(flops=2 * products * pairs * head_dim, transcendentals=pairs,
                         bytes_accessed=2 * arrays * batch * length * heads * head_dim)


def _head_seeds(seeds, batch: int, heads: int, num_heads: int):
  """Two seeds for each example and head of this device, int32 [batch * heads * 2]; see `triton_attention`."""
  examples = seeds[2] + jnp.arange(batch, dtype=jnp.uint32)
  places = seeds[3] + jnp.arange(heads, dtype=jnp.uint32)
  own = dropout.child_seeds((seeds[0], seeds[1]), examples[:, None] * np.uint32(num_heads) + places)
  return jax.lax.bitcast_convert_type(jnp.stack(own, axis=-1), jnp.int32).reshape(-1)


def _pair_seeds(seeds_ref):
  """Those of the two heads of this program."""
  first = 4 * (pl.program_id(0) * pl.num_programs(1) + pl.program_id(1))
  words = [seeds_ref[first + index].astype(jnp.uint32) for index in range(4)]
  return words[:2], words[2:]


def _key_words(keys: int):
  """The part of `dropout.pair_words` that keys have of their own: uint32 [keys / 2, queries of a block]."""
  return jax.lax.broadcasted_iota(jnp.int32, (keys // 2, LANES), 0).astype(jnp.uint32) * dropout.COLUMN_STEP


def _keep(seeds, first_query, key_words, rate: float):
  """True where a pair stays, [keys, queries of a block]: `dropout.keep_pairs`, turned around.

  A word serves two keys that are eight rows apart, hence two whole registers.
  """
  queries = (first_query + jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)).astype(jnp.uint32)
  query_seeds = dropout.bits(seeds, dropout.pair_groups(queries))  # [1, queries]
  kept = dropout.kept_bytes(dropout.pair_words(query_seeds + key_words, query_seeds), rate).reshape(-1, 8, LANES)
  query_bit = (queries >> np.uint32(3)) & np.uint32(1)
  highest = [np.uint32(0x80) << (np.uint32(8) * dropout.pair_byte(query_bit, np.uint32(bit))) for bit in range(2)]
  kept = jnp.stack([(kept & mask[None]).astype(jnp.int32) for mask in highest], axis=1)  # [groups, 2, 8, queries]
  return kept.reshape(-1, LANES) != 0


def _dot(a, b, contract: tuple[int, int]):
  return jax.lax.dot_general(a, b, (((contract[0],), (contract[1],)), ((), ())), preferred_element_type=jnp.float32)


def _half(x, head: int, spare=0.0):
  """The 64 columns of a head's half of [rows, 128]; `spare` in the first of the others, zeros in the rest."""
  column = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
  first = head * HEAD_DIM
  is_own = (column >= first) & (column < first + HEAD_DIM)
  return jnp.where(is_own, x, jnp.where(column == HEAD_DIM - first, spare, 0.0))


def _load(product_ref, length, query_ref, key_ref):
  """[q0 k0], [v0 q1] and [k1 v1] in float32, each with its halves swapped; fills what the scores are products of.

  A spare column, 1 beside a query and `HIDDEN_SCORE` beside a key that is padding, hides the padding for nothing.
  """
  own = [product_ref[:, start:start + LANES].astype(jnp.float32) for start in range(0, PAIR, LANES)]
  swapped = [pltpu.roll(x, HEAD_DIM, 1) for x in own]
  hidden = jnp.where(jax.lax.broadcasted_iota(jnp.int32, own[0].shape, 0) < length, 0.0, HIDDEN_SCORE)
  for head in range(2):
    query_ref[head] = _half(own[head], head, 1.0).astype(query_ref.dtype)
    key_ref[head] = _half(swapped[2 * head], head, hidden).astype(key_ref.dtype)
  return own, swapped


def _scores(keys, queries):
  """Scores in units of log 2, [keys, queries]."""
  return _dot(keys, queries, (1, 1)) * np.float32(LOG2_E / math.sqrt(HEAD_DIM))


@functools.partial(jax.jit, static_argnames=("num_heads", "rate", "interpret"))
def forward(seeds, lengths, product, bias, *, num_heads: int, rate: float, interpret: bool):
  """See `triton_attention.forward`; the product has its bias already."""
  del bias
  batch, length, heads, _, _ = product.shape
  halves = pltpu.VMEM((2, length, LANES), product.dtype)
  context, log_sums = pl.pallas_call(
    functools.partial(_forward_kernel, rate=rate),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=2, grid=(batch, heads // 2), in_specs=[_pair_rows(length, PAIR)],
      out_specs=[_pair_rows(length, LANES), _per_pair(2, length)],
      scratch_shapes=[halves, halves, pltpu.VMEM((2, LANES, length), product.dtype),
                      pltpu.VMEM((length // 2, LANES), jnp.uint32)]),
    out_shape=[jax.ShapeDtypeStruct((batch, length, heads * HEAD_DIM), product.dtype),
               jax.ShapeDtypeStruct((batch, heads // 2, 2, length), jnp.float32)],
    compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    cost_estimate=_cost(product.shape, 2, 4), interpret=interpret, name="attention_forward",
  )(_head_seeds(seeds, batch, heads, num_heads), lengths, product.reshape(batch, length, -1))
  return context.reshape(batch, length, heads, HEAD_DIM), log_sums.reshape(batch, heads, length)


def _forward_kernel(seeds_ref, lengths_ref, product_ref, context_ref, log_sums_ref, query_ref, key_ref, value_ref,
                    words_ref, *, rate):
  length, dtype = product_ref.shape[0], product_ref.dtype
  seeds = _pair_seeds(seeds_ref)
  own, _ = _load(product_ref, jnp.maximum(lengths_ref[pl.program_id(0)], 1), query_ref, key_ref)
  for head in range(2):
    value_ref[head] = _half(own[head + 1], head).T.astype(dtype)
  if rate:
    words_ref[...] = _key_words(length)

  @pl.loop(0, length // LANES)
  def _(index):
    rows = pl.ds(pl.multiple_of(index * LANES, LANES), LANES)
    context = jnp.zeros((LANES, LANES), jnp.float32)  # [columns of both heads, queries]
    for head in range(2):
      scores = _scores(key_ref[head], query_ref[head, rows])
      highest = scores.max(0, keepdims=True)
      weights = jnp.exp2(scores - highest)
      denominator = weights.sum(0, keepdims=True)
      if rate:
        weights = jnp.where(_keep(seeds[head], index * LANES, words_ref[...], rate), weights, 0.0)
      added = _dot(value_ref[head], weights.astype(dtype), (1, 0))
      context = context + added / (denominator * np.float32(1 - rate))
      log_sums_ref[pl.ds(head, 1), rows] = highest + jnp.log2(denominator)
    context_ref[rows, :] = context.T.astype(dtype)


@functools.partial(jax.jit, static_argnames=("num_heads", "rate", "interpret"))
def backward(seeds, lengths, product, bias, context, log_sums, gradient, *, num_heads: int, rate: float,
             interpret: bool):
  """See `triton_attention.backward`."""
  del bias
  batch, length, heads, _, _ = product.shape
  halves = pltpu.VMEM((2, length, LANES), product.dtype)
  d_product, sums = pl.pallas_call(
    functools.partial(_backward_kernel, rate=rate),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=2, grid=(batch, heads // 2),
      in_specs=[_pair_rows(length, PAIR), _pair_rows(length, LANES), _pair_rows(length, LANES), _per_pair(2, length)],
      out_specs=[_pair_rows(length, PAIR), _per_pair(1, PAIR)],
      scratch_shapes=[halves, halves, halves, halves, pltpu.VMEM((2, LANES, length), product.dtype),
                      pltpu.VMEM((length // 2, LANES), jnp.uint32), pltpu.VMEM((3, length, LANES), jnp.float32)]),
    out_shape=[jax.ShapeDtypeStruct((batch, length, heads * 3 * HEAD_DIM), product.dtype),
               jax.ShapeDtypeStruct((batch, heads // 2, 1, PAIR), jnp.float32)],
    compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    cost_estimate=_cost(product.shape, 5, 8), interpret=interpret, name="attention_backward",
  )(_head_seeds(seeds, batch, heads, num_heads), lengths, product.reshape(batch, length, -1),
    context.reshape(batch, length, -1), gradient.reshape(batch, length, -1),
    log_sums.reshape(batch, heads // 2, 2, length))
  return d_product.reshape(product.shape), sums.reshape(batch, 1, heads, 3, HEAD_DIM)


def _backward_kernel(seeds_ref, lengths_ref, product_ref, context_ref, gradient_ref, log_sums_ref, d_product_ref,
                     sums_ref, query_ref, key_ref, swapped_query_ref, value_ref, key_columns_ref, words_ref, total_ref,
                     *, rate):
  """The gradients of both heads grow where they belong: the zeros beside each head's columns keep them apart.

  The scale of the scores, a power of two, is in their other factors; that of the dropout is applied in the end.
  """
  length, dtype = product_ref.shape[0], product_ref.dtype
  seeds = _pair_seeds(seeds_ref)
  own, swapped = _load(product_ref, jnp.maximum(lengths_ref[pl.program_id(0)], 1), query_ref, key_ref)
  scale = np.float32(1 / math.sqrt(HEAD_DIM))
  for head in range(2):
    swapped_query_ref[head] = (_half(swapped[head], 1 - head) * scale).astype(dtype)
    value_ref[head] = own[head + 1].astype(dtype)
    key_columns_ref[head] = (_half(swapped[2 * head], head) * scale).T.astype(dtype)
  if rate:
    words_ref[...] = _key_words(length)
  total_ref[...] = jnp.zeros(total_ref.shape, jnp.float32)

  blocks = length // LANES

  @pl.loop(0, blocks, unroll=2 - blocks % 2)  # the products of one block beside the rest of the other
  def _(index):
    rows = pl.ds(pl.multiple_of(index * LANES, LANES), LANES)
    gradient = gradient_ref[rows, :].astype(jnp.float32)
    products = (gradient * context_ref[rows, :].astype(jnp.float32) * np.float32(1 - rate)).T  # [columns, queries]
    for head in range(2):
      of_head = _half(gradient, head).astype(dtype)
      weights = jnp.exp2(_scores(key_ref[head], query_ref[head, rows]) - log_sums_ref[pl.ds(head, 1), rows])
      d_weights, dropped = _dot(value_ref[head], of_head, (1, 1)), weights
      if rate:
        keep = _keep(seeds[head], index * LANES, words_ref[...], rate)
        dropped, d_weights = jnp.where(keep, weights, 0.0), jnp.where(keep, d_weights, 0.0)
      dots = products[head * HEAD_DIM:(head + 1) * HEAD_DIM].sum(0, keepdims=True)
      d_scores = (weights * (d_weights - dots)).astype(dtype)
      d_value = _dot(dropped.astype(dtype), of_head, (1, 0))
      d_key = _dot(d_scores, swapped_query_ref[head, rows], (1, 0))
      d_query = _dot(key_columns_ref[head], d_scores, (1, 0)).T
      if head == 0:
        total_ref[0] += d_key
        total_ref[1] += d_value
      else:
        total_ref[2] += d_key + d_value
      total_ref[head, rows] += d_query

  for part in range(3):
    columns = slice(part * LANES, (part + 1) * LANES)
    total = total_ref[part] * np.float32(1 / (1 - rate))
    d_product_ref[:, columns] = total.astype(dtype)
    sums_ref[:, columns] = total.sum(0, keepdims=True)
