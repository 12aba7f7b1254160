"""Do the objectives of the ablations compute what ELECTRA sections 3.2, 3.5 and its appendices D and F say?"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import FrozenConfigDict

from electra_jax import config as config_lib
from electra_jax import config_rules, flops, metrics, objectives, sharding
from electra_jax.errors import UserError
from electra_jax.objectives import (
  adversarial,
  all_tokens_mlm,
  contrastive,
  electra_15,
  generators,
  losses,
  networks,
  rtd,
  sampling,
)
from electra_jax.train_state import count_parameters
from tests.objectives.test_objectives import (
  FAST_TO_COMPILE,
  GENERATOR,
  TRANSFORMER,
  make,
  make_batch,
  moved,
  value_and_gradients,
)

EQUAL = FrozenConfigDict(dict(kind="learned", hidden_size=32, intermediate_size=64, num_attention_heads=2,
                              num_hidden_layers=1))
UNIGRAM = FrozenConfigDict({**GENERATOR.to_dict(), "kind": "unigram"})
COUNTS = np.r_[np.zeros(5, int), np.arange(1, 96)]  # five special ids, then ordinary ones
LN2, LN100 = np.log(2), np.log(100)
BODY = {"discriminator/(embeddings|layer_..)/.*": True, "discriminator/rtd_head/.*": True}
GENERATOR_BODY = {"generator/(embeddings|layer_..)/.*": True, "generator/mlm_head/.*": True}

# row -> objective, arguments of `make`, phase, {group: does it get a gradient?}, {metric: value at initialisation}
ROWS = {
  "electra_15": ("electra_15", {}, 0, BODY | GENERATOR_BODY, {"mlm/loss": LN100, "rtd/loss": LN2}),
  "electra_15_other": ("electra_15_other", {}, 0, BODY | GENERATOR_BODY, {"mlm/loss": LN100, "rtd/loss": LN2}),
  "replace_mlm": ("replace_mlm", {}, 0, GENERATOR_BODY | {
    "encoder/(embeddings|layer_..)/.*": True, "encoder/mlm_head/.*": True},
    {"mlm/loss": LN100, "replace_mlm/loss": LN100}),
  "replace_mlm without its own loss": ("replace_mlm", dict(encoder_mlm_weight=0.0, weight_tying="none"), 0,
                                       GENERATOR_BODY | {"encoder/.*": False}, {}),
  "all_tokens_mlm": ("all_tokens_mlm", {}, 0, GENERATOR_BODY | {
    "encoder/(embeddings|layer_..)/.*": True, "encoder/mlm_head/.*": True, "encoder/copy_head/.*": True},
    {"mlm/loss": LN100}),
  "contrastive": ("contrastive", {}, 0, BODY | GENERATOR_BODY | {"discriminator/sentence_head/.*": True},
                  {"mlm/loss": LN100, "rtd/loss": LN2, "sentence/loss": LN2}),
  "contrastive, sentences alone": ("contrastive", dict(rtd_weight=0.0, mlm_weight=0.0), 0, {
    "discriminator/sentence_head/.*": True, "discriminator/rtd_head/.*": False, "generator/.*": False}, {}),
  "adversarial": ("adversarial", dict(weight_tying="none"), 0, BODY | GENERATOR_BODY | {
    "generator/baseline_head/.*": True},
    {"mlm/loss": LN100, "rtd/loss": LN2, "adversarial/reward": -LN2, "adversarial/baseline_loss": LN2}),
  "adversarial, baseline alone": ("adversarial", dict(rtd_weight=0.0, policy_weight=0.0), 0, {
    "generator/baseline_head/.*": True, "generator/(embeddings|layer_..|mlm_head)/.*": False,
    "discriminator/.*": False}, {}),
  "adversarial, policy alone": ("adversarial", dict(rtd_weight=0.0, baseline_weight=0.0, weight_tying="none"), 0,
                                GENERATOR_BODY | {"generator/baseline_head/.*": False, "discriminator/.*": False}, {}),
  "two_stage, first": ("two_stage", dict(generator=EQUAL, weight_tying="none"), 0,
                       GENERATOR_BODY | {"discriminator/.*": False}, {"mlm/loss": LN100}),
  "two_stage, second": ("two_stage", dict(generator=EQUAL, weight_tying="none"), 1, BODY | {"generator/.*": False},
                        {"mlm/loss": LN100, "rtd/loss": LN2}),
  "rtd, all tied": ("rtd", dict(generator=EQUAL, weight_tying="all"), 0, BODY | {"discriminator/mlm_head/.*": True},
                    {"mlm/loss": LN100, "rtd/loss": LN2}),
  "rtd, unigram": ("rtd", dict(generator=UNIGRAM, token_counts=COUNTS), 0, BODY, {"rtd/loss": LN2}),
}
IN_BFLOAT16 = ("replace_mlm", "all_tokens_mlm", "contrastive", "adversarial")  # the rest runs rtd's code


def initialise(objective, batch, scale=0.02):
  """Parameters as BERT's initialisation makes them; drawn by NumPy, which has nothing to compile."""
  rng = np.random.default_rng(0)

  def draw(path, leaf):
    kind = sharding.path_name(path).split("/")[-1]
    return jnp.asarray({"scale": np.ones(leaf.shape), "bias": np.zeros(leaf.shape), "output_bias": np.zeros(leaf.shape)
                        }.get(kind, scale * rng.normal(size=leaf.shape)), jnp.float32)

  return jax.tree_util.tree_map_with_path(draw, jax.eval_shape(objective.init, jax.random.key(0), batch))


