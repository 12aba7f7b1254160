"""Parts of Hopper kernels: shared memory, layouts of registers, dropout of a tile of weights.

A warpgroup of 128 threads holds a tile [64, n] of a matrix product in registers: a thread has rows r and r + 8 of 16,
and in these two neighbouring columns of every eight (`plgpu.Layout.WGMMA`). The four pairs of a word of
`dropout.pair_words` are therefore one thread's.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams  # public from jax 0.11 on
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import ArrayLike, DTypeLike
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm

from electra_jax.models import dropout

ROWS_OF_TILE = 64  # of one matrix product of a warpgroup
TILE = plgpu.Layout.WGMMA
PER_ROW, PER_COLUMN = TILE.reduce(1), TILE.reduce(0)
PARAMS = plgpu.CompilerParams(approx_math=True, unsafe_no_auto_barriers=True,  # every barrier is written out
                              lowering_semantics=plgpu.LoweringSemantics.Lane)
LOG2_E = math.log2(math.e)  # exp2 is the instruction that the hardware has
HIDDEN_SCORE = -1e30  # of keys that are padding; finite, so that no row is NaN


def own_item(index: ArrayLike, programs: int):
  """Number `index` of this program's items, of which each program takes one after the other."""
  return lax.axis_index("program") + index * programs


def count_own_items(total: int, programs: int):
  """How many of `total` items are this program's."""
  return lax.div(total - lax.axis_index("program") + programs - 1, programs)


def shared(shape: tuple[int, ...], dtype: DTypeLike):
  """Shared memory in the order that the copy engine and the matrix unit know."""
  width = 128 // jnp.dtype(dtype).itemsize
  return plgpu.SMEM(shape, dtype, transforms=(plgpu.TilingTransform((8, width)), plgpu.SwizzleTransform(128)))


def barriers(number: int, arrivals: int = 1):
  """Each complete once so many warpgroups, or copies, have arrived."""
  return plgpu.Barrier(num_arrivals=arrivals, num_barriers=number)


def along_rows(column: Array, shape: tuple[int, int]):
  """A value for each row, in all columns."""
  return lax.broadcast_in_dim(column, shape, (0,))


def along_columns(row: Array, shape: tuple[int, int]):
  """A value for each column, in all rows."""
  return lax.broadcast_in_dim(row, shape, (1,))


def full(shape: tuple[int, ...], value: ArrayLike, layout: Any, interpret: bool):
  """Of float32, in registers."""
  x = jnp.full(shape, value, jnp.float32)
  return x if interpret else plgpu.layout_cast(x, layout)


def iota(shape: tuple[int, ...], axis: int, layout: Any, interpret: bool):
  """Of uint32, in registers."""
  if interpret:
    return lax.broadcasted_iota(jnp.uint32, shape, axis)
  return plgpu.broadcasted_iota(jnp.uint32, shape, axis, layout=layout)


def load(ref: Any, layout: Any, interpret: bool):
  """From shared memory into registers."""
  return ref[...] if interpret else plgpu.layout_cast(ref[...], layout)


class MatrixSum:
  """A sum of matrix products that a warpgroup starts one after the other, in registers."""

  def __init__(self, ref: Any):
    self.ref = ref

  def start_at(self, value: Array):
    """Sets it."""
    self.ref[...] = value

  def add(self, a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False):
    """Starts the addition of a @ b: `a` in registers or shared memory, `b` in shared memory."""
    plgpu.wgmma(self.ref, a.transpose((1, 0)) if transpose_a else a, b.transpose((1, 0)) if transpose_b else b)

  def wait(self, unfinished: int):
    """Like `value`, without the value."""
    plgpu.wgmma_wait(unfinished)

  def value(self, unfinished: int = 0):
    """Waits until no more than the last `unfinished` products of this warpgroup, of any sum, are under way."""
    return plgpu.wgmma_accumulator_load(self.ref, wait_n=unfinished)


class PlainSum:
  """The same where the kernel is interpreted; the interpreter of jax 0.10 cannot multiply transposed views."""

  def __init__(self, shape: tuple[int, int]):
    self.total = jnp.zeros(shape, jnp.float32)

  def start_at(self, value: Array):
    """Sets it."""
    self.total = value

  def add(self, a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False):
    """Adds a @ b."""
    a, b = a[...], b[...]
    self.total += jnp.dot(a.T if transpose_a else a, b.T if transpose_b else b, preferred_element_type=jnp.float32)

  def wait(self, unfinished: int):
    """Nothing is unfinished."""

  def value(self, unfinished: int = 0):
    """At once."""
    del unfinished
    return self.total


def with_sums(function: Callable, *shapes: tuple[int, int], interpret: bool):
  """function(*sums) with a sum of products, at zero, of each shape."""
  if interpret:
    return function(*map(PlainSum, shapes))
  return pl.run_scoped(lambda *refs: function(*map(MatrixSum, refs)), *(plgpu.ACC(x, jnp.float32) for x in shapes))


def wait_until_free(free: Any, slots: range, uses: Any):
  """At the end: the last release of each slot that was used, so that no phase of a barrier is left unseen."""
  for number, slot in enumerate(slots):
    pl.when(uses > number)(functools.partial(plgpu.barrier_wait, free.at[slot]))


