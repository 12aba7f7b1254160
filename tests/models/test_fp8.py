"""Are products in 8 bits close to the exact ones, whatever the size of their entries?"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from electra_jax import config as config_lib
from electra_jax import recipes
from electra_jax.models import fp8
from electra_jax.models.transformer import Layer
from electra_jax.training import setup


def operands(inputs: int, outputs: int, scale: float = 1.0) -> tuple:
  rng = np.random.default_rng(0)
  return tuple(jnp.asarray(rng.normal(size=shape) * size, jnp.float32) for shape, size in (
    ((64, inputs), 1.0), ((inputs, outputs), 0.02), ((64, outputs), scale)))


def error(ours, exact) -> float:
  return float(jnp.linalg.norm(ours - exact) / jnp.linalg.norm(exact))


@pytest.mark.parametrize("inputs, outputs, forward, backward", [(32, 32, True, True), (32, 96, True, False),
                                                                (96, 32, False, True)])
@pytest.mark.parametrize("scale", (1.0, 1e-7))
def test_what_is_rounded_is_the_narrower_side(inputs, outputs, forward, backward, scale):
  rows, kernel, gradient = operands(inputs, outputs, scale)
  ours, theirs = (jax.vjp(product, rows, kernel) for product in (fp8.product, jnp.matmul))
  errors = [error(ours[0], theirs[0]), *map(error, ours[1](gradient), theirs[1](gradient))]
  assert [0.01 < one < 0.09 for one in errors] == [forward, backward, False]  # three bits, or two, of fraction
  assert errors[2] < 1e-6


def test_zeros_and_what_the_sample_has_not_seen_stay_finite():
  rows, kernel, _ = operands(32, 32)
  np.testing.assert_array_equal(fp8.product(jnp.zeros_like(rows), kernel), 0)
  larger, scale = fp8.quantise(rows.at[1].mul(1000), fp8.FORWARD, sample=16)
  values = larger.astype(jnp.float32) * scale
  assert bool(jnp.isfinite(values).all()) and values[1].max() == 2 * jnp.abs(rows[::16]).max()
  np.testing.assert_allclose(values[2:], rows[2:], rtol=0.07, atol=0.002)


def test_which_maps_it_takes():
  assert fp8.fits("fp8", 256, 1024)
  assert not fp8.fits("default", 256, 1024) and not fp8.fits("fp8", 256, 1) and not fp8.fits("fp8", 40, 64)


def test_the_variant_reaches_every_linear_map_of_a_layer():
  config = config_lib.resolve(recipes.load("configs/base.py:fp8")[1])
  transformer = setup.make_transformer(config, num_tokens=100)
  assert transformer.matmul_precision == "fp8"
  tiny = dataclasses.replace(transformer, hidden_size=32, intermediate_size=64, num_attention_heads=2,
                             initializer_range=0.3, dtype=jnp.dtype("float32"), kernels="xla")
  layers = [Layer(tiny), Layer(dataclasses.replace(tiny, matmul_precision="default"))]
  x, mask = jax.random.normal(jax.random.key(0), (2, 16, 32)), jnp.ones((2, 16), bool)
  params = layers[0].init(jax.random.key(1), (x, x), mask, False)

  def gradients(layer):
    return jax.grad(lambda params, x: layer.apply(params, (x, x), mask, False)[0][..., 0].sum(), (0, 1))(params, x)

  ours, theirs = map(gradients, layers)
  assert 0.01 < error(ours[1], theirs[1]) < 0.3
  assert sum(error(a, b) > 0.01 for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)) > 8