@functools.cache
def init(row):
  name, arguments, *_ = ROWS[row]
  return initialise(make(name, **arguments), make_batch())


@functools.cache
def run(row, dtype="float32"):
  name, arguments, phase, *_ = ROWS[row]
  transformer = dataclasses.replace(TRANSFORMER, dtype=jnp.dtype(dtype))
  loss, pairs, gradients = value_and_gradients(make(name, transformer, **arguments), make_batch(), init(row),
                                               phase=phase)
  return float(loss), pairs, gradients


def test_every_table_has_every_objective():
  names = set(objectives.OBJECTIVES)
  assert names == set(config_rules.CHOICES["objective.name"]) == set(networks.NETWORKS) == set(flops.NETWORKS)
  assert set(generators.GENERATORS) == set(config_rules.CHOICES["generator.kind"])
  assert names == {row[0] for row in ROWS.values()} | {"rtd", "mlm", "mlm_nsp"}  # tested beside this file


@pytest.mark.parametrize("row", ROWS)
def test_who_gets_a_gradient_and_the_loss_at_initialisation(row):
  _, _, _, groups, at_initialisation = ROWS[row]
  _, pairs, gradients = run(row)
  for pattern, expected in groups.items():
    count, total = moved(gradients, pattern)
    assert total > 0 and count == (total if expected else 0), (pattern, count, total)
  values = metrics.summarise(pairs)
  for name, expected in at_initialisation.items():
    assert values[name] == pytest.approx(expected, abs=0.05), name


def test_all_tokens_mlm_at_initialisation():
  """An undecided gate: ln 2 for what it could copy, ln 2 + ln 100 for what was replaced."""
  pairs = run("all_tokens_mlm")[1]
  replaced, tokens = float(pairs["rtd/recall"][1]), float(pairs["all_tokens_mlm/loss"][1])
  expected = (replaced * (LN2 + LN100) - (tokens - replaced) * np.log(0.5 + 0.5 / 100)) / tokens
  assert replaced > 5 and metrics.summarise(pairs)["all_tokens_mlm/loss"] == pytest.approx(expected, abs=0.05)


