"""Layer norm, dropout and their gradients in one pass over memory: Triton kernels, written in Pallas.

A program walks down a strip of rows, and adds up what the biases and the layer norm's parameters get on its way.
Each function is jitted by itself: layers that are alike are traced and lowered once.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.typing import DTypeLike

from electra_jax import sharding
from electra_jax.models import dropout

PROGRAMS = 1024  # strips of rows, at most: several for each of a GPU's 132 multiprocessors
COLUMNS = 256  # of 16 bits each: one load of 16 bytes by each thread of a warp, so a row's sums stay within its warp
TILE = 4096  # elements of as many whole rows as a program holds at a time, up to 32 for each of its threads
GPU = ("triton", "mosaic", "interpret", "interpret_mosaic")  # of the backends, those whose kernels these are
WARPS = triton.CompilerParams(num_warps=4, num_stages=2)
SPREAD = (16, 256)  # rows and columns of a tile of an activation, which has no sums along the row
GRADIENT_SPREAD = (8, 256)  # of its gradient


def choose(kernels: str, dtype: DTypeLike) -> str:
  """`auto` becomes, with 16-bit activations, pallas on a TPU, mosaic on a Hopper GPU (H100, H200) and triton on other
  GPUs, and xla, the compiler's own code, everywhere else. Pallas and mosaic are for attention and mosaic for
  `linear_gelu`: the kernels here are Triton's on all GPUs, and TPUs have none of them.
  """
  if kernels != "auto":
    return kernels
  platform = sharding.platform() if jnp.dtype(dtype).itemsize == 2 else "cpu"
  if platform != "gpu":
    return "pallas" if platform == "tpu" else "xla"
  return "mosaic" if jax.devices()[0].compute_capability == "9.0" else "triton"


def fits(kernels: str, shape: tuple[int, ...]) -> bool:
  """Whether a kernel takes [batch, length, features]: whole tiles of 16 rows and of 128 features."""
  return kernels in GPU and len(shape) == 3 and shape[1] % 16 == 0 and shape[2] % 128 == 0


def strips(num_rows: int) -> int:
  """Rows of a strip: a power of two that divides their number, for at most PROGRAMS strips where that is possible.

  >>> strips(131072), strips(16384), strips(96)
  (128, 16, 16)
  """
  largest = num_rows & -num_rows
  return min(largest, max(16, pl.next_power_of_2(pl.cdiv(num_rows, PROGRAMS))))


@functools.partial(jax.jit, static_argnames=("rate", "epsilon", "interpret"))
def add_norm(first_row: Array, x: Array, y: Array, bias: Array, norm_scale: Array, norm_bias: Array, seeds: Array, *,
             rate: float, epsilon: float, interpret: bool):
  """(total, layer_norm(total)) with total = x + dropout(y + bias) for the rows of one device.

  `first_row` is the place of its first one among the rows of all devices.
  """
  shape, width = x.shape, x.shape[-1]
  x, y = x.reshape(-1, width), y.reshape(-1, width)
  tile_rows = _tile_rows(x.shape[0], width)
  rows = pl.BlockSpec((tile_rows, width), lambda i: (i, 0))
  vector = pl.BlockSpec((width,), lambda i: (0,))
  total, out = pl.pallas_call(
    functools.partial(_add_norm_kernel, rate=rate, epsilon=epsilon),
    grid=(x.shape[0] // tile_rows,),
    in_specs=[pl.BlockSpec((3,), lambda i: (0,)), vector, vector, vector, rows, rows], out_specs=[rows, rows],
    out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype)] * 2,
    compiler_params=WARPS, interpret=interpret, name="add_norm",
  )(_with_row(seeds, first_row), bias, norm_scale, norm_bias, x, y)
  return total.reshape(shape), out.reshape(shape)


def _with_row(seeds, first_row):
  return jnp.concatenate([seeds, first_row.reshape(1).astype(jnp.uint32)])


def _tile_rows(num_rows: int, width: int) -> int:
  return min(strips(num_rows), max(1, TILE // pl.next_power_of_2(width)))


def _parts(width: int) -> list[slice]:
  """The columns of a row in equal parts, each a power of two wide, as Triton wants it."""
  size = math.gcd(width, COLUMNS)
  return [slice(start, start + size) for start in range(0, width, size)]


def _keep(seeds_ref, first_row, num_rows: int, part: slice, width: int, rate: float):
  row = seeds_ref[2] + first_row.astype(jnp.uint32) + jnp.arange(num_rows, dtype=jnp.uint32)
  column = jnp.arange(part.stop - part.start, dtype=jnp.uint32) + np.uint32(part.start)
  element = row[:, None] * np.uint32(width) + column[None]
  return dropout.bits((seeds_ref[0], seeds_ref[1]), element) >= dropout.threshold(rate)


def _mean(parts: list, width: int):
  """The mean of each row over all of its parts: [rows, 1]."""
  return (sum(part.sum(1) for part in parts) * np.float32(1 / width))[:, None]


def _standardised(parts: list, width: int, epsilon: float):
  mean = _mean(parts, width)
  centred = [part - mean for part in parts]
  inverse = jax.lax.rsqrt(_mean([part * part for part in centred], width) + epsilon)
  return [part * inverse for part in centred], inverse


def _add_norm_kernel(seeds_ref, bias_ref, scale_ref, offset_ref, x_ref, y_ref, total_ref, out_ref, *, rate, epsilon):
  tile_rows, width = x_ref.shape
  parts, totals = _parts(width), []
  for part in parts:
    y = y_ref[:, part].astype(jnp.float32) + bias_ref[part][None]
    if rate:
      keep = _keep(seeds_ref, pl.program_id(0) * tile_rows, tile_rows, part, width, rate)
      y = jnp.where(keep, y * np.float32(1 / (1 - rate)), 0.0)
    total = (x_ref[:, part].astype(jnp.float32) + y).astype(total_ref.dtype)
    total_ref[:, part] = total
    totals.append(total.astype(jnp.float32))
  standard, _ = _standardised(totals, width, epsilon)
  for part, values in zip(parts, standard, strict=True):
    out_ref[:, part] = (values * scale_ref[part][None] + offset_ref[part][None]).astype(out_ref.dtype)


@functools.partial(jax.jit, static_argnames=("rate", "epsilon", "interpret"))
def norm_gradients(first_row: Array, total: Array, *gradients_and_others, rate: float, epsilon: float, interpret: bool):
  """`fused.norm_gradients` for the rows of one device: (first row, total, *gradients, norm_scale, seeds)."""
  *gradients, norm_scale, seeds = gradients_and_others
  shape, width = total.shape, total.shape[-1]
  strip = strips(total.size // width)
  programs = total.size // width // strip
  rows = pl.BlockSpec((strip, width), lambda i: (i, 0))
  flat = jax.ShapeDtypeStruct((total.size // width, width), total.dtype)
  dx, *dy, sums = pl.pallas_call(
    functools.partial(_norm_kernel, rate=rate, epsilon=epsilon, tile_rows=_tile_rows(total.size // width, width)),
    grid=(programs,),
    in_specs=[pl.BlockSpec((3,), lambda i: (0,)), pl.BlockSpec((width,), lambda i: (0,)), rows,
              *[rows] * len(gradients)],
    out_specs=[rows] * (2 if rate else 1) + [pl.BlockSpec((None, 3, width), lambda i: (i, 0, 0))],
    out_shape=[flat] * (2 if rate else 1) + [jax.ShapeDtypeStruct((programs, 3, width), jnp.float32)],
    compiler_params=WARPS, interpret=interpret, name="norm_gradients",
  )(_with_row(seeds, first_row), norm_scale, *(x.reshape(flat.shape) for x in (total, *gradients)))
  dy = dy[0] if rate else dx
  return dx.reshape(shape), dy.reshape(shape), sums.sum(0)


def _norm_kernel(seeds_ref, scale_ref, total_ref, *refs, rate, epsilon, tile_rows):
  num_outputs = 3 if rate else 2
  gradient_refs, (dx_ref, *dy_refs, sums_ref) = refs[:-num_outputs], refs[-num_outputs:]
  strip, width = total_ref.shape
  parts = _parts(width)
  first_row = pl.program_id(0) * strip

  def tile(index, sums):
    rows = pl.ds(index * tile_rows, tile_rows)
    total = [total_ref[rows, part].astype(jnp.float32) for part in parts]
    gradient = [sum(ref[rows, part].astype(jnp.float32) for ref in gradient_refs) for part in parts]
    standard, inverse = _standardised(total, width, epsilon)
    scaled = [values * scale_ref[part][None] for part, values in zip(parts, gradient, strict=True)]
    mean = _mean(scaled, width)
    along = _mean([a * b for a, b in zip(scaled, standard, strict=True)], width)
    new = []
    for place, part in enumerate(parts):
      dx = inverse * (scaled[place] - mean - standard[place] * along)
      dx_ref[rows, part] = dx.astype(dx_ref.dtype)
      dy = dx
      if rate:
        keep = _keep(seeds_ref, first_row + index * tile_rows, tile_rows, part, width, rate)
        dy = jnp.where(keep, dx * np.float32(1 / (1 - rate)), 0.0)
        dy_refs[0][rows, part] = dy.astype(dx_ref.dtype)
      new.append((gradient[place] * standard[place], gradient[place], dy))
    return jax.tree.map(jnp.add, sums, new)

  zeros = [(jnp.zeros((tile_rows, part.stop - part.start), jnp.float32),) * 3 for part in parts]
  for part, sums in zip(parts, jax.lax.fori_loop(0, strip // tile_rows, tile, zeros), strict=True):
    for place, total in enumerate(sums):
      sums_ref[place, part] = total.sum(0)


@functools.partial(jax.jit, static_argnames=("function", "interpret"))
def activation(first_row: Array, product: Array, bias: Array, *, function: Callable, interpret: bool):
  """(function(product + bias),) for the rows of one device."""
  del first_row
  shape, width = product.shape, product.shape[-1]
  product = product.reshape(-1, width)
  tile_rows, columns = min(SPREAD[0], strips(product.shape[0])), math.gcd(width, SPREAD[1])
  tiles = pl.BlockSpec((tile_rows, columns), lambda j, i: (i, j))
  out = pl.pallas_call(
    functools.partial(_activation_kernel, function=function), grid=(width // columns, product.shape[0] // tile_rows),
    in_specs=[pl.BlockSpec((columns,), lambda j, i: (j,)), tiles], out_specs=tiles,
    out_shape=jax.ShapeDtypeStruct(product.shape, product.dtype),
    compiler_params=WARPS, interpret=interpret, name="activation",
  )(bias, product)
  return (out.reshape(shape),)


def _activation_kernel(bias_ref, product_ref, out_ref, *, function):
  x = product_ref[...] + bias_ref[...].astype(product_ref.dtype)[None]
  out_ref[...] = function(x.astype(jnp.float32)).astype(out_ref.dtype)


@functools.partial(jax.jit, static_argnames=("derivative", "interpret"))
def activation_gradients(first_row: Array, product: Array, gradient: Array, bias: Array, *,
                         derivative: Callable, interpret: bool):
  """(gradient * derivative(product + bias), its sum over the rows) for the rows of one device."""
  del first_row
  shape, width = product.shape, product.shape[-1]
  product, gradient = product.reshape(-1, width), gradient.reshape(-1, width)
  strip, columns = strips(product.shape[0]), math.gcd(width, GRADIENT_SPREAD[1])
  tiles = pl.BlockSpec((strip, columns), lambda j, i: (i, j))
  dx, sums = pl.pallas_call(
    functools.partial(_derivative_kernel, derivative=derivative, tile_rows=min(strip, GRADIENT_SPREAD[0])),
    grid=(width // columns, product.shape[0] // strip),
    in_specs=[pl.BlockSpec((columns,), lambda j, i: (j,)), tiles, tiles],
    out_specs=[tiles, pl.BlockSpec((None, columns), lambda j, i: (i, j))],
    out_shape=[jax.ShapeDtypeStruct(product.shape, product.dtype),
               jax.ShapeDtypeStruct((product.shape[0] // strip, width), jnp.float32)],
    compiler_params=WARPS, interpret=interpret, name="activation_gradients",
  )(bias, product, gradient)
  return dx.reshape(shape), sums.sum(0)


def _derivative_kernel(bias_ref, product_ref, gradient_ref, dx_ref, sums_ref, *, derivative, tile_rows):
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
