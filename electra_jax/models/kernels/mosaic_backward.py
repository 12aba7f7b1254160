"""Backward pass of attention on Hopper, in five products: one pass over the keys, without atomic additions.

A program takes a head of an example. Two warpgroups have 64 keys each at a time, with the gradients of these keys and
values in registers, and go over all queries. What the scores' gradients give to the queries a third warpgroup adds up,
in float32 in shared memory, in the same order each time; a fourth loads. Heads of 128 leave no registers and no memory
for that: the two add up half of the queries' columns each, in device memory.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from electra_jax.models import dropout
from electra_jax.models.kernels import mosaic_parts as parts
from electra_jax.models.kernels import mosaic_queries, mosaic_sums
from electra_jax.models.kernels.mosaic_parts import HIDDEN_SCORE, LOG2_E, PER_COLUMN, PER_ROW, ROWS_OF_TILE, TILE
from electra_jax.models.kernels.mosaic_queries import COLUMNS, KEYS, PARTS, REGISTERS, Refs, Work


def backward(seeds: Array, lengths: Array, product: Array, log_sums: Array, dots: Array, gradient: Array, *,
             num_heads: int, rate: float, interpret: bool):
  """(gradient of the product, its sum over batch and length: float32 [heads, 3, head_dim]).

  `dots`: of each row of the context with its gradient, float32 [batch, heads, length].
  """
  batch, length, heads, _, head_dim = product.shape
  is_short, is_wide = length <= 256, head_dim > COLUMNS  # short: there is room for the next keys, and needed soon
  stages = 2 + (not is_short if is_wide else length == 128)
  key_stages = 2 if is_short else 1
  programs = min(batch * heads, parts.multiprocessors()) if is_short or is_wide else batch * heads
  work = Work(batch, length, heads, head_dim, num_heads, rate, product.dtype, stages, key_stages,
              1 if is_wide else key_stages, programs, interpret)
  tile, block = functools.partial(parts.shared, dtype=work.dtype), (ROWS_OF_TILE, head_dim)
  column_parts = head_dim // COLUMNS
  d_query = (work.query_blocks * column_parts, ROWS_OF_TILE, COLUMNS)
  users = 2 if is_wide else 3  # warpgroups, of the keys
  out, sums, *_ = parts.call(
    functools.partial(_kernel, work), interpret,
    out_type=[jax.ShapeDtypeStruct((batch * length, heads * 3 * head_dim), work.dtype),
              jax.ShapeDtypeStruct((batch * heads * PARTS * mosaic_sums.WARPS * head_dim,), jnp.float32),
              *[jax.ShapeDtypeStruct((programs, *d_query), jnp.float32)] * is_wide],
    scratch_types=[*[tile((stages, *block))] * 2,
                   *[plgpu.SMEM((stages * column_parts, ROWS_OF_TILE), jnp.float32)] * (2 // column_parts),
                   *[tile((key_stages, 2, *block))] * 2, tile((work.score_stages, 2, ROWS_OF_TILE, ROWS_OF_TILE)),
                   *[parts.shared(d_query, jnp.float32)] * (not is_wide), tile((column_parts, *d_query[1:])),
                   plgpu.SMEM((2, length // 2), jnp.uint32),
                   parts.barriers(stages, 4), parts.barriers(stages, 2),
                   parts.barriers(key_stages, 2), parts.barriers(key_stages, users),
                   parts.barriers(key_stages, 2), parts.barriers(key_stages, 2),
                   parts.barriers(work.score_stages, 2), parts.barriers(work.score_stages, column_parts),
                   parts.barriers(2), parts.barriers(2, 2)],
    grid=(programs,), grid_names=("program",), num_threads=users + 1,
  )(seeds, lengths, product.reshape(batch * length, -1), log_sums.reshape(-1), dots.reshape(-1),
    gradient.reshape(batch * length, -1))
  sums = sums.reshape(batch, heads, PARTS, column_parts, -1, COLUMNS).sum((0, 4)).reshape(heads, PARTS, head_dim)
  sums = jnp.stack([sums[:, 0], sums[:, 1] + sums[:, 2], sums[:, 3] + sums[:, 4]], axis=1)
  return out.reshape(product.shape), sums


def _kernel(work: Work, *refs):
  refs = mosaic_queries.refs_of(work, refs)
  group, none_yet = lax.axis_index("warpgroup"), (jnp.int32(0), jnp.int32(0))  # blocks of queries, of keys

  @pl.when(group == (2 if work.is_wide else 3))
  def _():
    plgpu.set_max_registers(REGISTERS["loads"], action="decrease")
    steps, key_steps = lax.fori_loop(0, work.own_items(), functools.partial(_load, work, refs), none_yet)
    parts.wait_until_free(refs.query_free, range(work.stages), steps)
    for free in (refs.key_free, refs.value_free):
      parts.wait_until_free(free, range(work.key_stages), key_steps)
    if work.is_wide and work.rate:
      parts.wait_until_free(refs.row_seeds_free, range(2), work.own_items())

  def queries():
    plgpu.set_max_registers(REGISTERS["queries"], action="decrease")
    if work.rate:
      mosaic_queries.hash_rows(work, refs, jnp.int32(0))
    lax.fori_loop(0, work.own_items(), functools.partial(mosaic_queries.add_up, work, refs), none_yet)
    if work.rate:
      parts.wait_until_free(refs.row_seeds_free, range(2), work.own_items())
    plgpu.wait_smem_to_gmem(0)
  if not work.is_wide:
    pl.when(group == 2)(queries)

  @pl.when(group < 2)
  def _():
    plgpu.set_max_registers(REGISTERS["wide keys" if work.is_wide else "keys"], action="increase")
    steps, _ = lax.fori_loop(0, work.own_items(), functools.partial(_differentiate, work, refs), none_yet)
    parts.wait_until_free(refs.d_scores_free, range(work.score_stages), steps)
    plgpu.wait_smem_to_gmem(0)


def _load(work: Work, refs: Refs, index, steps):
  """All queries for each block of real keys."""
  example, head, real = work.place(index, refs.lengths)
  if work.is_wide and work.rate:
    mosaic_queries.hash_rows(work, refs, index)

  def query_block(block, step):
    slot = lax.rem(step, work.stages)

    @pl.when(step >= work.stages)
    def _():
      plgpu.barrier_wait(refs.query_free.at[slot])
    rows, columns = work.slices(example, head, 0, block * ROWS_OF_TILE)
    statistics = pl.ds((example * work.heads + head) * work.length + block * ROWS_OF_TILE, ROWS_OF_TILE)
    for source, target in ((refs.product.at[rows, columns], refs.query),
                           (refs.gradient.at[rows, pl.ds(head * work.head_dim, work.head_dim)], refs.d_context),
                           (refs.log_sums.at[statistics], refs.query_log_sums),
                           (refs.dots.at[statistics], refs.query_dots)):
      plgpu.copy_gmem_to_smem(source, target.at[slot], refs.query_full.at[slot])
    return step + 1

  def key_block(block, steps):
    step, key_step = steps
    slot = lax.rem(key_step, work.key_stages)
    for which, target, is_full, is_free in ((1, refs.key, refs.key_full, refs.key_free),
                                            (2, refs.value, refs.value_full, refs.value_free)):
      @pl.when(key_step >= work.key_stages)
      def _(is_free=is_free):
        plgpu.barrier_wait(is_free.at[slot])
      for half in range(2):
        source = refs.product.at[work.slices(example, head, which, block * KEYS + half * ROWS_OF_TILE)]
        plgpu.copy_gmem_to_smem(source, target.at[slot, half], is_full.at[slot])
    return lax.fori_loop(0, work.query_blocks, query_block, step), key_step + 1
  return lax.fori_loop(0, pl.cdiv(real, KEYS), key_block, steps)


def _differentiate(work: Work, refs: Refs, index, steps):
  """The gradients of 64 keys and values of every block, of padding zeros."""
  example, head, real = work.place(index, refs.lengths)
  key_blocks, group, seeds_slot = pl.cdiv(real, KEYS), lax.axis_index("warpgroup"), lax.rem(index, 2)
  zeros = parts.full((ROWS_OF_TILE, work.head_dim), 0, TILE, work.interpret)
  if work.rate:
    plgpu.barrier_wait(refs.row_seeds_full.at[seeds_slot])

  def store(d_key, d_value, block, slot):
    """By way of the values' place, which nothing else reads any more."""
    for which, gradient in ((1, d_key), (2, d_value)):
      refs.value[slot, group] = gradient.astype(work.dtype)
      plgpu.commit_smem()
      target = refs.out.at[work.slices(example, head, which, block * KEYS + group * ROWS_OF_TILE)]
      plgpu.copy_smem_to_gmem(refs.value.at[slot, group], target)
      plgpu.wait_smem_to_gmem(0, wait_read_only=True)

  def key_block(block, carry):
    step, key_step, query_sums, key_sums, value_sums = carry
    slot = lax.rem(key_step, work.key_stages)
    plgpu.barrier_wait(refs.key_full.at[slot])
    plgpu.barrier_wait(refs.value_full.at[slot])
    key_rows = _key_rows(work, block * KEYS + group * ROWS_OF_TILE, real)
    add_to = functools.partial(mosaic_queries.add_to_block, work, refs, (example, head), slot, (block, key_blocks),
                               group)
    query_block = functools.partial(_query_block, work, refs, slot, seeds_slot, key_rows, add_to)
    d_key, d_value, step, query_sums = lax.fori_loop(0, work.query_blocks, query_block,
                                                     (zeros, zeros, step, query_sums))
    plgpu.barrier_arrive(refs.key_free.at[slot])
    d_key, d_value = d_key * work.score_factor, d_value * work.weight_factor
    key_sums, value_sums = (sums + mosaic_sums.of_tile(x, work.interpret)
                            for sums, x in ((key_sums, d_key), (value_sums, d_value)))
    store(d_key, d_value, block, slot)

    @pl.when(block + 1 == key_blocks)
    def _():
      lax.fori_loop(key_blocks, work.length // KEYS, lambda padding, _: store(zeros, zeros, padding, slot), None)
    plgpu.barrier_arrive(refs.value_free.at[slot])
    return step, key_step + 1, query_sums, key_sums, value_sums

  none = mosaic_sums.zeros(work.head_dim, work.interpret)
  no_queries = mosaic_sums.zeros(COLUMNS, work.interpret) if work.is_wide else None
  *steps, query_sums, key_sums, value_sums = lax.fori_loop(0, key_blocks, key_block, (*steps, no_queries, none, none))
  if work.is_wide:
    work.store_sums(refs, example, head, group, query_sums * work.score_factor)
  work.store_sums(refs, example, head, 1 + group, key_sums)
  work.store_sums(refs, example, head, 3 + group, value_sums)
  if work.rate:
    plgpu.barrier_arrive(refs.row_seeds_free.at[seeds_slot])
  return tuple(steps)


class KeyRows(NamedTuple):
  """What there is to know of the 64 keys of a warpgroup."""
  is_real: Any  # [64]
  has_padding: Any
  column_steps: Any  # of dropout: COLUMN_STEP times the group of each key


def _key_rows(work: Work, first_key, real) -> KeyRows:
  row = parts.iota((ROWS_OF_TILE,), 0, PER_ROW, work.interpret)
  group = dropout.pair_groups(row) + lax.div(first_key, 2).astype(jnp.uint32)
  return KeyRows(row.astype(jnp.int32) + first_key < real, first_key + ROWS_OF_TILE > real,
                 group * dropout.COLUMN_STEP)


def _query_block(work: Work, refs: Refs, keys_slot, seeds_slot, key_rows: KeyRows, add_to, block, carry):
  """Adds to the gradients of this warpgroup's keys and values what a block of queries gives them.

  Scores and weights have keys as rows, so that they can stay in registers for the products with the queries.
  """
  d_key, d_value, step, query_sums = carry
  group, slot, d_scores_slot = (lax.axis_index("warpgroup"), lax.rem(step, work.stages),
                                lax.rem(step, work.score_stages))
  query, d_context, interpret = refs.query.at[slot], refs.d_context.at[slot], work.interpret
  shape = (ROWS_OF_TILE, ROWS_OF_TILE)

  def per_query(ref):
    return parts.along_columns(parts.load(ref.at[slot], PER_COLUMN, interpret), shape)

  def products(d_keys, d_values, scores, d_weights):
    if work.is_wide:  # there are no registers for a branch below
      scores.start_at(parts.along_rows(jnp.where(key_rows.is_real, 0.0, HIDDEN_SCORE), shape))
    scores.add(refs.key.at[keys_slot, group], query, transpose_b=True)
    d_weights.add(refs.value.at[keys_slot, group], d_context, transpose_b=True)
    log_sums = per_query(refs.query_log_sums)
    kept = _kept(work, refs, seeds_slot, key_rows, block) if work.rate else None
    weights = jnp.exp2(scores.value(unfinished=1) * np.float32(work.scale * LOG2_E) - log_sums)
    drop = (lambda x: parts.drop(x, kept, True, interpret)) if work.rate else lambda x: x
    # 1 / (1 - rate) of the dropped weights waits for the end; so the other term has its inverse
    if work.is_wide:  # the order with the fewest arrays at a time
      dots = per_query(refs.query_dots) * np.float32(1 - work.rate)
      # A product by itself must not be masked: ptxas takes its bits for those of the zeros that it starts from.
      d_scores = (drop(weights * d_weights.value()) - weights * dots).astype(work.dtype)
      d_values.start_at(d_value)
      d_values.add(drop(weights.astype(work.dtype)), d_context)
    else:
      weights = lax.cond(key_rows.has_padding, lambda x: jnp.where(parts.along_rows(key_rows.is_real, shape), x, 0.0),
                         lambda x: x, weights)
      dropped = drop(weights)
      d_values.start_at(d_value)
      d_values.add(dropped.astype(work.dtype), d_context)
      dots = per_query(refs.query_dots) * np.float32(1 - work.rate)
      d_scores = (dropped * d_weights.value(unfinished=1) - weights * dots).astype(work.dtype)
    d_keys.start_at(d_key)
    d_keys.add(d_scores, query)

    @pl.when(step >= work.score_stages)
    def _():
      plgpu.barrier_wait(refs.d_scores_free.at[d_scores_slot])
    refs.d_scores[d_scores_slot, group] = d_scores
    plgpu.commit_smem()
    plgpu.barrier_arrive(refs.d_scores_full.at[d_scores_slot])
    sums = add_to(block, step, query_sums) if work.is_wide else None
    return d_keys.value(), d_values.value(), sums

  plgpu.barrier_wait(refs.query_full.at[slot])
  wide = (ROWS_OF_TILE, work.head_dim)
  d_key, d_value, query_sums = parts.with_sums(products, wide, wide, shape, shape, interpret=interpret)
  plgpu.barrier_arrive(refs.query_free.at[slot])
  return d_key, d_value, step + 1, query_sums


def _kept(work: Work, refs: Refs, seeds_slot, key_rows: KeyRows, block):
  """`dropout.kept_bytes` of this warpgroup's keys and of block `block` of the queries."""
  groups = ROWS_OF_TILE // 2
  shape = (ROWS_OF_TILE, groups)
  row_seeds = parts.along_columns(
    parts.load(refs.row_seeds.at[seeds_slot, pl.ds(block * groups, groups)], PER_COLUMN, work.interpret), shape)
  words = dropout.pair_words(row_seeds + parts.along_rows(key_rows.column_steps, shape), row_seeds)
  return dropout.kept_bytes(words, work.rate)
