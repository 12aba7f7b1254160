"""Forward pass of attention on Hopper: one warpgroup loads, two or four others take 64 queries each.

A program stays on its multiprocessor and takes one part of the queries of a head after the other, so that the loads of
the next run during the products of this one (Shah et al. 2024, "FlashAttention-3").
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
from electra_jax.models.kernels.mosaic_parts import HIDDEN_SCORE, LOG2_E, PER_ROW, ROWS_OF_TILE, TILE


class Work(NamedTuple):
  """What all warpgroups know: sizes, and how the work is cut."""
  batch: int
  length: int
  heads: int
  head_dim: int
  num_heads: int  # of all devices
  rate: float
  dtype: Any
  groups: int  # warpgroups that compute
  keys: int  # of a block
  stages: int  # blocks of keys and of values in shared memory
  programs: int
  interpret: bool

  @property
  def queries(self) -> int:
    """Of a program at a time."""
    return self.groups * ROWS_OF_TILE

  @property
  def items(self) -> int:
    return self.batch * self.heads * (self.length // self.queries)

  def place(self, index: ArrayLike, lengths_ref: Any):
    """(example, head, first query, real keys) of this program's item number `index`."""
    item = parts.own_item(index, self.programs)
    parts_of_head = self.length // self.queries
    head = lax.div(item, parts_of_head)
    example = lax.div(head, self.heads)
    return (example, lax.rem(head, self.heads), lax.rem(item, parts_of_head) * self.queries,
            jnp.maximum(lengths_ref[example], 1))

  def own_items(self):
    """How many items this program has."""
    return parts.count_own_items(self.items, self.programs)

  def columns(self, head: Array, which: int):
    """Of queries (0), keys (1) or values (2) in the product."""
    return pl.ds((head * 3 + which) * self.head_dim, self.head_dim)


class Refs(NamedTuple):
  """Arguments of the kernel: inputs and outputs in device memory, shared memory, barriers."""
  seeds: Any
  lengths: Any
  product: Any  # [batch * length, heads * 3 * head_dim]
  context: Any
  log_sums: Any
  query: Any  # in shared memory, two of each warpgroup: its next one is loaded meanwhile
  key: Any
  value: Any
  sums: Any
  query_full: Any
  query_free: Any
  key_full: Any
  key_free: Any
  value_full: Any
  value_free: Any


def forward(seeds: Array, lengths: Array, product: Array, *, num_heads: int, rate: float, interpret: bool,
            groups: int, keys: int, stages: int):
  """Context [batch, length, heads, head_dim], and log2 of each row's sum of exponentials [batch, heads, length].

  See `mosaic_attention.forward`; `groups`, `keys`, `stages` as in `Work`.
  """
  batch, length, heads, _, head_dim = product.shape
  work = Work(batch, length, heads, head_dim, num_heads, rate, product.dtype, groups, keys, stages, 0, interpret)
  work = work._replace(programs=min(work.items, parts.multiprocessors()))
  tile = functools.partial(parts.shared, dtype=work.dtype)
  context, log_sums = parts.call(
    functools.partial(_kernel, work), interpret,
    out_type=[jax.ShapeDtypeStruct((batch * length, heads * head_dim), work.dtype),
              jax.ShapeDtypeStruct((batch * heads * length,), jnp.float32)],
    scratch_types=[tile((2 * groups, ROWS_OF_TILE, head_dim)), tile((stages, keys, head_dim)),
                   tile((stages, keys, head_dim)), plgpu.SMEM((groups, ROWS_OF_TILE), jnp.float32),
                   *[parts.barriers(2 * groups)] * 2, *[parts.barriers(stages), parts.barriers(stages, groups)] * 2],
    grid=(work.programs,), grid_names=("program",), num_threads=groups + 1,
  )(seeds, lengths, product.reshape(batch * length, -1))
  return context.reshape(batch, length, heads, head_dim), log_sums.reshape(batch, heads, length)


