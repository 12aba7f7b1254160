"""Are LAMB and AdamW what their papers say, parameter by parameter? Compared with NumPy loops of ten lines."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from electra_jax import optim
from electra_jax.errors import UserError

SHAPES = {"encoder": {"embeddings": {"token": {"embedding": (7, 4)}, "layer_norm": {"scale": (4,), "bias": (4,)}},
                      "layer_00": {"dense": {"kernel": (4, 3), "bias": (3,)}}},
          "mlm_head": {"output_bias": (7,)}}
DECAYED = {"embedding", "kernel"}


def branch(**changes):
  return ConfigDict(dict(name="adamw", schedule="linear", learning_rate=0.1, warmup_steps=2, beta1=0.9, beta2=0.99,
                         epsilon=1e-6, weight_decay_rate=0.05, bias_correction=True, clip_norm=0.0)
                    | changes)


def tree(rng, scale=1.0):
  return jax.tree.map(lambda shape: jnp.asarray(scale * rng.normal(size=shape), jnp.float32), SHAPES,
                      is_leaf=lambda x: isinstance(x, tuple))


def numpy_steps(c, num_steps, params, gradients):
  """One leaf per row of (name, array); gradients is a list of such lists."""
  params = [np.array(p, np.float64) for _, p in params]
  m, v = [0 * p for p in params], [0 * p for p in params]
  for t, (named, rate) in enumerate(zip(gradients, [0.05, 0.1, 0.1 * 3 / 4, 0.1 * 2 / 4, 0.1 / 4])):
    norm = np.sqrt(sum((np.asarray(g, np.float64) ** 2).sum() for _, g in named))
    shrink = min(1.0, c.clip_norm / norm) if c.clip_norm else 1.0
    for i, (name, g) in enumerate(named):
      g = np.asarray(g, np.float64) * shrink
      m[i] = c.beta1 * m[i] + (1 - c.beta1) * g
      v[i] = c.beta2 * v[i] + (1 - c.beta2) * g**2
      fix = [1 - b ** (t + 1) if c.bias_correction else 1.0 for b in (c.beta1, c.beta2)]
      u = (m[i] / fix[0]) / (np.sqrt(v[i] / fix[1]) + c.epsilon)
      u += c.weight_decay_rate * params[i] * (name in DECAYED)
      ratio = np.linalg.norm(params[i]) / np.linalg.norm(u) if c.name == "lamb" and name in DECAYED else 1.0
      params[i] = params[i] - rate * ratio * u
  return params


def leaves(params):
  return [(path[-1].key, leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]]


@pytest.mark.parametrize("clip_norm", [0.0, 1.5])
@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_five_steps_equal_numpy(name, bias_correction, clip_norm):
  c, rng = branch(name=name, bias_correction=bias_correction, clip_norm=clip_norm), np.random.default_rng(0)
  tx, _ = optim.make(c, num_steps=5)
  start = params = tree(rng)
  gradients = [tree(rng, scale) for scale in (0.1, 1.0, 3.0, 0.01, 1.0)]  # below and above the clip norm
  state, update = tx.init(params), jax.jit(tx.update)
  for gradient in gradients:
    delta, state = update(gradient, state, params)
    params = jax.tree.map(jnp.add, params, delta)
  expected = numpy_steps(c, 5, leaves(start), [leaves(g) for g in gradients])
  for (_, leaf), value in zip(leaves(params), expected):
    np.testing.assert_allclose(leaf, value, rtol=2e-5, atol=2e-6)  # float32 against float64, five steps


def first_delta(c, params, gradients, num_steps=10):
  tx, _ = optim.make(c, num_steps)
  return jax.tree.map(np.asarray, tx.update(gradients, tx.init(params), params)[0])


def test_trust_ratio_leaves_layer_norms_and_biases_alone():
  c = branch(name="lamb", warmup_steps=0, weight_decay_rate=0.0, beta2=0.999)
  params = {"layer_norm": {"scale": jnp.full(2, 10.0), "bias": jnp.zeros(2)}, "dense": {"kernel": jnp.full(2, 10.0)}}
  delta = first_delta(c, params, jax.tree.map(jnp.ones_like, params))
  np.testing.assert_allclose(delta["layer_norm"]["scale"], -0.1, rtol=1e-5)  # -1.0 if it were not excluded
  np.testing.assert_allclose(delta["layer_norm"]["bias"], -0.1, rtol=1e-5)
  np.testing.assert_allclose(delta["dense"]["kernel"], -1.0, rtol=1e-5)


def test_zero_norms_have_ratio_one():
  c = branch(name="lamb", warmup_steps=0, weight_decay_rate=0.0)
  zero, one = {"kernel": jnp.zeros(3)}, {"kernel": jnp.ones(3)}
  np.testing.assert_allclose(first_delta(c, zero, one)["kernel"], -0.1, rtol=1e-5)  # a parameter of norm 0
  np.testing.assert_array_equal(first_delta(c, one, zero)["kernel"], 0.0)  # a direction of norm 0


@pytest.mark.parametrize("bias_correction,factor", [(True, 1.0), (False, 0.1 / np.sqrt(0.001))])
def test_first_adam_step(bias_correction, factor):
  c = branch(warmup_steps=0, weight_decay_rate=0.0, beta2=0.999, epsilon=1e-12, bias_correction=bias_correction)
  delta = first_delta(c, {"kernel": jnp.ones(3)}, {"kernel": jnp.full(3, 0.3)})
  np.testing.assert_allclose(delta["kernel"], -0.1 * factor, rtol=1e-5)
  assert bias_correction or factor == pytest.approx(3.162, abs=1e-3)


@pytest.mark.parametrize("clip_norm,factor", [(0.0, 1.0), (1.0, 0.2), (100.0, 1.0)])
def test_clipping_uses_the_global_norm(clip_norm, factor):
  # Without corrections and with a huge epsilon the direction is proportional to the clipped gradient.
  c = branch(warmup_steps=0, weight_decay_rate=0.0, epsilon=1e6, bias_correction=False, clip_norm=clip_norm)
  gradients = {"a": {"kernel": jnp.full(1, 3.0)}, "b": {"bias": jnp.full(1, 4.0)}}  # global norm 5
  delta = first_delta(c, jax.tree.map(jnp.ones_like, gradients), gradients)
  np.testing.assert_allclose(delta["a"]["kernel"], -0.1 * 0.1 * 3e-6 * factor, rtol=1e-4)
  np.testing.assert_allclose(delta["b"]["bias"], -0.1 * 0.1 * 4e-6 * factor, rtol=1e-4)


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_zero_gradients_stay_finite(name, clip_norm):
  params = jax.tree.map(jnp.zeros_like, tree(np.random.default_rng(0)))
  delta = first_delta(branch(name=name, clip_norm=clip_norm), params, params)
  assert all((leaf == 0).all() for leaf in jax.tree.leaves(delta))


@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_moments_are_float32_and_a_finished_run_does_not_move(name):
  c, params = branch(name=name), tree(np.random.default_rng(0))
  tx, rate = optim.make(c, num_steps=0)
  state = tx.init(params)
  assert {leaf.dtype.name for leaf in jax.tree.leaves(state)} == {"float32", "int32"}
  assert float(rate(0)) == 0
  assert all((leaf == 0).all() for leaf in jax.tree.leaves(tx.update(params, state, params)[0]))


def test_mask_covers_every_parameter():
  mask = optim.decay_mask(tree(np.random.default_rng(0)))
  assert all(decays == (name in DECAYED) for name, decays in leaves(mask))


@pytest.mark.parametrize("leaf", ["gamma", "kernel_2", "mybias"])
def test_a_name_without_a_rule_is_named(leaf):
  params = {"encoder": {"dense": {"kernel": jnp.ones(2), leaf: jnp.ones(2)}}}
  with pytest.raises(UserError, match=f"encoder/dense/{leaf}"):
    optim.make(branch(name="lamb"), 10)[0].init(params)


def test_a_name_with_two_rules_is_named(monkeypatch):
  monkeypatch.setitem(optim.DECAYED, r".*/kernel", False)
  with pytest.raises(UserError, match="dense/kernel"):
    optim.decay_mask({"dense": {"kernel": jnp.ones(2)}})


def test_schedule_counts_updates():
  tx, rate = optim.make(branch(warmup_steps=2, weight_decay_rate=0.0), num_steps=5)
  params = {"bias": jnp.zeros(1)}
  state = tx.init(params)
  for step in range(5):
    delta, state = tx.update({"bias": jnp.ones(1)}, state, params)
    np.testing.assert_allclose(-delta["bias"], rate(step), rtol=1e-4)  # equal gradients: Adam's direction is 1


def test_norms_are_global_over_sharded_parameters():
  tx, _ = optim.make(branch(name="lamb", clip_norm=1.0), 5)
  params = {"kernel": jnp.arange(64.0).reshape(8, 8), "bias": jnp.arange(8.0)}
  gradients = jax.tree.map(lambda p: jnp.sin(p) * 3, params)
  rows = NamedSharding(jax.make_mesh((8,), ("fsdp",)), PartitionSpec("fsdp"))
  step = jax.jit(lambda g, p: tx.update(g, tx.init(p), p)[0])
  split = step(*jax.device_put((gradients, params), rows))
  assert split["kernel"].sharding.is_equivalent_to(rows, 2), split["kernel"].sharding
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), split, step(gradients, params))
