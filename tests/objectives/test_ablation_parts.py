"""Do the functions that the ablations' objectives are made of compute what ELECTRA's sections and appendices say?"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import FrozenConfigDict

from electra_jax.objectives import (
  adversarial,
  all_tokens_mlm,
  contrastive,
  electra_15,
  generators,
  losses,
  predictors,
  rtd,
  sampling,
)
from electra_jax.objectives.base import Parts
from tests.objectives.ablation_rows import UNIGRAM, initialise
from tests.objectives.test_objectives import FAST_TO_COMPILE, GENERATOR, TRANSFORMER, make, make_batch

# ---- drawing ----


def test_a_drawn_original_is_not_replaced():
  batch = make_batch()
  original = 50.0 * jax.nn.one_hot(batch["masked_ids"], 128)
  config = FrozenConfigDict(dict(sampling_temperature=1.0, sampling_excludes_original=False))
  corruption = generators.corrupt(jax.random.key(0), original, batch, config)
  assert np.array_equal(corruption.ids, batch["input_ids"]) and not corruption.is_replaced.any()
  excluded = FrozenConfigDict(dict(sampling_temperature=1.0, sampling_excludes_original=True))
  corruption = generators.corrupt(jax.random.key(0), original, batch, excluded)
  assert corruption.is_replaced.sum() == batch["masked_weights"].sum()


def test_excluded_original_is_never_drawn():
  """bug-reports 7: probability 0 in 1e5 draws; the others keep their odds."""
  logits = jnp.broadcast_to(jnp.array([9.0, np.log(3.0), 0.0]), (1, 100_000, 3))
  proposal = sampling.proposal_logits(logits, excluded_ids=jnp.zeros((1, 100_000), jnp.int32))
  shares = np.bincount(np.asarray(sampling.sample_ids(jax.random.key(0), proposal)).ravel(), minlength=3) / 100_000
  assert shares[0] == 0 and shares[1] == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("kind", ["unigram", "uniform"])
def test_generators_made_of_counts(kind):
  counts = np.array([0, 0, 6, 3, 1, 0])  # of six tokens, two special; the table has two rows more
  parts = Parts(dataclasses.replace(TRANSFORMER, vocab_size=8), FrozenConfigDict(dict(kind=kind)), FrozenConfigDict(),
                token_counts=counts)
  logits = jnp.broadcast_to(generators.count_logits(parts), (1, 50_000, 8))
  drawn = np.bincount(np.asarray(sampling.sample_ids(jax.random.key(1), logits)).ravel(), minlength=8) / 50_000
  expected = {"unigram": [0, 0, 0.6, 0.3, 0.1, 0, 0, 0], "uniform": [0, 0, 1 / 3, 1 / 3, 1 / 3, 0, 0, 0]}[kind]
  np.testing.assert_allclose(drawn, expected, atol=0.01)
  assert (drawn[np.array(expected) == 0] == 0).all()


def test_a_generator_of_counts_needs_counts():
  with pytest.raises(ValueError, match="token_counts"):
    make("rtd", generator=UNIGRAM)


# ---- ELECTRA 15 % ----


def test_electra_15_by_hand():
  logits, is_replaced = np.array([[0.5, -1.0, 2.0]], np.float32), np.array([[False, True, True]])
  batch = dict(attention_mask=jnp.ones((1, 3), bool), masked_positions=jnp.array([[1, 2, 0]]),
               masked_weights=jnp.array([[1.0, 1.0, 0.0]]))
  judged = electra_15.masked_tokens(batch, jax.random.key(0))
  p = 1 / (1 + np.exp(-logits[0]))
  loss, pairs = rtd.discriminator_loss(jnp.asarray(logits), jnp.asarray(is_replaced), judged, True)
  assert float(loss) == pytest.approx(-np.log(p[1]) - np.log(p[2]), rel=1e-6) and float(pairs["rtd/loss"][1]) == 2


def test_electra_15_sees_no_unmasked_token():
  batch = make_batch()
  judged = electra_15.masked_tokens(batch, jax.random.key(0))
  is_replaced = jnp.zeros(judged.shape, bool)
  gradient = jax.grad(lambda logits: rtd.discriminator_loss(logits, is_replaced, judged, True)[0])(
    jnp.zeros(judged.shape))
  rows, slots = np.nonzero(np.asarray(batch["masked_weights"]))
  masked = np.zeros(judged.shape, bool)
  masked[rows, np.asarray(batch["masked_positions"])[rows, slots]] = True
  assert np.array_equal(np.asarray(gradient) != 0, masked) and np.array_equal(np.asarray(judged) == 1, masked)


def test_a_judged_token_weighs_as_much_in_every_variant():
  """The sums of Table 3 differ in what they run over, not in what they are divided by."""
  batch = make_batch()
  num_tokens = int(np.asarray(batch["attention_mask"]).sum())
  for objective in ("rtd", "electra_15", "electra_15_other", "contrastive", "two_stage", "adversarial"):
    counts = make(objective).count_targets(batch)
    assert (int(counts["rtd"]), int(counts["mlm"])) == (num_tokens, int(batch["masked_weights"].sum())), objective


def test_other_15_is_random_distinct_and_of_the_same_size():
  batch = make_batch()
  masked = np.asarray(electra_15.masked_tokens(batch, jax.random.key(0))) > 0
  draws = [np.asarray(electra_15.other_tokens(batch, jax.random.key(seed))) > 0 for seed in range(200)]
  assert not any((draw & (masked | ~np.asarray(batch["attention_mask"]))).any() for draw in draws)
  assert all(np.array_equal(draw.sum(1), masked.sum(1)) for draw in draws)
  assert np.array_equal(np.any(draws, axis=0), np.asarray(batch["attention_mask"]) & ~masked)  # each gets its turn


# ---- All-Tokens MLM ----


def test_all_tokens_mlm_by_hand():
  rng = np.random.default_rng(0)
  gate, logits = rng.normal(size=(2, 3)).astype(np.float32), rng.normal(size=(2, 3, 4)).astype(np.float32)
  read, original = np.array([[0, 1, 2], [3, 3, 0]], np.int32), np.array([[0, 2, 2], [1, 3, 0]], np.int32)
  expected = np.zeros((2, 3))
  for i, j in np.ndindex(2, 3):
    copy = 1 / (1 + np.exp(-gate[i, j]))
    softmax = np.exp(logits[i, j]) / np.exp(logits[i, j]).sum()
    distribution = (1 - copy) * softmax
    distribution[read[i, j]] += copy
    assert distribution.sum() == pytest.approx(1)
    expected[i, j] = np.log(distribution[original[i, j]])
  found = all_tokens_mlm.log_likelihood(*map(jnp.asarray, (gate, logits, read, original)))
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_all_tokens_mlm_is_mlm_when_the_gate_is_forced_to_0():
  rng = np.random.default_rng(1)
  logits = jnp.asarray(rng.normal(size=(2, 3, 4)), jnp.float32)
  ids = jnp.asarray(rng.integers(0, 4, (2, 3)), jnp.int32)
  closed = jnp.full((2, 3), -1e4)

  def mixture(x):
    return -all_tokens_mlm.log_likelihood(closed, x, ids, ids).sum()

  def plain(x):
    return losses.cross_entropy(x, ids, jnp.ones((2, 3)))[0]

  (loss, gradient), (expected, expected_gradient) = (jax.value_and_grad(f)(logits) for f in (mixture, plain))
  assert float(loss) == pytest.approx(float(expected), rel=1e-6)
  np.testing.assert_allclose(gradient, expected_gradient, atol=1e-6)


def test_all_tokens_mlm_is_finite_where_gate_and_softmax_are_sure():
  def loss(gate, logits):
    return all_tokens_mlm.log_likelihood(gate, logits, jnp.array([[0, 0]]), jnp.array([[0, 1]])).sum()

  for gate, logit in itertools.product((-1e4, 0.0, 1e4), (-1e4, 0.0, 1e4)):
    logits = jnp.asarray(np.array([[[logit, 0, 0]] * 2], np.float32))
    value, gradients = jax.value_and_grad(loss, (0, 1))(jnp.full((1, 2), gate), logits)
    assert np.isfinite(value) and all(np.isfinite(leaf).all() for leaf in gradients), (gate, logit)


# ---- adversarial ----


def test_policy_gradient_is_exact_in_expectation():
  """Three words: the surrogate's gradients, weighted by p_G, are the gradient of E[R], whatever the baseline."""
  logits, reward = jnp.array([0.3, -0.7, 1.1]), jnp.log(jnp.array([0.9, 0.2, 0.6]))
  exact = jax.grad(lambda x: jnp.sum(jax.nn.softmax(x) * reward))(logits)
  one = jnp.ones((1, 1))

  def surrogate(x, word, baseline_logit):
    log_p = losses.log_probability(x[None, None], word * jnp.ones((1, 1), jnp.int32))
    return adversarial.policy_loss(log_p, reward[word] * one, baseline_logit * one, one)

  for baseline_logit in (-2.0, 0.0, 3.0):
    gradients = jax.vmap(jax.grad(surrogate), (None, 0, None))(logits, jnp.arange(3), baseline_logit)
    np.testing.assert_allclose(jax.nn.softmax(logits) @ gradients, exact, atol=1e-6)


