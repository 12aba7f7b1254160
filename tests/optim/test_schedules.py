"""Is the schedule the triangle it says, at its corners and under jit?"""

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from electra_jax.optim import schedules


def rates(warmup, num_steps, peak=0.5):
  rate = schedules.linear(ConfigDict(dict(learning_rate=peak, warmup_steps=warmup)), num_steps)
  return np.array([float(rate(step)) for step in range(num_steps + 2)])


def test_triangle():
  np.testing.assert_allclose(rates(2, 5), [0.25, 0.5, 0.375, 0.25, 0.125, 0.0, 0.0], atol=1e-7)


@pytest.mark.parametrize("warmup,num_steps", [(0, 1), (0, 7), (1, 7), (3, 7), (7, 7), (10, 200)])
def test_every_update_moves_and_the_peak_is_reached(warmup, num_steps):
  values = rates(warmup, num_steps)
  assert (values[:num_steps] > 0).all() and values[num_steps] == values[num_steps + 1] == 0
  assert values.max() == 0.5 and values.argmax() == max(warmup, 1) - 1


def test_a_run_of_zero_steps_is_defined():
  assert np.isfinite(rates(0, 0)).all()


def test_jit_and_large_steps():
  rate = schedules.linear(ConfigDict(dict(learning_rate=2e-4, warmup_steps=10_000)), 1_000_000)
  np.testing.assert_allclose(float(jax.jit(rate)(9_999)), 2e-4, rtol=1e-6)
  np.testing.assert_allclose(float(jax.jit(rate)(504_999)), 2e-4 * 495_001 / 990_001, rtol=1e-6)
  assert float(jax.jit(rate)(999_999)) > 0