TOTALS = {  # row -> the weighted sum of means that its loss is
  "electra_15": "1 * mlm + 50 * rtd", "electra_15_other": "1 * mlm + 50 * rtd",
  "replace_mlm": "1 * mlm + 1 * replace_mlm", "all_tokens_mlm": "1 * mlm + 1 * all_tokens_mlm",
  "contrastive": "1 * mlm + 50 * rtd + 1 * sentence", "two_stage, first": "1 * mlm", "two_stage, second": "50 * rtd",
  "rtd, unigram": "50 * rtd",
}


@pytest.mark.parametrize("row", TOTALS)
def test_total_is_the_weighted_sum_of_means(row):
  loss, pairs, _ = run(row)
  values = metrics.summarise(pairs)
  terms = [term.split(" * ") for term in TOTALS[row].split(" + ")]
  assert loss == pytest.approx(sum(float(weight) * values[f"{name}/loss"] for weight, name in terms), rel=1e-5)


@pytest.mark.parametrize("row", IN_BFLOAT16)
def test_bfloat16_is_finite_and_close(row):
  loss, pairs, gradients = run(row, "bfloat16")
  assert all(jnp.isfinite(leaf).all() and leaf.dtype == jnp.float32 for leaf in gradients.values())
  assert all(np.isfinite(np.asarray(pair)).all() for pair in jax.tree.leaves(pairs)) and np.isfinite(loss)
  exact = metrics.summarise(run(row)[1])
  for name in exact.keys() & {"mlm/loss", "replace_mlm/loss", "sentence/loss"}:  # the others depend on the draws
    assert metrics.summarise(pairs)[name] == pytest.approx(exact[name], rel=0.02), name


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
  model = generators.make_model(dataclasses.replace(TRANSFORMER, vocab_size=8),
                                FrozenConfigDict(dict(kind=kind)), FrozenConfigDict(dict(weight_tying="all")))
  logits = generators.GENERATORS[kind](model, counts)({}, {"masked_ids": jnp.zeros((1, 50_000))}, None, True)
  drawn = np.bincount(np.asarray(sampling.sample_ids(jax.random.key(1), logits)).ravel(), minlength=8) / 50_000
  expected = {"unigram": [0, 0, 0.6, 0.3, 0.1, 0, 0, 0], "uniform": [0, 0, 1 / 3, 1 / 3, 1 / 3, 0, 0, 0]}[kind]
  np.testing.assert_allclose(drawn, expected, atol=0.01)
  assert (drawn[np.array(expected) == 0] == 0).all()


def test_a_generator_of_counts_needs_counts():
  with pytest.raises(ValueError, match="token_counts"):
    make("rtd", generator=UNIGRAM)


def test_tying_all_leaves_one_encoder():
  tied, untied = (jax.eval_shape(make("rtd", generator=EQUAL, weight_tying=tying).init, jax.random.key(0), make_batch())
                  for tying in ("all", "none"))
  assert set(tied) == {"discriminator"}
  heads = count_parameters(untied["discriminator"]["rtd_head"])
  assert count_parameters(tied) == count_parameters(untied["generator"]) + heads


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
  assert make("electra_15").count_targets(batch)["rtd"] == masked.sum()


def test_other_15_is_random_distinct_and_of_the_same_size():
  batch = make_batch()
  masked = np.asarray(electra_15.masked_tokens(batch, jax.random.key(0))) > 0
  draws = [np.asarray(electra_15.other_tokens(batch, jax.random.key(seed))) > 0 for seed in range(200)]
  assert not any((draw & (masked | ~np.asarray(batch["attention_mask"]))).any() for draw in draws)
  assert all(np.array_equal(draw.sum(1), masked.sum(1)) for draw in draws)
  assert np.array_equal(np.any(draws, axis=0), np.asarray(batch["attention_mask"]) & ~masked)  # each gets its turn
  assert make("electra_15_other").count_targets(batch)["rtd"] == masked.sum()


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
  arguments = dict(transformer=transformer, rtd_weight=0.0, baseline_weight=0.0, weight_tying="none")
  objective = make("adversarial", **arguments)
  params = initialise(objective, batch, scale=0.2)  # far from uniform
  network = networks._electra(transformer, GENERATOR, FrozenConfigDict(dict(weight_tying="none")))

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
  exact["baseline_head"] = found["baseline_head"]  # b is no part of the expectation, and its own loss is off
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
  kept = contrastive.keep_rows(jax.random.key(0), corruption, input_ids, 0.2)
  changed = np.asarray(kept.ids).any(1)
  assert 1 - changed.mean() == pytest.approx(0.2, abs=0.02)
  assert np.array_equal(np.asarray(kept.ids), np.broadcast_to(changed[:, None], (4000, 3)))
  assert np.array_equal(np.asarray(kept.is_replaced), np.asarray(kept.ids) == 1)


