"""Which parameters does each objective move, and what is its loss before any training? Also: losses by hand."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import FrozenConfigDict

from configs import common
from electra_jax import metrics, objectives, sharding
from electra_jax.models.attention import MASK_BIAS
from electra_jax.models.transformer import TransformerConfig
from electra_jax.objectives import losses, sampling

TRANSFORMER = TransformerConfig(
  vocab_size=128, num_tokens=100, embedding_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
  num_attention_heads=2, max_position_embeddings=16, position_offset=0, type_vocab_size=2, hidden_act="gelu",
  hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, layer_norm_eps=1e-12, initializer_range=0.02,
  dtype=jnp.dtype("float32"))
GENERATOR = FrozenConfigDict(dict(kind="learned", hidden_size=16, intermediate_size=32, num_attention_heads=1,
                                  num_hidden_layers=1))

FAST_TO_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def make(name, transformer=TRANSFORMER, generator=GENERATOR, token_counts=None, **changes):
  config = common.defaults().objective
  config.update({"name": name, "encoder_mlm_weight": 1.0, "generator_steps": 5} | changes)  # the derived keys too
  return objectives.make(transformer, generator, config, num_steps=10, token_counts=token_counts)


def make_batch(rows=8, seed=0):
  rng = np.random.default_rng(seed)
  ids = rng.integers(5, 100, (rows, 16))
  mask = np.arange(16) < rng.integers(8, 17, (rows, 1))
  positions = np.sort(rng.permuted(np.tile(np.arange(1, 8), (rows, 1)), axis=1)[:, :3], axis=1)
  weights = np.ones((rows, 3), np.float32)
  weights[:, 2] = rng.integers(0, 2, rows)
  masked = ids.copy()
  for row in range(rows):
    masked[row, positions[row][weights[row] > 0]] = 3
  batch = dict(input_ids=ids, masked_input_ids=masked, token_type_ids=np.zeros_like(ids), attention_mask=mask,
               masked_positions=positions, masked_ids=np.take_along_axis(ids, positions, 1), masked_weights=weights)
  return {k: jnp.asarray(v, {np.dtype("int64"): jnp.int32}.get(v.dtype, v.dtype)) for k, v in batch.items()}


def initialise(objective, batch, scale=0.02, seed=0):
  """Parameters as BERT's initialisation makes them; drawn by NumPy, which has nothing to compile."""
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    kind = sharding.path_name(path).split("/")[-1]
    return jnp.asarray({"scale": np.ones(leaf.shape), "bias": np.zeros(leaf.shape), "output_bias": np.zeros(leaf.shape)
                        }.get(kind, scale * rng.normal(size=leaf.shape)), jnp.float32)

  return jax.tree_util.tree_map_with_path(draw, jax.eval_shape(objective.init, jax.random.key(0), batch))


def value_and_gradients(objective, batch, params, train=False, phase=0):
  @functools.partial(jax.jit, compiler_options=FAST_TO_COMPILE)
  def run(params):
    loss = objective.phases[phase].loss
    return jax.value_and_grad(loss, has_aux=True)(params, batch, jax.random.key(1), train,
                                                  objective.count_targets(batch))

  (loss, pairs), gradients = run(params)
  flat = {sharding.path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(gradients)}
  return loss, pairs, flat


def moved(gradients, pattern):
  """How many of the parameters that match get a gradient, and how many match."""
  chosen = [leaf for path, leaf in gradients.items() if re.fullmatch(pattern, path)]
  return sum(bool((leaf != 0).any()) for leaf in chosen), len(chosen)


def test_both_networks_start_as_wide_as_they_are_told():
  wide = dataclasses.replace(TRANSFORMER, initializer_range=0.08)
  params = jax.jit(make("rtd", wide).init)(jax.random.key(0), make_batch())
  spread = {sharding.path_name(path): float(leaf.std()) for path, leaf in jax.tree_util.tree_leaves_with_path(params)
            if path[-1].key == "kernel" and "layer_" in sharding.path_name(path)}
  for path, std in spread.items():  # a normal that is cut off at two of its own standard deviations, corrected or not
    assert std == pytest.approx(0.08, rel=0.2), path
  assert {path.split("/")[0] for path in spread} == {"generator", "discriminator"}


