"""The original BERT's objective: its loss by hand, rows without a label, and that it learns which pairs are true."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from electra_jax import metrics, sharding
from tests.objectives.test_objectives import make, make_batch


@pytest.fixture(scope="module")
def made():
  objective, batch = make("mlm_nsp"), make_batch(rows=16)
  batch["nsp_label"] = jnp.asarray([0, 1, -1, 1] * 4, jnp.int32)
  return objective, batch, jax.jit(objective.init)(jax.random.key(0), batch)


def run(objective, params, batch, train=False):
  return jax.jit(lambda p, b: objective.phases[0].loss(p, b, jax.random.key(1), train, objective.count_targets(b)))(
    params, batch)


def test_both_losses_at_the_start(made):
  """A new model knows nothing: ln(vocabulary) and ln 2; rows of label -1 count in neither sum nor weight."""
  objective, batch, params = made
  loss, pairs = run(objective, params, batch)
  values = metrics.summarise(metrics.add_pairs([pairs]))
  assert values["mlm/loss"] == pytest.approx(np.log(100), abs=0.06)
  assert values["nsp/loss"] == pytest.approx(np.log(2), abs=0.05)
  assert float(loss) == pytest.approx(values["mlm/loss"] + values["nsp/loss"], rel=1e-5)
  assert float(pairs["nsp/loss"][1]) == float(objective.count_targets(batch)["nsp"]) == 12
  other = batch | {"token_type_ids": batch["token_type_ids"].at[2::4].set(1)}  # rows without a label
  assert float(run(objective, params, other)[1]["nsp/loss"][0]) == float(pairs["nsp/loss"][0])


def test_every_parameter_gets_a_gradient(made):
  objective, batch, params = made
  gradients = jax.grad(lambda p: run(objective, p, batch)[0])(params)
  still = [sharding.path_name(path) for path, leaf in jax.tree_util.tree_leaves_with_path(gradients)
           if not (leaf != 0).any()]
  assert not still
  assert {"encoder/nsp_head/pooler/kernel", "encoder/nsp_head/output/bias"} <= {
    sharding.path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(gradients)}


def test_it_learns_which_pairs_belong_together(made):
  """The label is written into the second token: a few steps find it."""
  objective, batch, params = made
  labels = jnp.asarray(np.random.default_rng(0).integers(0, 2, 16), jnp.int32)
  batch = batch | {"nsp_label": labels, "masked_input_ids": batch["masked_input_ids"].at[:, 1].set(10 + labels)}
  tx = optax.adam(3e-3)

  @jax.jit
  def step(params, state):
    def loss(p):
      return objective.phases[0].loss(p, batch, jax.random.key(1), False, objective.count_targets(batch))
    (_, pairs), gradients = jax.value_and_grad(loss, has_aux=True)(params)
    updates, state = tx.update(gradients, state)
    return optax.apply_updates(params, updates), state, pairs

  state = tx.init(params)
  for _ in range(60):
    params, state, pairs = step(params, state)
  values = metrics.summarise(metrics.add_pairs([pairs]))
  assert values["nsp/accuracy"] == 1.0 and values["nsp/loss"] < 0.1