def test_policy_gradient_through_both_networks_equals_enumeration(monkeypatch):
  """Every parameter of the generator, one masked position, three words: all draws enumerated."""
  batch = jax.tree.map(lambda x: x[:1], make_batch())
  batch |= dict(masked_weights=jnp.array([[1.0, 0.0, 0.0]]), input_ids=batch["input_ids"] % 3,
                masked_ids=batch["masked_ids"] % 3)
  transformer = dataclasses.replace(TRANSFORMER, num_tokens=3, vocab_size=3)
  arguments = dict(transformer=transformer, rtd_weight=0.0, weight_tying="none")
  objective = make("adversarial", **arguments)
  params = initialise(objective, batch, scale=0.2)  # far from uniform
  network = predictors._electra(Parts(transformer, GENERATOR, FrozenConfigDict(dict(weight_tying="none"))))

  @functools.partial(jax.jit, compiler_options=FAST_TO_COMPILE)
  def enumerated(params):
    def expected_reward(generator):
      p = jax.nn.softmax(network.mlm_logits(params | {"generator": generator}, batch)[0, 0])
      position, original = batch["masked_positions"][0, 0], batch["masked_ids"][0, 0]

      def reward(word):
        logits = network.rtd_logits(params, batch, batch["input_ids"].at[0, position].set(word))
        replaced = jax.nn.sigmoid(logits)[0, position]
        return jnp.log(jnp.where(word == original, 1 - replaced, replaced))

      return p @ jax.vmap(reward)(jnp.arange(3))
    return jax.grad(expected_reward)(params["generator"])

  @functools.partial(jax.jit, compiler_options=FAST_TO_COMPILE)
  def mean_of_draws(params):
    p = jax.nn.softmax(network.mlm_logits(params, batch)[0, 0])

    def gradient(word):
      monkeypatch.setattr(sampling, "sample_ids", lambda rng, logits: jnp.full((1, 3), word, jnp.int32))
      return jax.grad(lambda params: objective.phases[0].loss(params, batch, jax.random.key(0), False,
                                                              objective.count_targets(batch))[0])(params)["generator"]
    return jax.tree.map(lambda each: jnp.tensordot(p, each, 1), jax.vmap(gradient)(jnp.arange(3)))

  exact, found = enumerated(params), mean_of_draws(params)
  exact["baseline_head"] = found["baseline_head"]  # b is no part of the expectation
  assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(exact)) > 1e-3
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), found, exact)


