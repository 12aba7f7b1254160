"""Backward pass of attention on Hopper, in five products: one pass over the keys, without atomic additions.

A program takes a head of an example. Two warpgroups have 64 keys each at a time, with the gradients of these keys and
values in registers, and go over all queries. What the scores' gradients give to the queries a third warpgroup adds up,
in float32 in shared memory, in the same order each time; a fourth loads.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import ArrayLike

from electra_jax.models import dropout
from electra_jax.models.kernels import mosaic_parts as parts
from electra_jax.models.kernels import mosaic_sums
from electra_jax.models.kernels.mosaic_parts import LOG2_E, PER_COLUMN, PER_ROW, ROWS_OF_TILE, TILE

KEYS = 2 * ROWS_OF_TILE  # of a block
PARTS = 5  # of an item's sums: queries, keys of two warpgroups, values of two
REGISTERS = {"keys": 208, "queries": 64, "loads": 24}  # of a thread


class Work(NamedTuple):
  """What all warpgroups know: sizes, and how the work is cut."""
  batch: int
  length: int
  heads: int
  head_dim: int
  num_heads: int  # of all devices
  rate: float
  dtype: Any
  stages: int  # blocks of 64 queries in shared memory
  key_stages: int  # blocks of keys and values
  programs: int
  interpret: bool

  @property
  def query_blocks(self) -> int:
    return self.length // ROWS_OF_TILE

  @property
  def scale(self) -> float:
    return 1 / math.sqrt(self.head_dim)

  @property
  def weight_factor(self) -> np.float32:
    """Of the gradient of the values: what is kept of the weights counts for what is dropped, too."""
    return np.float32(1 / (1 - self.rate))

  @property
  def score_factor(self) -> np.float32:
    """Of the gradients of queries and keys."""
    return np.float32(self.scale / (1 - self.rate))

  def store_sums(self, refs: "Refs", example: Array, head: Array, part: ArrayLike, sums: Array):
    """Of an item, see PARTS."""
    mosaic_sums.store(refs.sums, (example * self.heads + head) * PARTS + part, sums, self.interpret)

  def place(self, index: ArrayLike, lengths_ref: Any):
    """(example, head, real keys) of this program's item number `index`."""
    item = parts.own_item(index, self.programs)
    example = lax.div(item, self.heads)
    return example, lax.rem(item, self.heads), jnp.maximum(lengths_ref[example], 1)

  def own_items(self):
    """How many items this program has."""
    return parts.count_own_items(self.batch * self.heads, self.programs)

  def slices(self, example: Array, head: Array, which: int, first_row: ArrayLike, num_rows: int = ROWS_OF_TILE):
    """Rows of queries (0), keys (1) or values (2) in the product."""
    return (pl.ds(example * self.length + first_row, num_rows),
            pl.ds((head * 3 + which) * self.head_dim, self.head_dim))


class Refs(NamedTuple):
  """Arguments of the kernel: inputs and outputs in device memory, shared memory, barriers."""
  seeds: Any
  lengths: Any
  product: Any  # [batch * length, heads * 3 * head_dim]
  log_sums: Any
  dots: Any
  gradient: Any
  out: Any
  sums: Any  # of the columns of `out`, of each item PARTS times 4 warps
  query: Any  # from here in shared memory
  d_context: Any
  query_log_sums: Any
  query_dots: Any
  key: Any
  value: Any
  d_scores: Any
  d_query: Any
  d_query_half: Any  # in 16 bits, on its way out
  row_seeds: Any
  query_full: Any
  query_free: Any
  key_full: Any
  key_free: Any
  value_full: Any
  value_free: Any
  d_scores_full: Any
  d_scores_free: Any
  row_seeds_full: Any
  row_seeds_free: Any