# objective and changes -> {group of parameters: does it get a gradient?}
GRADIENTS = {
  "mlm": ({}, {"encoder/embeddings/.*": True, "encoder/layer_.*": True, "encoder/mlm_head/.*": True}),
  "rtd": ({}, {"discriminator/embeddings/.*": True, "discriminator/layer_.*": True, "discriminator/rtd_head/.*": True,
               "generator/layer_.*": True, "generator/mlm_head/.*": True, "generator/embeddings/.*": True}),
  "rtd without generator loss": ({"mlm_weight": 0.0}, {"generator/.*": False, "discriminator/layer_.*": True,
                                                       "discriminator/embeddings/token/embedding": True}),
  "rtd without discriminator loss": ({"rtd_weight": 0.0}, {
    "generator/layer_.*": True, "discriminator/layer_.*": False, "discriminator/rtd_head/.*": False,
    "discriminator/embeddings/token/embedding": True, "discriminator/embeddings/position/.*": False}),
  "rtd untied": ({"weight_tying": "none"}, {"generator/embeddings/token/embedding": True,
                                            "discriminator/embeddings/token/embedding": True}),
  "rtd untied without discriminator loss": ({"weight_tying": "none", "rtd_weight": 0.0}, {
    "generator/embeddings/token/embedding": True, "discriminator/.*": False}),
}


@functools.cache
def run(row, dtype="float32"):
  transformer = dataclasses.replace(TRANSFORMER, dtype=jnp.dtype(dtype))
  objective, batch = make(row.split()[0], transformer, **GRADIENTS[row][0]), make_batch()
  return value_and_gradients(objective, batch, initialise(objective, batch))


@pytest.mark.parametrize("row", GRADIENTS)
def test_who_gets_a_gradient(row):
  gradients, groups = run(row)[2], GRADIENTS[row][1]
  for pattern, expected in groups.items():
    count, total = moved(gradients, pattern)
    # A key bias shifts every score of a row alike, so its gradient is zero up to rounding in any model.
    assert total > 0 and count == (total if expected else 0), (pattern, count, total)


def test_generator_body_does_not_see_the_discriminator():
  """bug-reports 9: with untied embeddings, λ = 50 and λ = 0 give the generator the same gradient, bit for bit."""
  with_rtd, without = run("rtd untied")[2], run("rtd untied without discriminator loss")[2]
  names = [name for name in with_rtd if name.startswith("generator/")]
  assert names and all(np.array_equal(with_rtd[name], without[name]) for name in names)


@pytest.mark.parametrize("name", ["mlm", "rtd"])
def test_loss_at_initialisation(name):
  """A new model knows nothing: ln(vocabulary) for the masked LM, ln 2 for the discriminator."""
  loss, pairs, _ = run(name)
  values = metrics.summarise(metrics.add_pairs([pairs]))
  assert values["mlm/loss"] == pytest.approx(np.log(100), abs=0.05)
  if name == "rtd":
    assert values["rtd/loss"] == pytest.approx(np.log(2), abs=0.05)
    assert float(loss) == pytest.approx(values["mlm/loss"] + 50 * values["rtd/loss"], rel=1e-5)


@pytest.mark.parametrize("name", ["mlm", "rtd"])
def test_bfloat16_is_finite_and_close(name):
  exact, rounded = run(name), run(name, "bfloat16")
  assert all(jnp.isfinite(leaf).all() and leaf.dtype == jnp.float32 for leaf in rounded[2].values())
  assert metrics.summarise(rounded[1])["mlm/loss"] == pytest.approx(metrics.summarise(exact[1])["mlm/loss"], rel=0.01)


def test_replaced_label_when_the_sample_is_the_original():
  """bug-reports 7: label 1 only where the id differs."""
  ids = jnp.array([[7, 8, 9]])
  place, weight = jnp.array([[1]]), jnp.array([[1.0]])
  for sample, expected in ((8, [0, 0, 0]), (5, [0, 1, 0])):
    corrupted = sampling.replace_ids(ids, place, jnp.array([[sample]]), weight)
    assert (corrupted != ids).astype(int).tolist() == [expected]


