"""Is an update of stacks the update of each of their parameters?"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from electra_jax import optim, sharding
from electra_jax.objectives.base import Phase
from electra_jax.optim import stacks
from electra_jax.training import step
from electra_jax.training.train_state import TrainState

SHAPES = {"kernel": (3, 4), "bias": (4,), "output_bias": (1,), "scale": (5,), "embedding": (7, 2)}


def parameters(seed: int) -> dict:
  rng = np.random.default_rng(seed)
  params = {layer: {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in SHAPES.items()}
            for layer in ("layer_00", "layer_01")}
  return params | {"layer_02": {"kernel": jnp.zeros((3, 4)), "bias": jnp.zeros((3, 4))}}


def make_optimizer(name: str) -> optax.GradientTransformation:
  return optim.make(ConfigDict(dict(
    name=name, learning_rate=0.1, warmup_steps=1, schedule="linear", clip_norm=1.0, weight_decay_rate=0.1, beta1=0.9,
    beta2=0.99, epsilon=1e-6, bias_correction=True, polynomial_power=1.0)), 10)[0]


@pytest.mark.parametrize("name", ("lamb", "adamw"))
def test_an_update_of_stacks_is_the_update_of_each_parameter(name):
  tx, params = make_optimizer(name), parameters(0)
  state = TrainState(jnp.zeros((), jnp.int32), params, tx.init(params))
  stack, unstack = stacks.make(params)
  jax.tree.map(np.testing.assert_array_equal, unstack(stack(state)), state)
  stacked = stack(state)
  assert {name: rows.shape[0] for name, rows in stacked.params[stacks.STACKS].items()} == {
    "3x4/kernel": 3, "4/bias": 2, "1/bias": 2, "5/bias": 2, "7x2/kernel": 2, "3x4/bias": 1}
  for seed in (1, 2, 3):
    gradients = parameters(seed)
    updates, opt_state = tx.update(gradients, state.opt_state, state.params)
    state = TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state)
    updates, opt_state = tx.update(stack(gradients), stacked.opt_state, stacked.params)
    stacked = TrainState(stacked.step + 1, optax.apply_updates(stacked.params, updates), opt_state)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), unstack(stacked), state)
  assert jax.tree.structure(unstack(stacked)) == jax.tree.structure(state)


@pytest.mark.parametrize("platform, updates, trainable, dtype, is_stacked", [
  ("gpu", 2, (".*",), None, True), ("cpu", 2, (".*",), None, False), ("gpu", 1, (".*",), None, False),
  ("gpu", 2, ("layer_00/.*",), None, False), ("gpu", 2, (".*", ".*"), None, False),
  ("gpu", 2, (".*",), jnp.bfloat16, False)])
def test_stacks_are_where_parameters_are_whole_and_several_updates_follow(monkeypatch, platform, updates, trainable,
                                                                          dtype, is_stacked):
  monkeypatch.setattr(sharding, "platform", lambda: platform)
  phases = tuple(Phase(1, lambda *_: None, pattern) for pattern in trainable)  # ty: ignore[invalid-argument-type]
  chosen = step.choose_layout(parameters(0), updates, phases, dtype)
  assert (chosen is not stacks.PLAIN) == is_stacked