def backward(seeds: Array, lengths: Array, product: Array, log_sums: Array, dots: Array, gradient: Array, *,
             num_heads: int, rate: float, interpret: bool):
  """(gradient of the product, its sum over batch and length: float32 [heads, 3, head_dim]).

  `dots`: of each row of the context with its gradient, float32 [batch, heads, length].
  """
  batch, length, heads, _, head_dim = product.shape
  is_short = length <= 256  # there is room for the next keys, and they are needed soon
  work = Work(batch, length, heads, head_dim, num_heads, rate, product.dtype, 3 if length == 128 else 2,
              2 if is_short else 1, min(batch * heads, parts.multiprocessors()) if is_short else batch * heads,
              interpret)
  tile = functools.partial(parts.shared, dtype=work.dtype)
  stages, key_stages, block = work.stages, work.key_stages, (ROWS_OF_TILE, head_dim)
  out, sums = parts.call(
    functools.partial(_kernel, work), interpret,
    out_type=[jax.ShapeDtypeStruct((batch * length, heads * 3 * head_dim), work.dtype),
              jax.ShapeDtypeStruct((batch * heads * PARTS * mosaic_sums.SIZE,), jnp.float32)],
    scratch_types=[*[tile((stages, *block))] * 2, *[plgpu.SMEM((stages, ROWS_OF_TILE), jnp.float32)] * 2,
                   *[tile((key_stages, 2, *block))] * 2, tile((key_stages, 2, ROWS_OF_TILE, ROWS_OF_TILE)),
                   parts.shared((work.query_blocks, *block), jnp.float32), tile(block),
                   plgpu.SMEM((2, length // 2), jnp.uint32),
                   parts.barriers(stages, 4), parts.barriers(stages, 2),
                   parts.barriers(key_stages, 2), parts.barriers(key_stages, 3),
                   parts.barriers(key_stages, 2), parts.barriers(key_stages, 2),
                   parts.barriers(key_stages, 2), parts.barriers(key_stages), parts.barriers(2), parts.barriers(2, 2)],
    grid=(work.programs,), grid_names=("program",), num_threads=4,
  )(seeds, lengths, product.reshape(batch * length, -1), log_sums.reshape(-1), dots.reshape(-1),
    gradient.reshape(batch * length, -1))
  sums = sums.reshape(batch, heads, PARTS, -1, head_dim).sum((0, 3))  # [heads, parts, head_dim]
  sums = jnp.stack([sums[:, 0], sums[:, 1] + sums[:, 2], sums[:, 3] + sums[:, 4]], axis=1)
  return out.reshape(product.shape), sums


def _kernel(work: Work, *refs):
  refs = Refs(*refs)
  group, none_yet = lax.axis_index("warpgroup"), (jnp.int32(0), jnp.int32(0))  # blocks of queries, of keys

  @pl.when(group == 3)
  def _():
    plgpu.set_max_registers(REGISTERS["loads"], action="decrease")
    steps, key_steps = lax.fori_loop(0, work.own_items(), functools.partial(_load, work, refs), none_yet)
    parts.wait_until_free(refs.query_free, range(work.stages), steps)
    for free in (refs.key_free, refs.value_free):
      parts.wait_until_free(free, range(work.key_stages), key_steps)

  @pl.when(group == 2)
  def _():
    plgpu.set_max_registers(REGISTERS["queries"], action="decrease")
    if work.rate:
      _hash_rows(work, refs, jnp.int32(0))
    lax.fori_loop(0, work.own_items(), functools.partial(_add_up_queries, work, refs), none_yet)
    if work.rate:
      parts.wait_until_free(refs.row_seeds_free, range(2), work.own_items())
    plgpu.wait_smem_to_gmem(0)

  @pl.when(group < 2)
  def _():
    plgpu.set_max_registers(REGISTERS["keys"], action="increase")
    steps, _ = lax.fori_loop(0, work.own_items(), functools.partial(_differentiate, work, refs), none_yet)
    parts.wait_until_free(refs.d_scores_free, range(work.key_stages), steps)
    plgpu.wait_smem_to_gmem(0)


def _load(work: Work, refs: Refs, index, steps):
  """All queries for each block of real keys."""
  example, head, real = work.place(index, refs.lengths)

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


def _hash_rows(work: Work, refs: Refs, index):
  """What the words of dropout start from, of all queries of an item."""
  example, head, _ = work.place(index, refs.lengths)
  slot = lax.rem(index, 2)

  @pl.when(index >= 2)
  def _():
    plgpu.barrier_wait(refs.row_seeds_free.at[slot])
  seeds = parts.head_seeds(refs.seeds, example, head, work.num_heads)
  for first in range(0, work.length // 2, ROWS_OF_TILE):
    row = parts.iota((ROWS_OF_TILE,), 0, PER_ROW, work.interpret) + np.uint32(first)
    refs.row_seeds[slot, first:first + ROWS_OF_TILE] = dropout.bits(seeds, row)
  plgpu.barrier_arrive(refs.row_seeds_full.at[slot])


def _add_up_queries(work: Work, refs: Refs, index, steps):
  """The gradient of the queries: of each block a sum over the blocks of keys."""
  example, head, real = work.place(index, refs.lengths)
  key_blocks = pl.cdiv(real, KEYS)
  if work.rate:
    pl.when(index + 1 < work.own_items())(lambda: _hash_rows(work, refs, index + 1))

  def query_block(keys_slot, key_block, block, carry):
    step, sums = carry
    slot = lax.rem(step, work.key_stages)

    def product(d_query):
      for half in range(2):
        d_query.add(refs.d_scores.at[slot, half], refs.key.at[keys_slot, half], transpose_a=True)
      return d_query.value()
    plgpu.barrier_wait(refs.d_scores_full.at[slot])
    d_query = parts.with_sums(product, (ROWS_OF_TILE, work.head_dim), interpret=work.interpret)
    plgpu.barrier_arrive(refs.d_scores_free.at[slot])
    d_query = lax.cond(key_block > 0, lambda x: x + parts.load(refs.d_query.at[block], TILE, work.interpret),
                       lambda x: x, d_query)

    @pl.when(key_block + 1 < key_blocks)
    def _():
      refs.d_query[block] = d_query

    is_last = key_block + 1 == key_blocks
    sums = lax.cond(is_last, lambda x: x + mosaic_sums.of_tile(d_query, work.interpret), lambda x: x, sums)

    @pl.when(is_last)
    def _():
      plgpu.wait_smem_to_gmem(0, wait_read_only=True)
      refs.d_query_half[...] = (d_query * work.score_factor).astype(work.dtype)
      plgpu.commit_smem()
      plgpu.copy_smem_to_gmem(refs.d_query_half, refs.out.at[work.slices(example, head, 0, block * ROWS_OF_TILE)])
    return step + 1, sums

  def one_key_block(block, carry):
    step, key_step, sums = carry
    slot = lax.rem(key_step, work.key_stages)
    plgpu.barrier_wait(refs.key_full.at[slot])
    step, sums = lax.fori_loop(0, work.query_blocks, functools.partial(query_block, slot, block), (step, sums))
    plgpu.barrier_arrive(refs.key_free.at[slot])
    return step, key_step + 1, sums
  *steps, sums = lax.fori_loop(0, key_blocks, one_key_block, (*steps, mosaic_sums.zeros(work.interpret)))
  work.store_sums(refs, example, head, 0, sums * work.score_factor)
  return tuple(steps)


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
    step, key_step, key_sums, value_sums = carry
    slot = lax.rem(key_step, work.key_stages)
    plgpu.barrier_wait(refs.key_full.at[slot])
    plgpu.barrier_wait(refs.value_full.at[slot])
    key_rows = _key_rows(work, block * KEYS + group * ROWS_OF_TILE, real)
    query_block = functools.partial(_query_block, work, refs, slot, seeds_slot, key_rows)
    d_key, d_value, step = lax.fori_loop(0, work.query_blocks, query_block, (zeros, zeros, step))
    plgpu.barrier_arrive(refs.key_free.at[slot])
    d_key, d_value = d_key * work.score_factor, d_value * work.weight_factor
    key_sums, value_sums = (sums + mosaic_sums.of_tile(x, work.interpret)
                            for sums, x in ((key_sums, d_key), (value_sums, d_value)))
    store(d_key, d_value, block, slot)

    @pl.when(block + 1 == key_blocks)
    def _():
      lax.fori_loop(key_blocks, work.length // KEYS, lambda padding, _: store(zeros, zeros, padding, slot), None)
    plgpu.barrier_arrive(refs.value_free.at[slot])
    return step, key_step + 1, key_sums, value_sums

  none = mosaic_sums.zeros(work.interpret)
  *steps, key_sums, value_sums = lax.fori_loop(0, key_blocks, key_block, (*steps, none, none))
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


def _query_block(work: Work, refs: Refs, keys_slot, seeds_slot, key_rows: KeyRows, block, carry):
  """Adds to the gradients of this warpgroup's keys and values what a block of queries gives them.

  Scores and weights have keys as rows, so that they can stay in registers for the products with the queries.
  """
  d_key, d_value, step = carry
  group, slot, d_scores_slot = (lax.axis_index("warpgroup"), lax.rem(step, work.stages),
                                lax.rem(step, work.key_stages))
  query, d_context, interpret = refs.query.at[slot], refs.d_context.at[slot], work.interpret
  shape = (ROWS_OF_TILE, ROWS_OF_TILE)

  def per_query(ref):
    return parts.along_columns(parts.load(ref.at[slot], PER_COLUMN, interpret), shape)

  def products(d_keys, d_values, scores, d_weights):
    scores.add(refs.key.at[keys_slot, group], query, transpose_b=True)
    d_weights.add(refs.value.at[keys_slot, group], d_context, transpose_b=True)
    log_sums = per_query(refs.query_log_sums)
    kept = _kept(work, refs, seeds_slot, key_rows, block) if work.rate else None
    weights = jnp.exp2(scores.value(unfinished=1) * np.float32(work.scale * LOG2_E) - log_sums)
    weights = lax.cond(key_rows.has_padding, lambda x: jnp.where(parts.along_rows(key_rows.is_real, shape), x, 0.0),
                       lambda x: x, weights)
    dropped = parts.drop(weights, kept, True, interpret) if work.rate else weights
    d_values.start_at(d_value)
    d_values.add(dropped.astype(work.dtype), d_context)
    # 1 / (1 - rate) of the dropped weights waits for the end; so the other term has its inverse
    dots = per_query(refs.query_dots) * np.float32(1 - work.rate)
    d_scores = (dropped * d_weights.value(unfinished=1) - weights * dots).astype(work.dtype)
    d_keys.start_at(d_key)
    d_keys.add(d_scores, query)

    @pl.when(step >= work.key_stages)
    def _():
      plgpu.barrier_wait(refs.d_scores_free.at[d_scores_slot])
    refs.d_scores[d_scores_slot, group] = d_scores
    plgpu.commit_smem()
    plgpu.barrier_arrive(refs.d_scores_full.at[d_scores_slot])
    return d_keys.value(), d_values.value()

  plgpu.barrier_wait(refs.query_full.at[slot])
  wide = (ROWS_OF_TILE, work.head_dim)
  d_key, d_value = parts.with_sums(products, wide, wide, shape, shape, interpret=interpret)
  plgpu.barrier_arrive(refs.query_free.at[slot])
  return d_key, d_value, step + 1


def _kept(work: Work, refs: Refs, seeds_slot, key_rows: KeyRows, block):
  """`dropout.kept_bytes` of this warpgroup's keys and of block `block` of the queries."""
  groups = ROWS_OF_TILE // 2
  shape = (ROWS_OF_TILE, groups)
  row_seeds = parts.along_columns(
    parts.load(refs.row_seeds.at[seeds_slot, pl.ds(block * groups, groups)], PER_COLUMN, work.interpret), shape)
  words = dropout.pair_words(row_seeds + parts.along_rows(key_rows.column_steps, shape), row_seeds)
  return dropout.kept_bytes(words, work.rate)
