"""Steps of a layer with gradients of their own, those that memory traffic decides: norm, dropout, GELU.

Differentiated step by step they would keep float32 intermediates of the activations' size, and read the gradients
again for each bias. Written out, they keep one 16-bit array, and a GPU's kernel (`triton_rows`) returns every gradient.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from electra_jax import sharding
from electra_jax.models.dropout import keep_mask
from electra_jax.models.kernels import triton_rows

# The activations between two halves of layers: for the residual and for the linear map, see `dropout_add_norm`.
Stream = tuple[Float[Array, "batch length hidden"], Float[Array, "batch length hidden"]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8))
def dropout_add_norm(x: Float[Array, "batch length hidden"], y: Float[Array, "batch length hidden"],
                     bias: Float[Array, "hidden"], norm_scale: Float[Array, "hidden"],
                     norm_bias: Float[Array, "hidden"], seeds: UInt32[Array, "2"], rate: float, epsilon: float,
                     kernels: str) -> Stream:
  """layer_norm(x + dropout(y + bias)): what ends both halves of a Transformer layer.

  Args:
    x: the residual stream.
    y: the product of the half's last linear map, without its bias.
    bias: of that linear map, float32.
    norm_scale, norm_bias: of the layer norm, float32.
    seeds: of the dropout, see `dropout.seeds_of`; unused at rate 0.
    rate: of the dropout.
    epsilon: added to the variance.
    kernels: xla | triton | mosaic | interpret, see `triton_rows.choose`.

  Returns:
    The result twice: for the next residual and for the next linear map. So their gradients arrive apart, and are
    added where they are read.
  """
  return _dropout_add_norm_forward(x, y, bias, norm_scale, norm_bias, seeds, rate, epsilon, kernels)[0]


@jax.named_scope("norm")
def _dropout_add_norm_forward(x, y, bias, norm_scale, norm_bias, seeds, rate, epsilon, kernels):
  if triton_rows.fits(kernels, x.shape):
    call = functools.partial(triton_rows.add_norm, rate=rate, epsilon=epsilon, interpret=kernels == "interpret")
    total, out = sharding.on_local_rows(call, (x, y), (bias, norm_scale, norm_bias, seeds), sums=False)
  else:
    if sharding.device_kind() == "TPU v4":  # its fast memory does not hold the product and what follows it
      y = jax.lax.optimization_barrier(y)
    y = y + bias.astype(y.dtype)
    if rate:
      y = jnp.where(keep_mask(seeds, y.shape, rate), y * (1 / (1 - rate)), 0)
    total = (x + y).astype(x.dtype)
    out = normalised(total, norm_scale, norm_bias, epsilon)
  return (out, out), (total, bias, norm_scale, seeds)


@jax.named_scope("norm")
def _dropout_add_norm_backward(rate, epsilon, kernels, residuals, gradients):
  total, bias, norm_scale, seeds = residuals
  dx, dy, sums = norm_gradients(total, gradients, norm_scale, seeds, rate, epsilon, kernels)
  d_scale, d_norm_bias, d_bias = sums
  return dx, dy, d_bias.astype(bias.dtype), d_scale, d_norm_bias, None


dropout_add_norm.defvjp(_dropout_add_norm_forward, _dropout_add_norm_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def layer_norm(x: Float[Array, "batch length hidden"], norm_scale: Float[Array, "hidden"],
               norm_bias: Float[Array, "hidden"], epsilon: float, kernels: str) -> Float[Array, "batch length hidden"]:
  """Layer norm over the last axis; statistics in float32."""
  del kernels
  return normalised(x, norm_scale, norm_bias, epsilon)


@jax.named_scope("norm")
def _layer_norm_forward(x, norm_scale, norm_bias, epsilon, kernels):
  return layer_norm(x, norm_scale, norm_bias, epsilon, kernels), (x, norm_scale)


@jax.named_scope("norm")
def _layer_norm_backward(epsilon, kernels, residuals, gradient):
  x, norm_scale = residuals
  dx, _, sums = norm_gradients(x, (gradient,), norm_scale, jnp.zeros(2, jnp.uint32), 0.0, epsilon, kernels)
  return dx, sums[0], sums[1]


layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)


def normalised(x: Float[Array, "*rows hidden"], norm_scale: Float[Array, "hidden"], norm_bias: Float[Array, "hidden"],
               epsilon: float) -> Float[Array, "*rows hidden"]:
  """(x - mean) / sqrt(variance + epsilon) * norm_scale + norm_bias.

  The variance is the mean of squared differences: E[x^2] - E[x]^2 loses the digits that parity tests need. Not so of
  16-bit activations on a TPU: there both means come with the product before, a pass less, and the difference loses a
  twentieth of what the rounding of x loses.
  """
  standard, _ = _standardised(x, epsilon)
  return (standard * norm_scale + norm_bias).astype(x.dtype)


def _standardised(x, epsilon):
  in_one_pass = x.dtype.itemsize == 2 and sharding.platform() == "tpu"
  x = x.astype(jnp.float32)
  mean = x.mean(-1, keepdims=True)
  centred = x - mean
  variance = (jnp.maximum(jnp.square(x).mean(-1, keepdims=True) - jnp.square(mean), 0) if in_one_pass else
              jnp.square(centred).mean(-1, keepdims=True))
  inverse = jax.lax.rsqrt(variance + epsilon)
  return centred * inverse, inverse


def norm_gradients(total: Array, gradients: Any, norm_scale: Array, seeds: Array, rate: float, epsilon: float,
                   kernels: str) -> tuple:
  """(dx, dy, [d norm_scale, d norm_bias, d bias]) of layer_norm(total) with total = x + dropout(y + bias).

  `gradients` are added; dy is dx itself at rate 0.
  """
  if triton_rows.fits(kernels, total.shape):
    call = functools.partial(triton_rows.norm_gradients, rate=rate, epsilon=epsilon, interpret=kernels == "interpret")
    return sharding.on_local_rows(call, (total, *gradients), (norm_scale, seeds))
  standard, inverse = _standardised(total, epsilon)
  gradient = sum(gradient.astype(jnp.float32) for gradient in gradients)
  scaled = gradient * norm_scale
  dx = inverse * (scaled - scaled.mean(-1, keepdims=True) - standard * (scaled * standard).mean(-1, keepdims=True))
  dy = jnp.where(keep_mask(seeds, dx.shape, rate), dx * (1 / (1 - rate)), 0) if rate else dx
  rows = tuple(range(dx.ndim - 1))
  sums = jnp.stack([(gradient * standard).sum(rows), gradient.sum(rows), dy.sum(rows)])
  return dx.astype(total.dtype), dy.astype(total.dtype), sums


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def bias_gelu(product: Float[Array, "batch length mlp"], bias: Float[Array, "mlp"], hidden_act: str, kernels: str,
              axis: str | None = None) -> Float[Array, "batch length mlp"]:
  """gelu(product + bias) for hidden_act gelu (erf) or gelu_new (tanh); only its input is kept for the gradient.

  `axis` is the logical axis of the features, where they are split over devices.
  """
  return _bias_gelu_forward(product, bias, hidden_act, kernels, axis)[0]


def _bias_gelu_forward(product, bias, hidden_act, kernels, axis):
  if triton_rows.fits(kernels, product.shape):
    call = functools.partial(triton_rows.activation, function=_in_kernel(gelu, hidden_act),
                             interpret=kernels.startswith("interpret"))
    out, = sharding.on_local_rows(call, (product,), (bias,), features=axis, sums=False)
  else:
    out = gelu(hidden_act, (product + bias.astype(product.dtype)).astype(jnp.float32)).astype(product.dtype)
  return out, (product, bias)


def bias_gelu_gradients(hidden_act: str, kernels: str, axis: str | None, residuals: tuple[Array, Array],
                        gradient: Array) -> tuple[Array, Array]:
  """(gradient of the product, gradient of the bias) of `bias_gelu`; residuals: product, bias."""
  product, bias = residuals
  if triton_rows.fits(kernels, product.shape):
    call = functools.partial(triton_rows.activation_gradients, derivative=_in_kernel(derivative, hidden_act),
                             interpret=kernels.startswith("interpret"))
    dx, d_bias = sharding.on_local_rows(call, (product, gradient), (bias,), features=axis)
  else:
    x = (product + bias.astype(product.dtype)).astype(jnp.float32)
    wide = gradient.astype(jnp.float32) * derivative(hidden_act, x)
    dx, d_bias = wide.astype(product.dtype), wide.sum(tuple(range(x.ndim - 1)))
  return dx, d_bias.astype(bias.dtype)


bias_gelu.defvjp(_bias_gelu_forward, bias_gelu_gradients)

@jax.custom_vjp
def add_bias(product: Float[Array, "..."], bias: Float[Array, "..."]) -> Float[Array, "..."]:
  """product + bias over the last axes; the bias's gradient is summed in float32 whatever the product's dtype is."""
  return product + bias.astype(product.dtype)


add_bias.defvjp(lambda product, bias: (add_bias(product, bias), bias), lambda bias, gradient: (
  gradient, gradient.astype(jnp.float32).sum(tuple(range(gradient.ndim - bias.ndim))).astype(bias.dtype)))

TANH_SCALE, TANH_CUBIC = math.sqrt(2 / math.pi), 0.044715


def _gate(x, hidden_act: str):
  """The factor of x in GELU: the normal distribution function, or its approximation by tanh."""
  if hidden_act == "gelu":
    return 0.5 * (1 + jax.lax.erf(x * math.sqrt(0.5)))
  return 0.5 * (1 + jnp.tanh(TANH_SCALE * (x + TANH_CUBIC * x * x * x)))


def gelu(hidden_act: str, x: Float[Array, "..."], gate: Callable = _gate) -> Float[Array, "..."]:
  """GELU with the normal distribution function, or with its approximation by tanh, in float32."""
  return x * gate(x, hidden_act)


def derivative(hidden_act: str, x: Float[Array, "..."], gate: Callable = _gate) -> Float[Array, "..."]:
  """d gelu(x) / dx in float32.

  >>> round(float(derivative("gelu", jnp.float32(0.0))), 4), round(float(derivative("gelu_new", jnp.float32(8.0))), 4)
  (0.5, 1.0)
  """
  share = gate(x, hidden_act)
  if hidden_act == "gelu":
    return share + x * jnp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
  slope = TANH_SCALE * (1 + 3 * TANH_CUBIC * x * x)
  return share + 2 * x * share * (1 - share) * slope  # 1 - tanh^2 = 4 share (1 - share)


@functools.cache  # jit knows a function by its identity: one object for all layers
def _in_kernel(function, hidden_act: str):
  return functools.partial(function, hidden_act, gate=kernel_gate)


def kernel_gate(x: Float[Array, "..."], hidden_act: str) -> Float[Array, "..."]:
  """`_gate` without erf, which Triton's Pallas lacks: Abramowitz and Stegun 7.1.26, wrong by 1e-7 at most.

  >>> x = jnp.linspace(-6, 6, 101)
  >>> bool(jnp.abs(kernel_gate(x, "gelu") - _gate(x, "gelu")).max() < 3e-7)
  True
  """
  if hidden_act != "gelu":
    return _gate(x, hidden_act)
  t = 1 / (1 + ERF_SLOPE * math.sqrt(0.5) * jnp.abs(x))
  series = 0.5 * ERF_SERIES[-1]
  for coefficient in reversed(ERF_SERIES[:-1]):
    series = series * t + 0.5 * coefficient  # one instruction
  tail = series * t * jnp.exp(-0.5 * x * x)  # beyond |x|; the derivative needs the same exp
  return jnp.where(x < 0, tail, 1 - tail)


ERF_SLOPE = 0.3275911
ERF_SERIES = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
