"""Sums over the rows of tiles in registers, for biases: by warp, in half of what a warp's usual reduction takes."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm

from electra_jax.models.kernels import mosaic_parts as parts

WARPS, COLUMNS = 4, 64  # of a warpgroup, of its part of a tile


def _shape(columns: int):
  return columns // COLUMNS * WARPS, COLUMNS


def _layout(columns: int):
  return plgpu.Layout.WG_STRIDED(_shape(columns), vec_size=2)


def zeros(columns: int, interpret: bool):
  """Sums [columns / 64 * 4 warps, 64] before the first tile."""
  return parts.full(_shape(columns), 0, _layout(columns), interpret)


def of_tile(tile: Array, interpret: bool):
  """float32 [64, columns] summed over the 16 rows of each warp: [columns / 64 * 4, 64]."""
  columns = tile.shape[1]
  if interpret:
    return tile.reshape(WARPS, -1, columns // COLUMNS, COLUMNS).sum(1).swapaxes(0, 1).reshape(_shape(columns))
  kept = plgpu.ShapeDtypeStruct(_shape(columns), jnp.float32, layout=_layout(columns))
  return plgpu.inline_mgpu(arg_types=(parts.TILE,), return_type=kept)(_halve)(tile)


def store(ref: Any, place: Any, sums: Array, interpret: bool):
  """Writes them to device memory, ref [places * size]."""
  target = ref.at[pl.ds(place * sums.size, sums.size)]
  if interpret:
    target[...] = sums.reshape(sums.size)
  else:
    target.reshape(sums.shape)[...] = sums


def _halve(ctx, tile):
  """Lane 4 r + c starts with columns 2 c and 2 c + 1 of every eight, in rows r and r + 8, and ends with columns
  8 r + 2 c and the next: three times two lanes give each other half of their columns.
  """
  del ctx
  registers = []
  for part in tile.registers.reshape(-1, COLUMNS // 8, 2):
    pairs = [[arith.addf(*both) for both in zip(*map(parts.elements, rows), strict=True)] for rows in part]
    for lanes in (16, 8, 4):
      lane = arith.andi(mgpu.utils.thread_idx(), parts.constant(lanes))
      is_upper = arith.cmpi(arith.CmpIPredicate.ne, lane, parts.constant(0))
      half = len(pairs) // 2
      pairs = [[arith.addf(arith.select(is_upper, b, a), mgpu.utils.shfl_bfly(arith.select(is_upper, a, b), lanes))
                for a, b in zip(*both, strict=True)] for both in zip(pairs[:half], pairs[half:], strict=True)]
    register = llvm.mlir_undef(ir.VectorType.get((2,), ir.F32Type.get()))
    for place, value in enumerate(pairs[0]):
      register = llvm.insertelement(register, value, parts.constant(place))
    registers.append(register)
  shape = _shape(tile.shape[1])
  layout = mgpu.WGStridedFragLayout(shape, 2)
  registers = np.array(registers, dtype=object).reshape(layout.registers_shape(shape))
  return mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=None)