def test_rewards_and_baseline_by_hand():
  logits, positions = np.array([[0.0, 2.0, -1.0]]), np.array([[1, 2, 0]])
  replaced = np.array([[True, True, False]])
  p = 1 / (1 + np.exp(-logits[0, positions[0]]))  # of "replaced"
  truth = np.where(replaced[0], p, 1 - p)
  reward = adversarial.rewards(*map(jnp.asarray, (logits.astype(np.float32), positions, replaced)))
  np.testing.assert_allclose(reward[0], np.log(truth), rtol=1e-5)
  b, weights = np.array([[0.4, -0.3, 0.0]], np.float32), np.array([[1.0, 1.0, 0.0]], np.float32)
  s = 1 / (1 + np.exp(-b[0]))
  expected = -(weights[0] * (truth * np.log(s) + (1 - truth) * np.log(1 - s))).sum()
  found = adversarial.baseline_loss(jnp.asarray(b), reward, jnp.asarray(weights))
  assert float(found) == pytest.approx(expected, rel=1e-5)
  log_p = np.log([[0.5, 0.25, 0.1]]).astype(np.float32)
  expected = (weights[0] * log_p[0] * (np.log(truth) - np.log(s))).sum()
  found = adversarial.policy_loss(jnp.asarray(log_p), reward, jnp.asarray(b), jnp.asarray(weights))
  assert float(found) == pytest.approx(expected, rel=1e-5)


# ---- contrastive ----


def test_a_share_of_the_rows_stays_unchanged():
  input_ids = jnp.zeros((4000, 3), jnp.int32)
  corruption = generators.Corruption(input_ids + 1, jnp.ones((4000, 3), bool), jnp.ones((4000, 2), jnp.int32))
  kept = contrastive.keep_rows(jax.random.key(0), corruption, input_ids)
  changed = np.asarray(kept.ids).any(1)
  assert 1 - changed.mean() == pytest.approx(0.2, abs=0.02)
  assert np.array_equal(np.asarray(kept.ids), np.broadcast_to(changed[:, None], (4000, 3)))
  assert np.array_equal(np.asarray(kept.is_replaced), np.asarray(kept.ids) == 1)