def test_unchanged_rows_count_as_not_corrupted():
  objective, batch = make("contrastive", unchanged_share=1.0), make_batch()
  _, pairs, _ = value_and_gradients(objective, batch, init("contrastive"))
  assert float(pairs["rtd/recall"][1]) == 0 and float(pairs["mlm/loss"][1]) == batch["masked_weights"].sum()
  assert float(pairs["sentence/loss"][1]) == len(batch["input_ids"])


# ---- whole losses by hand ----


def numpy_losses(row, monkeypatch):
  """(loss pairs, corrupted ids, masks and logits as NumPy) of an objective whose draws are fixed."""
  drawn = np.random.default_rng(4).integers(5, 100, (8, 3)).astype(np.int32)
  batch, params = make_batch(), init(row)
  drawn[:4] = batch["masked_ids"][:4]  # four rows in which every draw is the original
  monkeypatch.setattr(sampling, "sample_ids", lambda rng, logits: jnp.asarray(drawn))
  _, pairs, _ = value_and_gradients(make(ROWS[row][0], **ROWS[row][1] | {"unchanged_share": 0.0}), batch, params)
  corrupted = np.array(batch["input_ids"])
  for i, slot in np.argwhere(np.asarray(batch["masked_weights"])):
    corrupted[i, batch["masked_positions"][i, slot]] = drawn[i, slot]
  return pairs, batch, params, jnp.asarray(corrupted)


def test_replace_mlm_by_hand(monkeypatch):
  """Cross-entropy of the originals at the masked positions, of an encoder that reads the draws."""
  pairs, batch, params, corrupted = numpy_losses("replace_mlm", monkeypatch)
  encoder = networks.Encoder("encoder", TRANSFORMER, ("mlm_head",))
  logits = np.asarray(encoder.apply(params, "mlm_logits", batch, corrupted), np.float64)
  expected = 0.0
  for i, slot in np.argwhere(np.asarray(batch["masked_weights"])):
    expected -= logits[i, slot, batch["masked_ids"][i, slot]] - np.log(np.exp(logits[i, slot]).sum())
  assert float(pairs["replace_mlm/loss"][0]) == pytest.approx(expected, rel=1e-4)


def test_contrastive_by_hand(monkeypatch):
  """Binary cross-entropy of "some token differs" from [CLS]; rows of drawn originals count as unchanged."""
  pairs, batch, params, corrupted = numpy_losses("contrastive", monkeypatch)
  encoder = networks.Encoder("discriminator", TRANSFORMER, ("rtd_head", "sentence_head"))
  hidden = encoder.apply(params, "encode", batch, corrupted)
  head = params["discriminator"]["sentence_head"]
  x = np.asarray(hidden[:, 0], np.float64) @ head["dense"]["kernel"] + head["dense"]["bias"]
  x = np.asarray(jax.nn.gelu(jnp.asarray(x), approximate=False)) @ head["output"]["kernel"] + head["output"]["bias"]
  is_corrupted = (np.asarray(corrupted) != np.asarray(batch["input_ids"])).any(axis=1)
  assert is_corrupted.tolist() == [False] * 4 + [True] * 4
  p = 1 / (1 + np.exp(-x[:, 0]))
  expected = -np.log(np.where(is_corrupted, p, 1 - p)).sum()
  assert float(pairs["sentence/loss"][0]) == pytest.approx(expected, rel=1e-4)


