"""Is each schedule the shape it says, at its corners and under jit?"""

import math

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from electra_jax.optim import schedules


def branch(**keys):
  return ConfigDict(dict(learning_rate=0.5, warmup_steps=2) | keys)


def rates(warmup, num_steps, schedule="linear", **keys):
  rate = schedules.SCHEDULES[schedule](branch(warmup_steps=warmup, **keys), num_steps)
  return np.array([float(rate(step)) for step in range(num_steps + 2)])


SHAPES = {  # after a warm-up of 2 of 6 updates, in units of the peak; the last two are past the end
  "linear": [0.5, 1, 0.8, 0.6, 0.4, 0.2, 0, 0],
  "cosine": [0.5, 1, *[(1 - math.cos(math.pi * r)) / 2 for r in (0.8, 0.6, 0.4, 0.2)], 0, 0],
  "constant": [0.5] + [1] * 7,
  "wsd": [0.5, 1, 1, 1, 2 / 2.4, 1 / 2.4, 0, 0],
  "inverse_sqrt": [0.5, 1, *[math.sqrt(2 / n) for n in (3, 4, 5, 6, 7, 8)]],
}


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_shapes(name, monkeypatch):
  monkeypatch.setattr(schedules, "DECAY_SHARE", 0.4)
  np.testing.assert_allclose(rates(2, 6, name), 0.5 * np.array(SHAPES[name]), atol=1e-6)


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
  rate = schedules.linear(branch(learning_rate=2e-4, warmup_steps=10_000), 1_000_000)
  np.testing.assert_allclose(float(jax.jit(rate)(9_999)), 2e-4, rtol=1e-6)
  np.testing.assert_allclose(float(jax.jit(rate)(504_999)), 2e-4 * 495_001 / 990_001, rtol=1e-6)
  assert float(jax.jit(rate)(999_999)) > 0
