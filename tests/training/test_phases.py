"""The second phase of a run: its optimizer begins anew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import small
from electra_jax import config as config_lib
from electra_jax import sharding
from electra_jax.training import setup


@pytest.fixture(scope="module")
def run():
  given = small.get_config("tiny")
  given.objective.update(name="two_stage", weight_tying="none")
  given.generator.width_fraction = 1.0
  given.optimizer.update(name="adamw", warmup_steps=4, weight_decay_rate=0.0, clip_norm=0.0)
  config = config_lib.resolve(given)
  return setup.make(config, sharding.make_mesh(config.mesh, jax.devices()[:1]))


def test_the_learning_rate_of_each_stage_warms_up_and_decays(run):
  rates = [run.learning_rate(step) for step in range(40)]
  assert rates[:20] == rates[20:] and rates[0] < rates[3] > rates[19]


def test_the_first_update_of_the_second_stage_is_as_long_as_the_first_of_all(run):
  """3.1 to 6.4 times the learning rate where the bias correction's count goes on."""
  _, second = run.objective.phases
  state = run.init_state()
  gradients = jax.tree.map(jnp.ones_like, state.params)
  (first_optimizer, _), (optimizer, _) = run.optimizers
  opt_state = state.opt_state
  for _ in range(3):
    _, opt_state = jax.jit(first_optimizer.update)(jax.tree.map(jnp.zeros_like, gradients), opt_state, state.params)
  entered = run.enter(second, state._replace(opt_state=opt_state))
  updates, _ = optimizer.update(gradients, entered.opt_state, entered.params)
  for leaf in jax.tree.leaves(updates["discriminator"]):
    np.testing.assert_allclose(leaf, -run.learning_rate(20), rtol=1e-4)
