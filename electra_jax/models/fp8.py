"""Products of linear maps in 8 bits: e4m3 forward, e5m2 for gradients (Micikevicius et al. 2022), a scale per array.

The gradient of a kernel stays in the type of the activations: for it both operands would have to be transposed, which
takes as long as the product saves. For the same reason a product is in 8 bits only where the activations or gradients
that have to be rounded for it are no wider than its result.
"""

import jax
import jax.numpy as jnp
from flax.linen import fp8_ops
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

FORWARD, BACKWARD = jnp.float8_e4m3fn, jnp.float8_e5m2
MULTIPLE = 16  # of both widths, as cuBLASLt wants it
SAMPLE = 16  # one row of so many says how large a long array's entries are
MARGIN = 1  # doublings of its largest one that the other rows' may reach; beyond, they become the largest number


def fits(precision: str, inputs: int, outputs: int) -> bool:
  """Whether `train.matmul_precision` and the widths of a linear map allow it."""
  return precision == "fp8" and inputs % MULTIPLE == 0 and outputs % MULTIPLE == 0


@jax.custom_vjp
def product(rows: Float[Array, "rows inputs"], kernel: Float[Array, "inputs outputs"]) -> Float[Array, "rows outputs"]:
  """rows @ kernel in their common type, which master weights have been rounded to."""
  return _forward(rows, kernel)[0]


def _forward(rows, kernel):
  inputs, outputs = kernel.shape
  return _multiply(rows, kernel, FORWARD) if inputs <= outputs else rows @ kernel, (rows, kernel)


def _backward(residuals, gradient):
  rows, kernel = residuals
  inputs, outputs = kernel.shape
  d_rows = _multiply(gradient, kernel.T, BACKWARD) if outputs <= inputs else gradient @ kernel.T
  return d_rows, rows.T @ gradient


product.defvjp(_forward, _backward)


def _multiply(rows, kernel, dtype):
  rows_8, rows_scale = quantise(rows, dtype, sample=SAMPLE)
  kernel_8, kernel_scale = quantise(kernel, FORWARD)
  result = jax.lax.dot(rows_8, kernel_8, preferred_element_type=rows.dtype)
  return result * (rows_scale * kernel_scale).astype(rows.dtype)


def quantise(x: Float[Array, "rows width"], dtype: DTypeLike, sample: int = 1) -> tuple[Array, Float[Array, ""]]:
  """(x / scale in 8 bits, scale: float32) with twice the largest entry of every `sample`-th row at the type's largest.

  >>> x, scale = quantise(jnp.array([[1e-6, -3e-6]]), BACKWARD)
  >>> [round(float(entry) * 1e6, 2) for entry in x[0].astype(float) * scale]
  [1.07, -3.0]
  """
  largest = jnp.max(jnp.abs(x[::sample])).astype(jnp.float32)
  scale = fp8_ops.compute_scale(largest, jnp.ones(()), fp8_ops.get_fp8_max(dtype, jnp.float32), MARGIN)
  return fp8_ops.quantize(x, dtype, scale, jnp.float32), scale
