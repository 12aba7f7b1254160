"""Gradients of the queries in attention's backward pass on Hopper, and what all of its warpgroups know."""

import functools
import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import ArrayLike

from electra_jax.models import dropout
from electra_jax.models.kernels import mosaic_parts as parts
from electra_jax.models.kernels import mosaic_sums
from electra_jax.models.kernels.mosaic_parts import PER_ROW, ROWS_OF_TILE, TILE

KEYS = 2 * ROWS_OF_TILE  # of a block
COLUMNS = mosaic_sums.COLUMNS  # of the queries' gradients, at a time
PARTS = 5  # of an item's sums: queries, keys of two warpgroups, values of two
REGISTERS = {"keys": 208, "wide keys": 240, "queries": 64, "loads": 24}  # of a thread
FAR = plgpu.Layout.WG_STRIDED((ROWS_OF_TILE, COLUMNS), vec_size=2)  # of device memory


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
  score_stages: int  # blocks of the scores' gradients
  programs: int
  interpret: bool

  @property
  def query_blocks(self) -> int:
    return self.length // ROWS_OF_TILE

  @property
  def is_wide(self) -> bool:
    """Whether the warpgroups of the keys also add up what queries get."""
    return self.head_dim > COLUMNS

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
    """Of an item, see PARTS; of the queries of wide heads each warpgroup has half."""
    first = (example * self.heads + head) * (PARTS * mosaic_sums.WARPS * self.head_dim // sums.size)
    mosaic_sums.store(refs.sums, first + part, sums, self.interpret)

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


def refs_of(work: Work, refs: tuple) -> Refs:
  """Of wide heads, `d_query` is among the results, and log sums and dots share memory."""
  if not work.is_wide:
    return Refs(*refs)
  *results, d_query, query, d_context, statistics = refs[:12]
  log_sums, dots = (statistics.at[pl.ds(half * work.stages, work.stages)] for half in range(2))
  return Refs(*results, query, d_context, log_sums, dots, *refs[12:15], d_query, *refs[15:])


def hash_rows(work: Work, refs: Refs, index: Array):
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


def add_up(work: Work, refs: Refs, index: Array, steps: Any):
  """The gradient of the queries: of each block a sum over the blocks of keys."""
  example, head, real = work.place(index, refs.lengths)
  key_blocks = pl.cdiv(real, KEYS)
  if work.rate:
    pl.when(index + 1 < work.own_items())(lambda: hash_rows(work, refs, index + 1))

  def query_block(keys_slot, key_block, block, carry):
    step, sums = carry
    return step + 1, add_to_block(work, refs, (example, head), keys_slot, (key_block, key_blocks), 0, block, step, sums)

  def one_key_block(block, carry):
    step, key_step, sums = carry
    slot = lax.rem(key_step, work.key_stages)
    plgpu.barrier_wait(refs.key_full.at[slot])
    step, sums = lax.fori_loop(0, work.query_blocks, functools.partial(query_block, slot, block), (step, sums))
    plgpu.barrier_arrive(refs.key_free.at[slot])
    return step, key_step + 1, sums
  *steps, sums = lax.fori_loop(0, key_blocks, one_key_block, (*steps, mosaic_sums.zeros(COLUMNS, work.interpret)))
  work.store_sums(refs, example, head, 0, sums * work.score_factor)
  return tuple(steps)


def add_to_block(work: Work, refs: Refs, item: tuple, keys_slot: Array, key_blocks: tuple, part: Array | int,
                 block: Array, step: Array, sums: Array):
  """Adds what a block of keys gives to 64 columns of the gradient of a block of queries; the last one completes it.

  Args:
    item: example and head.
    keys_slot: where the keys are.
    key_blocks: number of this block of keys, and how many there are.
    part: which 64 columns.
    block: of queries.
    step: counts such blocks.
    sums: of the rows of all blocks that are complete.
  """
  (example, head), (key_block, number), shape = item, key_blocks, (ROWS_OF_TILE, COLUMNS)
  slot = lax.rem(step, work.score_stages)
  far = work.is_wide and refs.d_query.at[lax.axis_index("program"), block * 2 + part]

  def product(d_query):
    if work.is_wide:  # on its way while other products run
      d_query.start_at(lax.cond(key_block > 0, lambda _: _load_far(far, work.interpret), lambda x: x,
                                parts.full(shape, 0, TILE, work.interpret)))
      plgpu.barrier_wait(refs.d_scores_full.at[slot])
    for half in range(2):
      d_query.add(refs.d_scores.at[slot, half], refs.key.at[keys_slot, half, :, pl.ds(part * COLUMNS, COLUMNS)],
                  transpose_a=True)
    return d_query.value()
  if not work.is_wide:
    plgpu.barrier_wait(refs.d_scores_full.at[slot])
  d_query = parts.with_sums(product, shape, interpret=work.interpret)
  plgpu.barrier_arrive(refs.d_scores_free.at[slot])
  if not work.is_wide:
    d_query = lax.cond(key_block > 0, lambda x: x + parts.load(refs.d_query.at[block], TILE, work.interpret),
                       lambda x: x, d_query)

  @pl.when(key_block + 1 < number)
  def _():
    if work.is_wide:
      _store_far(far, d_query, work.interpret)
    else:
      refs.d_query[block] = d_query

  is_last = key_block + 1 == number
  sums = lax.cond(is_last, lambda x: x + mosaic_sums.of_tile(d_query, work.interpret), lambda x: x, sums)

  @pl.when(is_last)
  def _():
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    refs.d_query_half[part] = (d_query * work.score_factor).astype(work.dtype)
    plgpu.commit_smem()
    rows, _ = work.slices(example, head, 0, block * ROWS_OF_TILE)
    columns = pl.ds(head * 3 * work.head_dim + part * COLUMNS, COLUMNS)
    plgpu.copy_smem_to_gmem(refs.d_query_half.at[part], refs.out.at[rows, columns])
  return sums


def _store_far(ref, tile, interpret):
  """To device memory in the order of the registers: no other warpgroup reads it."""
  ref[...] = tile if interpret else _as_if(tile, TILE, FAR)


def _load_far(ref, interpret):
  return ref[...] if interpret else _as_if(plgpu.load(ref, ..., layout=FAR), FAR, TILE)


def _as_if(tile, layout, other):
  """The same registers in another layout."""
  def rename(ctx, tile):
    del ctx
    new = other.to_mgpu()
    return mgpu.FragmentedArray(_registers=tile.registers.reshape(new.registers_shape(tile.shape)), _layout=new,
                                _is_signed=None)
  kept = plgpu.ShapeDtypeStruct(tile.shape, tile.dtype, layout=other)
  return plgpu.inline_mgpu(arg_types=(layout,), return_type=kept)(rename)(tile)
