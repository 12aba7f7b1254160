"""ELECTRA as a masked LM (Appendix E): the ranking against NumPy, and a pair of networks that is right together."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import FrozenConfigDict

from electra_jax.objectives import electra_mlm
from electra_jax.objectives.predictors import Predictor

VOCAB, LENGTH = 6, 4
TRUE_IDS = np.array([[1, 2, 3, 4], [5, 4, 3, 2]], np.int32)


def make_batch():
  positions = np.array([[1, 3], [0, 0]], np.int32)
  weights = np.array([[1, 1], [1, 0]], np.float32)
  masked = TRUE_IDS.copy()
  for row, slot in np.argwhere(weights):
    masked[row, positions[row, slot]] = 0
  batch = {"input_ids": TRUE_IDS, "masked_input_ids": masked, "masked_positions": positions,
          "masked_ids": np.take_along_axis(TRUE_IDS, positions, 1), "masked_weights": weights}
  return {name: jnp.asarray(array) for name, array in batch.items()}


def rtd_logits_of(ids):
  """Any function of all ids at all positions."""
  return jnp.sin(3.0 * ids + ids.sum(axis=1, keepdims=True) + jnp.arange(LENGTH))


def test_ranking_equals_numpy():
  """One token in question at a time, over a text whose other masks hold the generator's likeliest tokens."""
  batch, top, a = make_batch(), 3, (1 - 0.15) / 0.15
  logits = np.random.default_rng(0).normal(size=(2, 2, VOCAB)).astype(np.float32)
  filled = np.array(batch["masked_input_ids"])
  for row, slot in np.argwhere(batch["masked_weights"]):
    filled[row, batch["masked_positions"][row, slot]] = logits[row, slot].argmax()
  np.testing.assert_array_equal(electra_mlm.fill(jnp.asarray(logits), batch), filled)
  ids, p_data = jax.jit(lambda x: electra_mlm.rank(x, rtd_logits_of, jnp.asarray(filled), batch["masked_positions"],
                                                   top))(jnp.asarray(logits))
  for row, slot in np.ndindex(2, 2):
    p_g = np.exp(logits[row, slot]) / np.exp(logits[row, slot]).sum()
    expected_ids = np.argsort(-p_g)[:top]
    np.testing.assert_array_equal(ids[row, slot], expected_ids)
    for place, new in enumerate(expected_ids):
      text, position = filled[row].copy(), batch["masked_positions"][row, slot]
      text[position] = new
      d = 1 / (1 + np.exp(float(rtd_logits_of(jnp.asarray(text[None]))[0, position])))  # D: "is the original"
      assert float(p_data[row, slot, place]) == pytest.approx(d * p_g[new] / (a * (1 - d) + p_g[new]), rel=1e-5)


def test_a_sure_discriminator_corrects_the_generator():
  """The original is the generator's second choice everywhere: alone it is always wrong, together always right."""
  batch = make_batch()
  likes = 2.0 * jax.nn.one_hot(batch["masked_ids"], VOCAB) + 3.0 * jax.nn.one_hot((batch["masked_ids"] + 1) % VOCAB,
                                                                                  VOCAB)
  network = Predictor(lambda params, batch: likes,
                      lambda params, batch, ids: jnp.where(ids == TRUE_IDS, -9.0, 9.0), None)
  pairs = electra_mlm.accuracy({}, batch, network, 1.0, 0.15, num_candidates=2)
  assert {name: (float(a), float(b)) for name, (a, b) in pairs.items()} == {
    "electra_mlm/accuracy": (3, 3), "electra_mlm/generator_accuracy": (0, 3), "electra_mlm/upper_bound": (3, 3)}


def test_an_undecided_discriminator_changes_no_order():
  """With D constant, p_data grows with p_G."""
  p_g = jnp.linspace(0.0, 1.0, 11)
  p_data = electra_mlm.data_probability(jnp.full(11, 0.85), p_g)
  assert (jnp.diff(p_data) > 0).all() and p_data[0] == 0
  assert electra_mlm.data_probability(jnp.ones(1), jnp.zeros(1)) == 0  # not 0 / 0


@pytest.mark.parametrize("name, kind, excludes_original, expected", [
  ("rtd", "learned", False, True), ("rtd", "learned", True, False), ("rtd", "unigram", False, False),
  ("contrastive", "learned", False, True), ("electra_15", "learned", False, False), ("mlm", "learned", False, False)])
def test_where_the_appendix_holds(name, kind, excludes_original, expected):
  config = FrozenConfigDict(dict(objective=dict(name=name, sampling_excludes_original=excludes_original),
                                 generator=dict(kind=kind)))
  assert electra_mlm.applies(config) == expected


@pytest.mark.parametrize("name, share", [("rtd", 0.15), ("contrastive", 0.12)])
def test_rows_that_stay_as_they_are_change_the_optimum(name, share):
  config = FrozenConfigDict(dict(objective=dict(name=name), data=dict(masking=dict(rate=0.15))))
  assert electra_mlm.corrupted_share(config) == pytest.approx(share)
  p_data, p_g, a = jnp.array([0.6, 0.4]), jnp.array([0.3, 0.7]), (1 - share) / share
  optimal = p_data * (a + p_g) / (a * p_data + p_g)
  np.testing.assert_allclose(electra_mlm.data_probability(optimal, p_g, electra_mlm.corrupted_share(config)), p_data,
                             rtol=1e-5)
