"""How do the gradients of layer norm and GELU take one pass over memory? Two Triton kernels, written in Pallas.

A program walks down a strip of rows, and adds up what the biases and the layer norm's parameters get on its way.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from electra_jax.models import dropout

PROGRAMS = 1024  # strips of rows, at most: several for each of a GPU's 132 multiprocessors
TILE = 4096  # elements that a program holds at a time


def choose(kernels: str, dtype) -> str:
  """`auto` becomes triton on a GPU with 16-bit activations, and xla, the compiler's own code, everywhere else."""
  if kernels == "auto":
    return "triton" if jax.default_backend() == "gpu" and jnp.dtype(dtype).itemsize == 2 else "xla"
  return kernels


def fits(kernels: str, shape: tuple[int, ...]) -> bool:
  """Whether a kernel takes [batch, length, features]: whole tiles of 16 rows and of 128 features."""
  return kernels != "xla" and len(shape) == 3 and shape[1] % 16 == 0 and shape[2] % 128 == 0


def strips(num_rows: int) -> int:
  """Rows of a strip: a power of two that divides their number, for at most PROGRAMS strips where that is possible.

  >>> strips(131072), strips(16384), strips(96)
  (128, 16, 16)
  """
  largest = num_rows & -num_rows
  return min(largest, max(16, pl.next_power_of_2(pl.cdiv(num_rows, PROGRAMS))))


def norm_gradients(first_row, total, gradient, scale, seeds, *, rate: float, epsilon: float, interpret: bool):
  """`fused.norm_gradients` for the rows of one device; `first_row` is the place of its first one among all rows."""
  shape, width = total.shape, total.shape[-1]
  total, gradient = total.reshape(-1, width), gradient.reshape(-1, width)
  strip, padded = strips(total.shape[0]), pl.next_power_of_2(width)
  tile_rows = min(strip, max(1, TILE // padded))
  programs = total.shape[0] // strip
  rows = pl.BlockSpec((strip, padded), lambda i: (i, 0))
  seeds = jnp.concatenate([seeds, first_row.reshape(1).astype(jnp.uint32)])
  dx, *dy, sums = pl.pallas_call(
    functools.partial(_norm_kernel, rate=rate, epsilon=epsilon, strip=strip, tile_rows=tile_rows, width=width),
    grid=(programs,),
    in_specs=[pl.BlockSpec((3,), lambda i: (0,)), pl.BlockSpec((padded,), lambda i: (0,)), rows, rows],
    out_specs=[rows] * (2 if rate else 1) + [pl.BlockSpec((None, 3, padded), lambda i: (i, 0, 0))],
    out_shape=[jax.ShapeDtypeStruct(total.shape, total.dtype)] * (2 if rate else 1) +
              [jax.ShapeDtypeStruct((programs, 3, width), jnp.float32)],
    compiler_params=triton.CompilerParams(num_warps=8 if padded >= 1024 else 4, num_stages=2),
    interpret=interpret, name="norm_gradients",
  )(seeds, scale, total, gradient)
  dy = dy[0] if rate else dx
  return dx.reshape(shape), dy.reshape(shape), sums.sum(0)


def _norm_kernel(seeds_ref, scale_ref, total_ref, gradient_ref, *out_refs, rate, epsilon, strip, tile_rows, width):
  dx_ref, sums_ref = out_refs[0], out_refs[-1]
  padded = total_ref.shape[1]
  columns = jnp.arange(padded)
  inside = columns < width
  share = np.float32(1 / width)
  scale = triton.load(scale_ref.at[:], mask=inside, other=0.0)
  seeds = (seeds_ref[0], seeds_ref[1])
  first_row = seeds_ref[2] + pl.program_id(0).astype(jnp.uint32) * np.uint32(strip)

  def tile(index, sums):
    rows = pl.ds(index * tile_rows, tile_rows)
    is_inside = jnp.broadcast_to(inside[None], (tile_rows, padded))
    x = triton.load(total_ref.at[rows, :], mask=is_inside, other=0.0).astype(jnp.float32)
    gradient = triton.load(gradient_ref.at[rows, :], mask=is_inside, other=0.0).astype(jnp.float32)
    centred = jnp.where(is_inside, x - (x.sum(1) * share)[:, None], 0.0)
    inverse = jax.lax.rsqrt((centred * centred).sum(1) * share + epsilon)[:, None]
    standard = centred * inverse
    scaled = gradient * scale[None]
    mean = (scaled.sum(1) * share)[:, None]
    along = ((scaled * standard).sum(1) * share)[:, None]
    dx = inverse * (scaled - mean - standard * along)
    triton.store(dx_ref.at[rows, :], dx.astype(dx_ref.dtype), mask=is_inside)
    dy = dx
    if rate:
      row = first_row + (index * tile_rows).astype(jnp.uint32) + jnp.arange(tile_rows, dtype=jnp.uint32)
      element = row[:, None] * np.uint32(width) + columns.astype(jnp.uint32)[None]
      keep = dropout.bits(seeds, element) >= dropout.threshold(rate)
      dy = jnp.where(keep, dx * np.float32(1 / (1 - rate)), 0.0)
      triton.store(out_refs[1].at[rows, :], dy.astype(dx_ref.dtype), mask=is_inside)
    return sums[0] + gradient * standard, sums[1] + gradient, sums[2] + dy

  zeros = jnp.zeros((tile_rows, padded), jnp.float32)
  sums = jax.lax.fori_loop(0, strip // tile_rows, tile, (zeros, zeros, zeros))
  for place, total in enumerate(sums):
    triton.store(sums_ref.at[pl.ds(place, 1), :], total.sum(0)[None], mask=inside[None])


def activation_gradients(first_row, x, gradient, *, derivative, interpret: bool):
  """(gradient * derivative(x), its sum over the rows) for the rows of one device."""
  del first_row
  shape, width = x.shape, x.shape[-1]
  x, gradient = x.reshape(-1, width), gradient.reshape(-1, width)
  columns = 128
  strip = strips(x.shape[0])
  tile_rows = min(strip, TILE // 2 // columns)
  tiles = pl.BlockSpec((strip, columns), lambda j, i: (i, j))
  dx, sums = pl.pallas_call(
    functools.partial(_activation_kernel, derivative=derivative, strip=strip, tile_rows=tile_rows),
    grid=(width // columns, x.shape[0] // strip), in_specs=[tiles, tiles],
    out_specs=[tiles, pl.BlockSpec((None, columns), lambda j, i: (i, j))],
    out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype),
               jax.ShapeDtypeStruct((x.shape[0] // strip, width), jnp.float32)],
    compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
    interpret=interpret, name="activation_gradients",
  )(x, gradient)
  return dx.reshape(shape), sums.sum(0)


def _activation_kernel(x_ref, gradient_ref, dx_ref, sums_ref, *, derivative, strip, tile_rows):
  def tile(index, total):
    rows = pl.ds(index * tile_rows, tile_rows)
    dx = gradient_ref[rows, :].astype(jnp.float32) * derivative(x_ref[rows, :].astype(jnp.float32))
    dx_ref[rows, :] = dx.astype(dx_ref.dtype)
    return total + dx

  zeros = jnp.zeros((tile_rows, x_ref.shape[1]), jnp.float32)
  sums_ref[...] = jax.lax.fori_loop(0, strip // tile_rows, tile, zeros).sum(0)
