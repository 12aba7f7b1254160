"""Do the objectives of the ablations train what they should, and give the losses that ELECTRA's sections say?

Sections 3.2 and 3.5, appendices D and F; the functions that they are made of are in test_ablation_parts.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import FrozenConfigDict

from electra_jax import config as config_lib
from electra_jax import config_rules, flops, metrics, progress, sharding
from electra_jax.errors import UserError
from electra_jax.objectives import contrastive, generators, predictors, sampling, table
from electra_jax.training.train_state import count_parameters
from tests.objectives.ablation_rows import EQUAL, LN2, LN100, ROWS, init, run
from tests.objectives.test_objectives import (
  FAST_TO_COMPILE,
  GENERATOR,
  TRANSFORMER,
  make,
  make_batch,
  moved,
  value_and_gradients,
)

IN_BFLOAT16 = ("replace_mlm", "all_tokens_mlm", "contrastive", "adversarial")  # the rest runs rtd's code


def test_every_table_has_every_objective():
  names = set(table.ROWS)
  assert {row.predictor for row in table.ROWS.values()} == set(predictors.PREDICTORS)
  assert {head for row in table.ROWS.values() for heads in row.networks.values() for head in heads} == set(flops.HEADS)
  assert {"learned", *generators.LOG_WEIGHTS} == set(config_rules.CHOICES["generator.kind"])
  assert names == {row[0] for row in ROWS.values()} | {"rtd", "mlm", "mlm_nsp"}  # tested next to this file


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
  line = progress.describe_evaluation(values)
  assert all(f"{value:.3f}" in line for name, value in values.items() if name.endswith("/loss")), line
  assert ("recall" in line or "marked" in line) == ("rtd/recall" in values), line


def test_all_tokens_mlm_at_initialisation():
  """An undecided gate: ln 2 for what it could copy, ln 2 + ln 100 for what was replaced."""
  pairs = run("all_tokens_mlm")[1]
  replaced, tokens = float(pairs["rtd/recall"][1]), float(pairs["all_tokens_mlm/loss"][1])
  expected = (replaced * (LN2 + LN100) - (tokens - replaced) * np.log(0.5 + 0.5 / 100)) / tokens
  assert replaced > 5 and metrics.summarise(pairs)["all_tokens_mlm/loss"] == pytest.approx(expected, abs=0.05)


TOTALS = {  # row -> the weighted sum of means that its loss is; JUDGED: 50 x the share of tokens that are judged
  "electra_15": "1 * mlm + JUDGED * rtd", "electra_15_other": "1 * mlm + JUDGED * rtd",
  "replace_mlm": "1 * mlm + 1 * replace_mlm", "all_tokens_mlm": "1 * mlm + 1 * all_tokens_mlm",
  "hard_tokens": "1 * mlm + 1 * difficulty",
  "contrastive": "1 * mlm + 50 * rtd + 1 * sentence", "two_stage, first": "1 * mlm", "two_stage, second": "50 * rtd",
  "rtd, unigram": "50 * rtd",
}


@pytest.mark.parametrize("row", TOTALS)
def test_total_is_the_weighted_sum_of_means(row):
  loss, pairs, _ = run(row)
  values = metrics.summarise(pairs)
  terms = [term.split(" * ") for term in TOTALS[row].split(" + ")]
  judged = 50 * pairs["rtd/loss"][1] / make_batch()["attention_mask"].sum() if "rtd/loss" in pairs else 0
  weights = [float(judged if weight == "JUDGED" else weight) for weight, _ in terms]
  assert loss == pytest.approx(sum(w * values[f"{name}/loss"] for w, (_, name) in zip(weights, terms)), rel=1e-5)


@pytest.mark.parametrize("row", IN_BFLOAT16)
def test_bfloat16_is_finite_and_close(row):
  loss, pairs, gradients = run(row, "bfloat16")
  assert all(jnp.isfinite(leaf).all() and leaf.dtype == jnp.float32 for leaf in gradients.values())
  assert all(np.isfinite(np.asarray(pair)).all() for pair in jax.tree.leaves(pairs)) and np.isfinite(loss)
  exact = metrics.summarise(run(row)[1])
  for name in exact.keys() & {"mlm/loss", "replace_mlm/loss", "sentence/loss"}:  # the others depend on the draws
    assert metrics.summarise(pairs)[name] == pytest.approx(exact[name], rel=0.02), name


# ---- whole losses by hand ----


def test_unchanged_rows_count_as_not_corrupted(monkeypatch):
  monkeypatch.setattr(contrastive, "UNCHANGED_SHARE", 1.0)
  objective, batch = make("contrastive"), make_batch()
  _, pairs, _ = value_and_gradients(objective, batch, init("contrastive"))
  assert float(pairs["rtd/recall"][1]) == 0 and float(pairs["mlm/loss"][1]) == batch["masked_weights"].sum()
  assert float(pairs["sentence/loss"][1]) == len(batch["input_ids"])


def numpy_losses(row, monkeypatch):
  """(loss pairs, corrupted ids, masks and logits as NumPy) of an objective whose draws are fixed."""
  drawn = np.random.default_rng(4).integers(5, 100, (8, 3)).astype(np.int32)
  batch, params = make_batch(), init(row)
  drawn[:4] = batch["masked_ids"][:4]  # four rows in which every draw is the original
  monkeypatch.setattr(sampling, "sample_ids", lambda rng, logits: jnp.asarray(drawn))
  monkeypatch.setattr(contrastive, "UNCHANGED_SHARE", 0.0)
  _, pairs, _ = value_and_gradients(make(ROWS[row][0], **ROWS[row][1]), batch, params)
  corrupted = np.array(batch["input_ids"])
  for i, slot in np.argwhere(np.asarray(batch["masked_weights"])):
    corrupted[i, batch["masked_positions"][i, slot]] = drawn[i, slot]
  return pairs, batch, params, jnp.asarray(corrupted)


def compiled(encoder, method):
  return jax.jit(lambda params, *arguments: encoder.apply(params, method, *arguments), compiler_options=FAST_TO_COMPILE)


def test_replace_mlm_by_hand(monkeypatch):
  """Cross-entropy of the originals at the masked positions, of an encoder that reads the draws."""
  pairs, batch, params, corrupted = numpy_losses("replace_mlm", monkeypatch)
  encoder = predictors.Encoder("encoder", TRANSFORMER, ("mlm_head",))
  logits = np.asarray(compiled(encoder, "mlm_logits")(params, batch, corrupted), np.float64)
  expected = 0.0
  for i, slot in np.argwhere(np.asarray(batch["masked_weights"])):
    expected -= logits[i, slot, batch["masked_ids"][i, slot]] - np.log(np.exp(logits[i, slot]).sum())
  assert float(pairs["replace_mlm/loss"][0]) == pytest.approx(expected, rel=1e-4)


def test_contrastive_by_hand(monkeypatch):
  """Binary cross-entropy of "some token differs" from [CLS]; rows of drawn originals count as unchanged."""
  pairs, batch, params, corrupted = numpy_losses("contrastive", monkeypatch)
  encoder = predictors.Encoder("discriminator", TRANSFORMER, ("rtd_head", "sentence_head"))
  hidden = compiled(encoder, "encode")(params, batch, corrupted)
  head = params["discriminator"]["sentence_head"]
  x = np.asarray(hidden[:, 0], np.float64) @ head["dense"]["kernel"] + head["dense"]["bias"]
  x = np.asarray(jax.nn.gelu(jnp.asarray(x), approximate=False)) @ head["output"]["kernel"] + head["output"]["bias"]
  is_corrupted = (np.asarray(corrupted) != np.asarray(batch["input_ids"])).any(axis=1)
  assert is_corrupted.tolist() == [False] * 4 + [True] * 4
  p = 1 / (1 + np.exp(-x[:, 0]))
  expected = -np.log(np.where(is_corrupted, p, 1 - p)).sum()
  assert float(pairs["sentence/loss"][0]) == pytest.approx(expected, rel=1e-4)


def test_tying_embeddings_leaves_the_generator_none():
  shapes = jax.eval_shape(make("rtd", weight_tying="embeddings").init, jax.random.key(0), make_batch())
  assert "embeddings" in shapes["discriminator"] and "embeddings" not in shapes["generator"]
  token_alone = jax.eval_shape(make("rtd").init, jax.random.key(0), make_batch())
  assert set(token_alone["generator"]["embeddings"]) == {"position", "token_type", "layer_norm"}


def test_tying_all_leaves_one_encoder():
  tied, untied = (jax.eval_shape(make("rtd", generator=EQUAL, weight_tying=tying).init, jax.random.key(0), make_batch())
                  for tying in ("all", "none"))
  assert set(tied) == {"discriminator"}
  heads = count_parameters(untied["discriminator"]["rtd_head"])
  assert count_parameters(tied) == count_parameters(untied["generator"]) + heads


# ---- what a trained run can compute ----

ANSWERS = {  # row -> does it fill masks, does it judge words?
  "electra_15": (True, True), "contrastive": (True, True), "adversarial": (True, True),
  "two_stage, second": (True, True), "rtd, all tied": (True, True), "all_tokens_mlm": (True, True),
  "replace_mlm": (True, False), "rtd, unigram": (False, True),
  "rtd, embeddings tied": (True, True),
}


@pytest.mark.parametrize("row", ANSWERS)
def test_networks_for_prediction(row):
  name, arguments, *_ = ROWS[row]
  config = FrozenConfigDict(dict(name=name, weight_tying=arguments.get("weight_tying", "token_embeddings")))
  network = predictors.make(TRANSFORMER, arguments.get("generator", GENERATOR), config)
  assert (network.mlm_logits is not None, network.rtd_logits is not None) == ANSWERS[row]
  batch = make_batch()
  if network.mlm_logits:
    assert jax.eval_shape(network.mlm_logits, init(row), batch).shape == (8, 3, 128)
  if network.rtd_logits:
    assert jax.eval_shape(network.rtd_logits, init(row), batch, batch["input_ids"]).shape == (8, 16)


def test_the_copy_gate_judges_as_a_discriminator_does():
  """What it would copy is original: its logit with the sign turned."""
  config = FrozenConfigDict(dict(name="all_tokens_mlm", weight_tying="token_embeddings"))
  network, batch, params = predictors.make(TRANSFORMER, GENERATOR, config), make_batch(), init("all_tokens_mlm")
  sure = params["encoder"] | {"copy_head": {"output": {"kernel": jnp.zeros((32, 1)), "bias": jnp.array([7.0])}}}
  assert (jax.jit(network.rtd_logits)(params | {"encoder": sure}, batch, batch["input_ids"]) == -7).all()


# ---- configuration ----

FAULTS = {  # changes of configs/base.py -> what the error says
  "two_stage needs equal sizes": (dict(name="two_stage", weight_tying="none"), {}, "hidden_size 256 and 768"),
  "two_stage shares nothing": (dict(name="two_stage"), dict(width_fraction=1), "set it to none"),
  "two_stage has two stages": (dict(name="two_stage", weight_tying="none", generator_steps=766_000),
                               dict(width_fraction=1), "both stages need a step of the 766000"),
  "two_stage trains its generator": (dict(name="two_stage", weight_tying="none"), dict(kind="unigram"), "learned"),
  "adversarial trains its generator": (dict(name="adversarial"), dict(kind="uniform"), "set it to learned"),
  "all needs equal sizes": (dict(weight_tying="all"), {}, "set generator.width_fraction and depth_fraction to 1"),
  "all needs both heads": (dict(name="replace_mlm", weight_tying="all"), dict(width_fraction=1),
                           "token_embeddings, embeddings or"),
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
  from configs import ablations, base

  assert config_lib.resolve(ablations.get_config("figure3_two_stage")).objective.generator_steps == 400_000
  assert config_lib.resolve(base.get_config()).objective.generator_steps == 0  # train.num_steps stays resumable


def test_a_masked_token_weighs_the_same_in_all_tokens_mlm_and_replace_mlm():
  from configs import ablations

  given = ablations.get_config("table3_all_tokens_mlm")
  assert config_lib.resolve(ablations.get_config("table3_replace_mlm")).objective.encoder_mlm_weight == 1
  assert config_lib.resolve(given).objective.encoder_mlm_weight == pytest.approx(1 / 0.15)
  given.objective.encoder_mlm_weight = 2.0
  assert config_lib.resolve(given).objective.encoder_mlm_weight == 2


def test_sharding_has_a_row_for_every_parameter():
  mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
  for row in ROWS:
    sharding.parameter_shardings(init(row), mesh)
