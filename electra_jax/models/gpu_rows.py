"""How do layer norm, dropout and their gradients take one pass over memory? Triton kernels, written in Pallas.

A program walks down a strip of rows, and adds up what the biases and the layer norm's parameters get on its way.
Each function is jitted by itself: layers that are alike are traced and lowered once.
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


@functools.partial(jax.jit, static_argnames=("rate", "epsilon", "interpret"))
def add_norm(first_row, x, y, bias, scale, offset, seeds, *, rate: float, epsilon: float, interpret: bool):
  """(total, layer_norm(total)) with total = x + dropout(y + bias) for the rows of one device.

  `first_row` is the place of its first one among the rows of all devices.
  """
  shape, width = x.shape, x.shape[-1]
  x, y = x.reshape(-1, width), y.reshape(-1, width)
  padded = pl.next_power_of_2(width)
  tile_rows = min(strips(x.shape[0]), max(1, TILE // padded))
  rows = pl.BlockSpec((tile_rows, padded), lambda i: (i, 0))
  vector = pl.BlockSpec((padded,), lambda i: (0,))
  total, out = pl.pallas_call(
    functools.partial(_add_norm_kernel, rate=rate, epsilon=epsilon, width=width),
    grid=(x.shape[0] // tile_rows,),
    in_specs=[pl.BlockSpec((3,), lambda i: (0,)), vector, vector, vector, rows, rows], out_specs=[rows, rows],
    out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype)] * 2,
    compiler_params=_warps(padded),
    interpret=interpret, name="add_norm",
  )(_with_row(seeds, first_row), bias, scale, offset, x, y)
  return total.reshape(shape), out.reshape(shape)


def _warps(padded: int) -> triton.CompilerParams:
  return triton.CompilerParams(num_warps=8 if padded >= 1024 else 4, num_stages=2)


def _with_row(seeds, first_row):
  return jnp.concatenate([seeds, first_row.reshape(1).astype(jnp.uint32)])


def _keep(seeds_ref, first_row, num_rows: int, columns, width: int, rate: float):
  row = seeds_ref[2] + first_row.astype(jnp.uint32) + jnp.arange(num_rows, dtype=jnp.uint32)
  element = row[:, None] * np.uint32(width) + columns.astype(jnp.uint32)[None]
  return dropout.bits((seeds_ref[0], seeds_ref[1]), element) >= dropout.threshold(rate)


def _standardised(total, is_inside, width: int, epsilon: float):
  share = np.float32(1 / width)
  centred = jnp.where(is_inside, total - (total.sum(1) * share)[:, None], 0.0)
  inverse = jax.lax.rsqrt((centred * centred).sum(1) * share + epsilon)[:, None]
  return centred * inverse, inverse


def _add_norm_kernel(seeds_ref, bias_ref, scale_ref, offset_ref, x_ref, y_ref, total_ref, out_ref, *, rate, epsilon,
                     width):
  tile_rows, padded = x_ref.shape
  columns = jnp.arange(padded)
  inside = columns < width
  is_inside = jnp.broadcast_to(inside[None], (tile_rows, padded))
  bias, scale, offset = (triton.load(ref.at[:], mask=inside, other=0.0)[None]
                         for ref in (bias_ref, scale_ref, offset_ref))
  y = triton.load(y_ref.at[:, :], mask=is_inside, other=0.0).astype(jnp.float32) + bias
  if rate:
    keep = _keep(seeds_ref, pl.program_id(0) * tile_rows, tile_rows, columns, width, rate)
    y = jnp.where(keep, y * np.float32(1 / (1 - rate)), 0.0)
  x = triton.load(x_ref.at[:, :], mask=is_inside, other=0.0).astype(jnp.float32)
  total = (x + y).astype(total_ref.dtype)
  triton.store(total_ref.at[:, :], total, mask=is_inside)
  standard, _ = _standardised(total.astype(jnp.float32), is_inside, width, epsilon)
  triton.store(out_ref.at[:, :], (standard * scale + offset).astype(out_ref.dtype), mask=is_inside)


@functools.partial(jax.jit, static_argnames=("rate", "epsilon", "interpret"))
def norm_gradients(first_row, total, *gradients_and_others, rate: float, epsilon: float, interpret: bool):
  """`fused.norm_gradients` for the rows of one device: (first row, total, *gradients, scale, seeds)."""
  *gradients, scale, seeds = gradients_and_others
  shape, width = total.shape, total.shape[-1]
  strip, padded = strips(total.size // width), pl.next_power_of_2(width)
  tile_rows = min(strip, max(1, TILE // padded))
  programs = total.size // width // strip
  rows = pl.BlockSpec((strip, padded), lambda i: (i, 0))
  flat = jax.ShapeDtypeStruct((total.size // width, width), total.dtype)
  dx, *dy, sums = pl.pallas_call(
    functools.partial(_norm_kernel, rate=rate, epsilon=epsilon, tile_rows=tile_rows, width=width),
    grid=(programs,),
    in_specs=[pl.BlockSpec((3,), lambda i: (0,)), pl.BlockSpec((padded,), lambda i: (0,))] +
             [rows] * (1 + len(gradients)),
    out_specs=[rows] * (2 if rate else 1) + [pl.BlockSpec((None, 3, padded), lambda i: (i, 0, 0))],
    out_shape=[flat] * (2 if rate else 1) + [jax.ShapeDtypeStruct((programs, 3, width), jnp.float32)],
    compiler_params=_warps(padded),
    interpret=interpret, name="norm_gradients",
  )(_with_row(seeds, first_row), scale, *(x.reshape(flat.shape) for x in (total, *gradients)))
  dy = dy[0] if rate else dx
  return dx.reshape(shape), dy.reshape(shape), sums.sum(0)


def _norm_kernel(seeds_ref, scale_ref, total_ref, *refs, rate, epsilon, tile_rows, width):
  num_outputs = 3 if rate else 2
  gradient_refs, (dx_ref, *dy_refs, sums_ref) = refs[:-num_outputs], refs[-num_outputs:]
  strip, padded = total_ref.shape
  columns = jnp.arange(padded)
  inside = columns < width
  is_inside = jnp.broadcast_to(inside[None], (tile_rows, padded))
  share = np.float32(1 / width)
  scale = triton.load(scale_ref.at[:], mask=inside, other=0.0)
  first_row = pl.program_id(0) * strip

  def tile(index, sums):
    rows = pl.ds(index * tile_rows, tile_rows)
    total, *gradients = (triton.load(ref.at[rows, :], mask=is_inside, other=0.0).astype(jnp.float32)
                         for ref in (total_ref, *gradient_refs))
    gradient = sum(gradients[1:], gradients[0])
    standard, inverse = _standardised(total, is_inside, width, epsilon)
    scaled = gradient * scale[None]
    mean = (scaled.sum(1) * share)[:, None]
    along = ((scaled * standard).sum(1) * share)[:, None]
    dx = inverse * (scaled - mean - standard * along)
    triton.store(dx_ref.at[rows, :], dx.astype(dx_ref.dtype), mask=is_inside)
    dy = dx
    if rate:
      keep = _keep(seeds_ref, first_row + index * tile_rows, tile_rows, columns, width, rate)
      dy = jnp.where(keep, dx * np.float32(1 / (1 - rate)), 0.0)
      triton.store(dy_refs[0].at[rows, :], dy.astype(dx_ref.dtype), mask=is_inside)
    return sums[0] + gradient * standard, sums[1] + gradient, sums[2] + dy

  zeros = jnp.zeros((tile_rows, padded), jnp.float32)
  sums = jax.lax.fori_loop(0, strip // tile_rows, tile, (zeros, zeros, zeros))
  for place, total in enumerate(sums):
    triton.store(sums_ref.at[pl.ds(place, 1), :], total.sum(0)[None], mask=inside[None])


@functools.partial(jax.jit, static_argnames=("derivative", "interpret"))
def activation_gradients(first_row, product, gradient, bias, *, derivative, interpret: bool):
  """(gradient * derivative(product + bias), its sum over the rows) for the rows of one device."""
  del first_row
  shape, width = product.shape, product.shape[-1]
  product, gradient = product.reshape(-1, width), gradient.reshape(-1, width)
  columns = 128
  strip = strips(product.shape[0])
  tile_rows = min(strip, TILE // 2 // columns)
  tiles = pl.BlockSpec((strip, columns), lambda j, i: (i, j))
  dx, sums = pl.pallas_call(
    functools.partial(_activation_kernel, derivative=derivative, tile_rows=tile_rows),
    grid=(width // columns, product.shape[0] // strip),
    in_specs=[pl.BlockSpec((columns,), lambda j, i: (j,)), tiles, tiles],
    out_specs=[tiles, pl.BlockSpec((None, columns), lambda j, i: (i, j))],
    out_shape=[jax.ShapeDtypeStruct(product.shape, product.dtype),
               jax.ShapeDtypeStruct((product.shape[0] // strip, width), jnp.float32)],
    compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
    interpret=interpret, name="activation_gradients",
  )(bias, product, gradient)
  return dx.reshape(shape), sums.sum(0)


def _activation_kernel(bias_ref, product_ref, gradient_ref, dx_ref, sums_ref, *, derivative, tile_rows):
  strip, columns = product_ref.shape
  bias = bias_ref[...].astype(product_ref.dtype)[None]

  def tile(index, total):
    rows = pl.ds(index * tile_rows, tile_rows)
    x = (product_ref[rows, :] + bias).astype(jnp.float32)
    dx = gradient_ref[rows, :].astype(jnp.float32) * derivative(x)
    dx_ref[rows, :] = dx.astype(dx_ref.dtype)
    return total + dx

  zeros = jnp.zeros((tile_rows, columns), jnp.float32)
  sums_ref[...] = jax.lax.fori_loop(0, strip // tile_rows, tile, zeros).sum(0)
