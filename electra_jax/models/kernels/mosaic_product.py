"""A matrix product with bias and GELU behind it on Hopper GPUs (H100, H200), in Pallas' Mosaic.

Two warpgroups take tiles of 128 x 128 in turn, so that one's GELU hides behind the other's products; a third loads.
Programs in pairs have tiles of the same columns and load the second operand once for both.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import ArrayLike
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm
from jaxlib.mlir.dialects import math as mlir_math

from electra_jax.models import fused
from electra_jax.models.kernels import mosaic_parts as parts
from electra_jax.models.kernels.mosaic_parts import PER_COLUMN, TILE

ROWS = COLUMNS = 128  # of a tile of the result
DEPTH = 64  # of a block in shared memory, 128 bytes
CHUNK = 64  # rows and columns of what is written at a time
STAGES = 4  # blocks of both operands in shared memory, fewer than a tile has
BIASES = 4  # tiles whose biases are there: two of each warpgroup
CHUNKS = 4  # of each warpgroup in shared memory: the sum and its GELU, twice
REGISTERS = {"products": 232, "loads": 40}  # of a thread


class Work(NamedTuple):
  """What all warpgroups know."""
  depth: int
  columns: int
  dtype: Any
  stages: int
  cluster: int  # programs that share loads
  programs: int  # clusters of them
  items: int  # tiles of each program of all clusters together
  interpret: bool

  @property
  def steps(self) -> int:
    """Blocks of a tile."""
    return self.depth // DEPTH

  def place(self, index: ArrayLike):
    """(first row, first column) of this program's tile number `index`."""
    item, across = parts.own_item(index, self.programs), self.columns // COLUMNS
    row = lax.div(item, across)
    if self.cluster > 1:
      row = row * self.cluster + lax.axis_index("cluster")
    return row * ROWS, lax.rem(item, across) * COLUMNS

  def own_items(self):
    """How many tiles this program has."""
    return parts.count_own_items(self.items, self.programs)


class Refs(NamedTuple):
  """Arguments of the kernel: inputs and outputs in device memory, shared memory, barriers."""
  x: Any
  kernel: Any
  bias: Any
  total: Any
  activation: Any
  x_block: Any  # from here in shared memory
  kernel_block: Any
  biases: Any
  out: Any
  full: Any  # of each warpgroup, since each waits for its own tiles' blocks alone
  free: Any
  bias_full: Any