# ---- what a trained run can compute ----

ANSWERS = {  # row -> does it fill masks, does it judge words?
  "electra_15": (True, True), "contrastive": (True, True), "adversarial": (True, True),
  "two_stage, second": (True, True), "rtd, all tied": (True, True), "all_tokens_mlm": (True, True),
  "replace_mlm": (True, False), "rtd, unigram": (False, True),
}


@pytest.mark.parametrize("row", ANSWERS)
def test_networks_for_prediction(row):
  name, arguments, *_ = ROWS[row]
  config = FrozenConfigDict(dict(name=name, weight_tying=arguments.get("weight_tying", "token_embeddings")))
  network = networks.make(TRANSFORMER, arguments.get("generator", GENERATOR), config)
  assert (network.mlm_logits is not None, network.rtd_logits is not None) == ANSWERS[row]
  batch = make_batch()
  if network.mlm_logits:
    assert jax.eval_shape(network.mlm_logits, init(row), batch).shape == (8, 3, 128)
  if network.rtd_logits:
    assert jax.eval_shape(network.rtd_logits, init(row), batch, batch["input_ids"]).shape == (8, 16)


def test_the_copy_gate_judges_as_a_discriminator_does():
  """What it would copy is original: its logit with the sign turned."""
  config = FrozenConfigDict(dict(name="all_tokens_mlm", weight_tying="token_embeddings"))
  network, batch, params = networks.make(TRANSFORMER, GENERATOR, config), make_batch(), init("all_tokens_mlm")
  sure = params["encoder"] | {"copy_head": {"output": {"kernel": jnp.zeros((32, 1)), "bias": jnp.array([7.0])}}}
  assert (network.rtd_logits(params | {"encoder": sure}, batch, batch["input_ids"]) == -7).all()


# ---- configuration ----

FAULTS = {  # changes of configs/base.py -> what the error says
  "two_stage needs equal sizes": (dict(name="two_stage", weight_tying="none"), {}, "hidden_size 256 and 768"),
  "two_stage shares nothing": (dict(name="two_stage"), dict(width_fraction=1), "set it to none"),
  "two_stage has two stages": (dict(name="two_stage", weight_tying="none", generator_steps=766_000),
                               dict(width_fraction=1), "both stages need a step of the 766000"),
  "two_stage trains its generator": (dict(name="two_stage", weight_tying="none"), dict(kind="unigram"), "learned"),
  "adversarial trains its generator": (dict(name="adversarial"), dict(kind="uniform"), "set it to learned"),
  "all needs equal sizes": (dict(weight_tying="all"), {}, "set generator.width_fraction and depth_fraction to 1"),
  "all needs both heads": (dict(name="replace_mlm", weight_tying="all"), dict(width_fraction=1), "token_embeddings or"),
  "a share is a share": (dict(unchanged_share=1.2), {}, "objective.unchanged_share is 1.2"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_impossible_combinations_are_refused(fault):
  from configs import base

  objective, generator, message = FAULTS[fault]
  given = base.get_config()
  given.objective.update(objective)
  given.generator.update(generator)
  with pytest.raises(UserError, match="The configuration has") as error:
    config_lib.resolve(given)
  assert message in str(error.value) and error.value.fix


def test_generator_steps_are_half_of_a_two_stage_run_and_never_in_the_way():
  from configs import base
  from configs.ablations import figure3_two_stage

  assert config_lib.resolve(figure3_two_stage.get_config()).objective.generator_steps == 400_000
  assert config_lib.resolve(base.get_config()).objective.generator_steps == 0  # train.num_steps stays resumable


def test_sharding_has_a_row_for_every_parameter():
  mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
  for row in ROWS:
    sharding.parameter_shardings(init(row), mesh)