def _kernel(work: Work, *refs):
  refs = Refs(*refs)
  pool = 65536 // (128 * (work.groups + 1)) // 8 * 8 * (work.groups + 1)  # registers of a thread of each warpgroup
  for_loads = 40 if work.groups < 4 else 24

  @pl.when(lax.axis_index("warpgroup") == work.groups)
  def _():
    plgpu.set_max_registers(for_loads, action="decrease")
    steps = lax.fori_loop(0, work.own_items(), functools.partial(_load, work, refs), jnp.int32(0))
    for free in (refs.key_free, refs.value_free):
      parts.wait_until_free(free, range(work.stages), steps)
    for group in range(work.groups):
      parts.wait_until_free(refs.query_free, range(group, 2 * work.groups, work.groups), work.own_items())

  @pl.when(lax.axis_index("warpgroup") < work.groups)
  def _():
    plgpu.set_max_registers((pool - for_loads) // work.groups // 8 * 8, action="increase")
    lax.fori_loop(0, work.own_items(), functools.partial(_attend, work, refs), jnp.int32(0))
    plgpu.wait_smem_to_gmem(0)


def _load(work: Work, refs: Refs, index, step):
  """The queries of all warpgroups, then block after block of keys and values; `step` counts the blocks of all items."""
  example, head, query, real = work.place(index, refs.lengths)
  for group in range(work.groups):
    slot = lax.rem(index, 2) * work.groups + group

    @pl.when(index >= 2)
    def _(slot=slot):
      plgpu.barrier_wait(refs.query_free.at[slot])
    rows = pl.ds(example * work.length + query + group * ROWS_OF_TILE, ROWS_OF_TILE)
    plgpu.copy_gmem_to_smem(refs.product.at[rows, work.columns(head, 0)], refs.query.at[slot], refs.query_full.at[slot])

  def block(number, step):
    slot = lax.rem(step, work.stages)
    rows = pl.ds(example * work.length + number * work.keys, work.keys)
    for which, ref, is_full, is_free in ((1, refs.key, refs.key_full, refs.key_free),
                                         (2, refs.value, refs.value_full, refs.value_free)):
      @pl.when(step >= work.stages)
      def _(is_free=is_free):
        plgpu.barrier_wait(is_free.at[slot])
      plgpu.copy_gmem_to_smem(refs.product.at[rows, work.columns(head, which)], ref.at[slot], is_full.at[slot])
    return step + 1
  return lax.fori_loop(0, pl.cdiv(real, work.keys), block, step)


def _attend(work: Work, refs: Refs, index, step):
  """64 queries over all real keys."""
  example, head, query, real = work.place(index, refs.lengths)
  group = lax.axis_index("warpgroup")
  own = lax.rem(index, 2) * work.groups + group
  query = query + group * ROWS_OF_TILE
  row_seeds = _row_seeds(work, refs, example, head, query) if work.rate else None
  queries, shape = refs.query.at[own], (ROWS_OF_TILE, work.head_dim)
  full = functools.partial(parts.full, interpret=work.interpret)
  with_sums = functools.partial(parts.with_sums, interpret=work.interpret)
  plgpu.barrier_wait(refs.query_full.at[own])

  def block(number, carry):
    total, highest, denominator = carry
    slot = lax.rem(step + number, work.stages)

    def product(scores):
      scores.add(queries, refs.key.at[slot], transpose_b=True)
      return scores.value()
    plgpu.barrier_wait(refs.key_full.at[slot])
    scores = with_sums(product, (ROWS_OF_TILE, work.keys))
    plgpu.barrier_arrive(refs.key_free.at[slot])
    weights, shrink, highest, denominator = _softmax(work, scores, number * work.keys, real, highest, denominator)
    if work.rate:
      weights = parts.drop(weights, _kept(work, row_seeds, number), False, work.interpret)

    def add(context):
      context.start_at(total * parts.along_rows(shrink, shape))
      context.add(weights, refs.value.at[slot])
      return context.value()
    plgpu.barrier_wait(refs.value_full.at[slot])
    total = with_sums(add, shape)
    plgpu.barrier_arrive(refs.value_free.at[slot])
    return total, highest, denominator

  start = full(shape, 0, TILE), full(shape[:1], HIDDEN_SCORE, PER_ROW), full(shape[:1], 0, PER_ROW)
  blocks = pl.cdiv(real, work.keys)
  total, highest, denominator = lax.fori_loop(0, blocks, block, start)
  queries[...] = (total * parts.along_rows(1 / (denominator * np.float32(1 - work.rate)), shape)).astype(work.dtype)
  refs.sums[group, :] = highest + jnp.log(denominator) * np.float32(LOG2_E)
  plgpu.commit_smem()
  plgpu.copy_smem_to_gmem(queries, refs.context.at[pl.ds(example * work.length + query, ROWS_OF_TILE),
                                                   pl.ds(head * work.head_dim, work.head_dim)])
  plgpu.copy_smem_to_gmem(refs.sums.at[group], refs.log_sums.at[
    pl.ds((example * work.heads + head) * work.length + query, ROWS_OF_TILE)])
  plgpu.wait_smem_to_gmem(0, wait_read_only=True)
  plgpu.barrier_arrive(refs.query_free.at[own])
  return step + blocks


def _softmax(work: Work, scores, first_key, real, highest, denominator):
  """(weights so far unscaled, in 16 bits; by how much earlier ones shrink; the new maximum and denominator)."""
  scale = np.float32(LOG2_E / math.sqrt(work.head_dim))

  def hide(scores):
    key = parts.iota(scores.shape, 1, TILE, work.interpret).astype(jnp.int32) + first_key
    return jnp.where(key < real, scores, HIDDEN_SCORE)
  scores = lax.cond(first_key + work.keys > real, hide, lambda scores: scores, scores)
  now_highest = jnp.maximum(highest, scores.max(axis=1) * scale)
  shrink = jnp.exp2(highest - now_highest)
  weights = jnp.exp2(scores * scale - parts.along_rows(now_highest, scores.shape))
  return weights.astype(work.dtype), shrink, now_highest, denominator * shrink + weights.sum(axis=1)


def _row_seeds(work: Work, refs: Refs, example, head, query):
  row = parts.iota((ROWS_OF_TILE,), 0, PER_ROW, work.interpret) + query.astype(jnp.uint32)
  return dropout.bits(parts.head_seeds(refs.seeds, example, head, work.num_heads), dropout.pair_groups(row))


def _kept(work: Work, row_seeds, block):
  """`dropout.kept_bytes` of the queries and of block `block` of the keys."""
  shape = (ROWS_OF_TILE, work.keys // 2)
  steps = parts.iota(shape, 1, TILE, work.interpret) * dropout.COLUMN_STEP
  start = row_seeds + (block * (work.keys // 2)).astype(jnp.uint32) * dropout.COLUMN_STEP
  words = dropout.pair_words(parts.along_rows(start, shape) + steps, parts.along_rows(row_seeds, shape))
  return dropout.kept_bytes(words, work.rate)
