"""A linear map with GELU behind it, in one kernel on a Hopper GPU.

What is kept for the gradient is the sum of product and bias, rounded once: without the kernel the product is rounded
before the bias is added.
"""

import functools

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from electra_jax import sharding
from electra_jax.models import fused

MIN_OUTPUTS, MIN_INPUTS = 1024, 256  # from where on it was measured


def fits(kernels: str, shape: tuple[int, ...], outputs: int, hidden_act: str, dtype: DTypeLike) -> bool:
  """Whether the kernel takes x [batch, length, inputs] and as many outputs."""
  is_measured = kernels == "mosaic" and dtype == jnp.bfloat16 and outputs >= MIN_OUTPUTS
  is_whole = len(shape) == 3 and shape[1] % 128 == 0 and outputs % 128 == 0 and shape[2] % 64 == 0
  return ((is_measured or kernels == "interpret_mosaic") and is_whole and shape[2] >= MIN_INPUTS
          and hidden_act == "gelu" and sharding.axis_size("mlp") == 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def linear_gelu(x: Float[Array, "batch length inputs"], kernel: Float[Array, "inputs outputs"],
                bias: Float[Array, "outputs"], kernels: str) -> Float[Array, "batch length outputs"]:
  """gelu(x @ kernel + bias), by the normal distribution function, where it `fits`; x and kernel of one dtype."""
  return _forward(x, kernel, bias, kernels)[0]


def _forward(x, kernel, bias, kernels):
  from electra_jax.models.kernels import mosaic_product  # Mosaic takes 0.4 s to import

  def call(first_row, x, kernel, bias):
    del first_row
    out = mosaic_product.bias_gelu(x.reshape(-1, x.shape[-1]), kernel, bias, interpret=kernels == "interpret_mosaic")
    return tuple(array.reshape(*x.shape[:2], -1) for array in out)
  total, activation = sharding.on_local_rows(call, (x,), (kernel, bias), sums=False)
  return activation, (x, kernel, bias, total)


def _backward(kernels, residuals, gradient):
  x, kernel, bias, total = residuals
  d_total, d_bias = fused.bias_gelu_gradients("gelu", kernels, None, (total, jnp.zeros_like(bias)), gradient)
  rows, d_rows = x.reshape(-1, x.shape[-1]), d_total.reshape(-1, total.shape[-1])
  return (d_rows @ kernel.T).reshape(x.shape), rows.T @ d_rows, d_bias


linear_gelu.defvjp(_forward, _backward)