def head_seeds(seeds_ref: Any, example: Array, head: Array, num_heads: int):
  """The seeds of a head among those of all devices; seeds_ref: two seeds, first example, first head."""
  place = (seeds_ref[2] + example.astype(jnp.uint32)) * np.uint32(num_heads) + seeds_ref[3] + head.astype(jnp.uint32)
  return dropout.child_seeds((seeds_ref[0], seeds_ref[1]), place)


def drop(weights: Array, kept: Any, rows_are_keys: bool, interpret: bool):
  """Weights [m, n] where the highest bit of their byte of `kept` is set, else 0.

  `kept`: `dropout.kept_bytes` [m, n / 2], of the groups of rows and columns; equal in rows that are eight apart.
  """
  if not interpret:
    apply = _drop_wide if weights.dtype == jnp.float32 else _drop_packed
    return plgpu.inline_mgpu(arg_types=(TILE, TILE), return_type=plgpu.ShapeDtypeStruct(
      weights.shape, weights.dtype, layout=TILE))(functools.partial(apply, rows_are_keys))(weights, kept)
  m, n = weights.shape
  row_bit, column_bit = ((lax.broadcasted_iota(jnp.uint32, (m, n), axis) >> np.uint32(3)) & np.uint32(1)
                         for axis in (0, 1))
  word = jnp.broadcast_to(kept.reshape(m, n // 16, 1, 8), (m, n // 16, 2, 8)).reshape(m, n)
  bit = np.uint32(8) * _byte(row_bit, column_bit, rows_are_keys) + np.uint32(7)
  return jnp.where((word >> bit) & np.uint32(1) == 1, weights, 0).astype(weights.dtype)


def _byte(row_bit, column_bit, rows_are_keys: bool):
  """Queries are the rows of `dropout.keep_pairs`, keys its columns."""
  return dropout.pair_byte(column_bit, row_bit) if rows_are_keys else dropout.pair_byte(row_bit, column_bit)


def _drop_packed(rows_are_keys, ctx, weights, kept):
  """Two neighbours of 16 bits by one mask, whose halves repeat the sign of a byte of two words."""
  del ctx
  i32 = ir.IntegerType.get_signless(32)

  def masked(old, words, byte):
    mask = _signs(*words, byte * 0x11 + (byte + 4) * 0x1100)
    return mgpu.utils.bitcast(arith.andi(mgpu.utils.bitcast(old, i32), mask), old.type)
  return _of_registers(masked, weights, kept, rows_are_keys)


def _drop_wide(rows_are_keys, ctx, weights, kept):
  """The same for float32, each by a mask of its own."""
  del ctx
  i32, f32 = ir.IntegerType.get_signless(32), ir.F32Type.get()

  def masked(old, words, byte):
    new = llvm.mlir_undef(old.type)
    for place, (word, element) in enumerate(zip(words, elements(old), strict=True)):
      stays = arith.andi(arith.bitcast(i32, element), _signs(word, word, byte * 0x1111))
      new = llvm.insertelement(new, arith.bitcast(f32, stays), constant(place))
    return new
  return _of_registers(masked, weights, kept, rows_are_keys)


def _of_registers(masked, weights, kept, rows_are_keys: bool):
  """Calls `masked(register of two weights, their two words, 8 + byte)` for all registers of a thread."""
  m, n = weights.shape
  old, hashes = weights.registers.reshape(m // 64, n // 8, 2), kept.registers.reshape(m // 64, n // 16, 2)
  new = np.empty_like(old)
  for tile, pair in np.ndindex(hashes.shape[:2]):
    words = elements(hashes[tile, pair, 0])
    for row_bit, column_bit in np.ndindex(2, 2):
      place = (tile, 2 * pair + column_bit, row_bit)
      new[place] = masked(old[place], words, 8 + _byte(row_bit, column_bit, rows_are_keys))
  return mgpu.FragmentedArray(_registers=new.reshape(weights.registers.shape), _layout=weights.layout,
                              _is_signed=weights.is_signed)


def _signs(low, high, selector: int):
  """Four bytes, each the repeated sign of one of the eight of low and high: 8 + its number in `selector`."""
  return llvm.inline_asm(ir.IntegerType.get_signless(32), [low, high], f"prmt.b32 $0, $1, $2, 0x{selector:x};",
                         "=r,r,r", has_side_effects=False)


def elements(register: ir.Value) -> list[ir.Value]:
  """The two numbers of a register."""
  return [llvm.extractelement(register, constant(place)) for place in range(2)]


def constant(value: int) -> ir.Value:
  """Of 32 bits."""
  i32 = ir.IntegerType.get_signless(32)
  return arith.constant(i32, ir.IntegerAttr.get(i32, value))


def call(kernel: Callable, interpret: bool, **arguments):
  """`plgpu.kernel` in warpgroups."""
  return plgpu.kernel(kernel, compiler_params=PARAMS, thread_name="warpgroup", **arguments,
                      interpret=InterpretGPUParams() if interpret else None)


def multiprocessors() -> int:
  """Of the GPU; an H100's where there is none."""
  device = jax.devices()[0]
  return device.core_count if device.platform == "gpu" else 132