@functools.partial(jax.jit, static_argnames="interpret")
def bias_gelu(x: Array, kernel: Array, bias: Array, *, interpret: bool):
  """(x @ kernel + bias, its GELU) [rows, columns]; x [rows, depth] with rows and columns in 128, bias float32."""
  (rows, depth), columns, dtype = x.shape, kernel.shape[1], x.dtype
  cluster = 1 if interpret or rows % (2 * ROWS) else 2  # the interpreter of jax 0.10 has no barriers of clusters
  items = rows // (ROWS * cluster) * (columns // COLUMNS)
  work = Work(depth, columns, dtype, min(STAGES, depth // DEPTH - 1), cluster,
              min(items, parts.multiprocessors() // cluster), items, interpret)
  tile = functools.partial(parts.shared, dtype=dtype)
  free, grid = parts.barriers(work.stages), {}
  if cluster > 1:
    free = plgpu.ClusterBarrier(collective_axes=("cluster",), num_barriers=work.stages)
    grid = {"cluster": (cluster,), "cluster_names": ("cluster",)}
  return parts.call(
    lambda *refs: _kernel(work, Refs(*refs)), interpret, out_type=[jax.ShapeDtypeStruct((rows, columns), dtype)] * 2,
    scratch_types=[tile((work.stages, ROWS, DEPTH)), tile((work.stages, DEPTH, COLUMNS)),
                   plgpu.SMEM((BIASES, COLUMNS), jnp.float32), tile((2, CHUNKS, CHUNK, CHUNK)),
                   parts.barriers(2 * work.stages, 2), free, parts.barriers(BIASES)],
    grid=(work.programs,), grid_names=("program",), num_threads=3, **grid)(x, kernel, bias)


def _kernel(work: Work, refs: Refs):
  group = lax.axis_index("warpgroup")

  @pl.when(group == 2)
  def _():
    plgpu.set_max_registers(REGISTERS["loads"], action="decrease")
    lax.fori_loop(0, work.own_items(), functools.partial(_load, work, refs), None)
    parts.wait_until_free(refs.free, range(work.stages), work.own_items() * work.steps)

  @pl.when(group < 2)
  def _():
    plgpu.set_max_registers(REGISTERS["products"], action="increase")
    lax.fori_loop(0, lax.div(work.own_items() - group + 1, 2),
                  lambda turn, _: _multiply(work, refs, 2 * turn + group), None)
    plgpu.wait_smem_to_gmem(0)


def _load(work: Work, refs: Refs, index, _):
  """All blocks of a tile. The place of its biases is free: their last tile is done if blocks of a later one are."""
  row, column = work.place(index)
  slot = lax.rem(index, BIASES)
  plgpu.copy_gmem_to_smem(refs.bias.at[pl.ds(column, COLUMNS)], refs.biases.at[slot], refs.bias_full.at[slot])

  def block(number, _):
    step = index * work.steps + number
    slot = lax.rem(step, work.stages)
    full, depth = refs.full.at[lax.rem(index, 2) * work.stages + slot], pl.ds(number * DEPTH, DEPTH)

    @pl.when(step >= work.stages)
    def _():
      plgpu.barrier_wait(refs.free.at[slot])
    plgpu.copy_gmem_to_smem(refs.x.at[pl.ds(row, ROWS), depth], refs.x_block.at[slot], full)
    plgpu.copy_gmem_to_smem(refs.kernel.at[depth, pl.ds(column, COLUMNS)], refs.kernel_block.at[slot], full,
                            collective_axes=("cluster",) if work.cluster > 1 else None)
  lax.fori_loop(0, work.steps, block, None)


def _multiply(work: Work, refs: Refs, index):
  """A tile, and what follows it."""
  group, first = lax.axis_index("warpgroup"), index * work.steps

  def product(total):
    def block(number, _):
      slot = lax.rem(first + number, work.stages)
      plgpu.barrier_wait(refs.full.at[group * work.stages + slot])
      total.add(refs.x_block.at[slot], refs.kernel_block.at[slot])
      total.wait(unfinished=1)

      @pl.when(number > 0)
      def _():
        plgpu.barrier_arrive(refs.free.at[lax.rem(first + number - 1, work.stages)])
    if work.interpret:  # where the sum is an array
      for number in range(work.steps):
        block(number, None)
    else:
      lax.fori_loop(0, work.steps, block, None)
    value = total.value()
    plgpu.barrier_arrive(refs.free.at[lax.rem(first + work.steps - 1, work.stages)])
    return value
  total = parts.with_sums(product, (ROWS, COLUMNS), interpret=work.interpret)
  _finish(work, refs, index, total)


def _finish(work: Work, refs: Refs, index, total):
  """Adds the bias, and writes the sum and its GELU."""
  group, (row, column), slot = lax.axis_index("warpgroup"), work.place(index), lax.rem(index, BIASES)
  plgpu.barrier_wait(refs.bias_full.at[slot])
  for number in range(ROWS * COLUMNS // CHUNK**2):
    down, right = number // (COLUMNS // CHUNK) * CHUNK, number % (COLUMNS // CHUNK) * CHUNK
    bias = parts.load(refs.biases.at[slot, pl.ds(right, CHUNK)], PER_COLUMN, work.interpret)
    x = total[down:down + CHUNK, right:right + CHUNK] + parts.along_columns(bias, (CHUNK, CHUNK))
    x = x.astype(work.dtype)
    plgpu.wait_smem_to_gmem(CHUNKS - 2, wait_read_only=True)
    place = 2 * number % CHUNKS
    refs.out.at[group, place][...] = x
    refs.out.at[group, place + 1][...] = _gelu(x.astype(jnp.float32), work.interpret).astype(work.dtype)
    plgpu.commit_smem()
    at = pl.ds(row + down, CHUNK), pl.ds(column + right, CHUNK)
    plgpu.copy_smem_to_gmem(refs.out.at[group, place], refs.total.at[at])
    plgpu.copy_smem_to_gmem(refs.out.at[group, place + 1], refs.activation.at[at])


def _gelu(x, interpret: bool):
  if interpret:
    return fused.gelu("gelu", x)

  def of_registers(ctx, x):
    del ctx
    new = np.empty_like(x.registers)
    for place in np.ndindex(x.registers.shape):
      new[place] = x.registers[place]
      for i, element in enumerate(parts.elements(x.registers[place])):
        new[place] = llvm.insertelement(new[place], _gelu_of_element(element), parts.constant(i))
    return mgpu.FragmentedArray(_registers=new, _layout=x.layout, _is_signed=x.is_signed)
  return plgpu.inline_mgpu(arg_types=(TILE,), return_type=plgpu.ShapeDtypeStruct(x.shape, x.dtype, layout=TILE))(
    of_registers)(x)


def _gelu_of_element(x):
  """max(x, 0) - |x| times the normal distribution beyond |x|, by the series of `fused.kernel_gate`; 14 instructions."""
  size = mlir_math.absf(x)
  t = _approximate("rcp", mlir_math.fma(_float(fused.ERF_SLOPE * math.sqrt(0.5)), size, _float(1.0)))
  series = _float(0.5 * fused.ERF_SERIES[-1])
  for coefficient in reversed(fused.ERF_SERIES[:-1]):
    series = mlir_math.fma(series, t, _float(0.5 * coefficient))
  density = _approximate("ex2", arith.mulf(arith.mulf(x, _float(-0.5 * parts.LOG2_E)), x))
  tail = arith.mulf(arith.mulf(series, t), density)
  return mlir_math.fma(arith.negf(size), tail, arith.maximumf(x, _float(0.0)))


def _approximate(name: str, x):
  return llvm.inline_asm(ir.F32Type.get(), [x], f"{name}.approx.ftz.f32 $0, $1;", "=f,f", has_side_effects=False)


def _float(value: float):
  f32 = ir.F32Type.get()
  return arith.constant(f32, ir.FloatAttr.get(f32, value))