@pytest.mark.parametrize("platform", ("cpu", "tpu"))
def test_samples_follow_the_softmax_and_never_leave_the_vocabulary(platform, monkeypatch):
  monkeypatch.setattr(sharding, "platform", lambda: platform)
  logits = jnp.log(jnp.array([0.5, 0.3, 0.2, 1.0])) + jnp.array([0.0, 0.0, 0.0, MASK_BIAS])
  draws = sampling.sample_ids(jax.random.key(0), jnp.broadcast_to(logits, (1, 50_000, 4)))
  shares = np.bincount(np.asarray(draws).ravel(), minlength=4) / 50_000
  np.testing.assert_allclose(shares, [0.5, 0.3, 0.2, 0.0], atol=0.01)
  assert shares[3] == 0


def test_temperature_flattens():
  logits = jnp.broadcast_to(jnp.array([2.0, 0.0]), (1, 20_000, 2))
  share = float(sampling.sample_ids(jax.random.key(0), sampling.proposal_logits(logits, temperature=2.0)).mean())
  assert share == pytest.approx(1 / (1 + np.exp(1.0)), abs=0.02)


def test_losses_by_hand():
  rng = np.random.default_rng(0)
  logits, ids = rng.normal(size=(2, 3, 5)).astype(np.float32), np.array([[0, 4, 2], [1, 1, 3]], np.int32)
  weights = np.array([[1, 0, 1], [1, 1, 0]], np.float32)
  loss, correct = losses.cross_entropy(jnp.asarray(logits), jnp.asarray(ids), jnp.asarray(weights))
  probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  expected = -(np.log(np.take_along_axis(probabilities, ids[..., None], -1)[..., 0]) * weights).sum()
  assert float(loss) == pytest.approx(expected, rel=1e-5)
  assert float(correct) == ((logits.argmax(-1) == ids) * weights).sum()

  scores, labels = rng.normal(size=(2, 4)).astype(np.float32), rng.integers(0, 2, (2, 4)).astype(bool)
  real = np.array([[1, 1, 0, 1], [1, 0, 1, 1]], np.float32)
  p = 1 / (1 + np.exp(-scores))
  expected = -((labels * np.log(p) + ~labels * np.log(1 - p)) * real).sum()
  found = losses.binary_cross_entropy(*map(jnp.asarray, (scores, labels, real)))
  assert float(found) == pytest.approx(expected, rel=1e-5)


def test_auc_over_batches_equals_scikit_learn():
  from sklearn.metrics import roc_auc_score

  rng = np.random.default_rng(0)
  labels = rng.random((2, 40, 50)) < 0.15
  scores = (rng.normal(size=labels.shape) + labels).astype(np.float32)
  ones = jnp.ones(labels.shape[1:])
  pairs = [{"rtd/auc": losses.auc_histograms(jnp.asarray(s), jnp.asarray(y), ones)} for s, y in zip(scores, labels)]
  ours = metrics.summarise(metrics.add_pairs(pairs))["rtd/auc"]
  assert ours == pytest.approx(roc_auc_score(labels.ravel(), scores.ravel()), abs=1e-3)


@pytest.mark.parametrize("name", ["mlm", "rtd", "all_tokens_mlm", "electra_15"])
def test_rows_of_padding_weigh_nothing(name):
  """The loss, the counts and every gradient are finite; of a masked LM those without these rows."""
  objective = make(name)
  batch = make_batch()
  fill = {key: jnp.zeros_like(rows[:4]) for key, rows in batch.items()}
  padded = {key: jnp.concatenate([rows, fill[key]]) for key, rows in batch.items()}
  params = initialise(objective, batch)
  assert jax.tree.map(float, objective.count_targets(padded)) == jax.tree.map(float, objective.count_targets(batch))
  loss, pairs, gradients = value_and_gradients(objective, padded, params)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((loss, pairs, gradients)))
  if name == "mlm":
    expected = run("mlm")
    np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
    for path, gradient in gradients.items():
      np.testing.assert_allclose(gradient, expected[2][path], atol=1e-6, err_msg=path)
