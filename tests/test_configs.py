"""Is every recipe complete and true to its table? Found by glob: a new recipe is tested without a new line here."""

import functools
import importlib
import json
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import FrozenConfigDict

from configs import ablations
from electra_jax import config as config_lib
from electra_jax import flops, objectives, optim, recipes, sharding
from electra_jax.errors import UserError
from electra_jax.finetuning import pretrained
from electra_jax.models.bert import make_transformer_config
from electra_jax.training.train_state import count_parameters
from tests.conftest import ROOT

RECIPES = sorted(path.stem for path in (ROOT / "configs").glob("*.py")
                 if path.stem not in ("__init__", "common", "ablations", "evidence", "variants"))
ABLATIONS = [f"ablations:{row}" for row in ablations.ROWS]

# recipe -> (subtree, parameters the paper prints, to the nearest): Table 1 and 2 of ELECTRA; RoBERTa section 5.
PAPER_PARAMETERS = {
  "small": ("discriminator", 14e6, 1e6), "base": ("discriminator", 110e6, 10e6),
  "large": ("discriminator", 335e6, 1e6),
  "bert_small": ("encoder", 14e6, 1e6), "bert_base": ("encoder", 110e6, 10e6), "bert_large": ("encoder", 335e6, 1e6),
  "roberta_base": ("encoder", 125e6, 1e6), "roberta_large": ("encoder", 355e6, 1e6),
}
# recipe -> training FLOPs of ELECTRA Tables 1 and 2. The batch of RoBERTa's row is "8k".
PAPER_FLOPS = {"small": 1.4e18, "base": 6.4e19, "large": 7.1e20, "bert_small": 1.4e18, "bert_base": 6.4e19,
               "bert_large": 7.1e20, "roberta_large": 3.2e21}
TABLE_4 = {  # ELECTRA Table 4: layers, hidden, FFN, heads, embed, generator, rate, batch, steps BERT/ELECTRA, length
  "small": (12, 256, 1024, 4, 128, 1 / 2, 5e-4, 128, 1_450_000, 1_000_000, 128),
  "base": (12, 768, 3072, 12, 768, 1 / 3, 2e-4, 256, 1_000_000, 766_000, 512),
  "large": (24, 1024, 4096, 16, 1024, 1 / 4, 2e-4, 2048, 464_000, 400_000, 512),
}


def recipe(name, argument=None):
  """A recipe as `importlib` has it; of a row of a table, ablations:ROW, likewise."""
  file, _, row = name.partition(":")
  return importlib.import_module(f"configs.{file}").get_config(",".join(filter(None, (row, argument))) or None)


def abstract_params(given):
  """(config, shapes of its parameters); what decides the shapes is traced once."""
  config = config_lib.resolve(given)
  slots = config_lib.num_predictions(config.data.masking.rate, config.data.sequence_length)
  deciding = {"length": config.data.sequence_length, "slots": slots,
              "num_tokens": config.data.tokenizer.vocab_size, "dtype": config.train.compute_dtype,
              "num_steps": config.train.num_steps}
  branches = {name: config[name].to_dict() for name in ("model", "generator", "objective")}
  return config, trace(json.dumps(branches | deciding, sort_keys=True))


@functools.cache
def trace(deciding):
  c = FrozenConfigDict(json.loads(deciding))
  transformer = make_transformer_config(c.model, num_tokens=c.num_tokens, dtype=c.dtype)
  objective = objectives.make(transformer, c.generator, c.objective, c.num_steps, np.ones(c.num_tokens, int))
  ids = jax.ShapeDtypeStruct((2, c.length), jnp.int32)
  batch = {"input_ids": ids, "masked_input_ids": ids, "token_type_ids": ids,
           "attention_mask": jax.ShapeDtypeStruct((2, c.length), jnp.bool_),
           "masked_positions": jax.ShapeDtypeStruct((2, c.slots), jnp.int32)}
  return jax.eval_shape(objective.init, jax.random.key(0), batch)


@pytest.mark.parametrize("name", RECIPES + ABLATIONS)
def test_recipe_builds_and_every_rule_covers_its_parameters(name):
  given = recipe(name)
  assert flops.model_flops(config_lib.resolve(given)).per_step > 0
  given.model.num_hidden_layers = 2  # each layer has the same rules
  _, params = abstract_params(given)
  assert sum(name in params for name in pretrained.ENCODERS) == 1  # what fine-tuning keeps
  sharding.parameter_shardings(params, sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2}))
  decays = jax.tree_util.tree_leaves_with_path(optim.decay_mask(params))
  assert all(decay == (sharding.path_name(path).split("/")[-1] in ("kernel", "embedding")) for path, decay in decays)
  config_lib.resolve(recipe(name, "tiny"))
  if name in RECIPES:
    assert len((ROOT / f"configs/{name}.py").read_text().splitlines()) <= 40


@pytest.mark.parametrize("name", ablations.ROWS)
def test_ablation_names_its_row_and_changes_little(name):
  about, base, changes = ablations.ROWS[name]
  assert re.match(r"(ELECTRA (Figure|Table|section|footnote|Appendix)|RoBERTa Table) ", about)
  assert base in RECIPES or base in ablations.ROWS
  before = ablations.get_config(base) if base in ablations.ROWS else recipe(base)
  differing = config_lib.diff(before, ablations.get_config(name))
  assert differing.keys() <= changes.keys()  # a row may say what its base says too, but nothing else differs
  # Batches bring rate, warm-up, beta2; sizes four keys.
  allowed = {"roberta_table3": 5, "figure3_generator": 6, "figure4_electra": 5}
  assert len(changes) <= next((number for start, number in allowed.items() if name.startswith(start)), 4), changes
  assert recipes.load(f"ablations:{name},tiny")[0] == about


def test_a_row_that_does_not_exist_names_the_closest():
  with pytest.raises(UserError, match=":table3_bert or :table3_bert,tiny"):
    recipes.load("configs/ablations.py:table3_brt")
  with pytest.raises(UserError, match="no such row"):
    recipes.load("evidence")
  with pytest.raises(UserError, match="no such variant"):
    recipes.load("evidence:electra_small,small")


@pytest.mark.parametrize("name", PAPER_PARAMETERS)
def test_parameter_count_rounds_to_the_papers(name):
  given = recipe(name)
  given.model.vocab_size = given.data.tokenizer.vocab_size  # the papers count real tokens only
  subtree, expected, unit = PAPER_PARAMETERS[name]
  count = count_parameters(abstract_params(given)[1][subtree])
  assert round(count / unit) == round(expected / unit), count


def test_small_discriminator_has_exactly_the_published_parameters():
  given = recipe("small")
  given.model.vocab_size = given.data.tokenizer.vocab_size
  assert count_parameters(abstract_params(given)[1]["discriminator"]) == 13_549_057


def test_roberta_base_has_exactly_the_published_parameters():
  given = recipe("roberta_base")
  given.model.vocab_size = given.data.tokenizer.vocab_size
  assert count_parameters(abstract_params(given)[1]["encoder"]) == 124_697_433


def test_the_original_bert():
  """RoBERTa section 2.4 and 4.1; the parameter count is that of Hugging Face's BertForPreTraining."""
  given = recipe("bert_original_base")
  given.model.vocab_size = given.data.tokenizer.vocab_size
  c, params = abstract_params(given)
  assert count_parameters(params["encoder"]) == 110_106_428
  assert (c.optimizer.name, c.optimizer.learning_rate, c.optimizer.warmup_steps) == ("adamw", 1e-4, 10_000)
  assert (c.optimizer.beta1, c.optimizer.beta2, c.optimizer.epsilon) == (0.9, 0.999, 1e-6)
  assert (c.optimizer.weight_decay_rate, c.optimizer.schedule) == (0.01, "linear")
  assert (c.train.batch_size, c.train.num_steps, c.data.sequence_length) == (256, 1_000_000, 512)
  assert (c.data.format, c.objective.name, c.data.masking.num_static_masks) == ("SEGMENT-PAIR", "mlm_nsp", 10)
  assert (c.data.masking.mask_share, c.data.masking.random_share) == (0.8, 0.1)
  assert (c.data.tokenizer.kind, c.data.tokenizer.vocab_size) == ("wordpiece", 30522)


@pytest.mark.parametrize("name, argument", [("tiny", None), ("bert_small", "tiny"), ("roberta_base", "tiny")])
def test_a_shortened_try_needs_no_other_key(name, argument):
  given = recipe(name, argument)
  given.train.num_steps = 20
  assert config_lib.resolve(given).optimizer.warmup_steps <= 20


def test_next_sentence_prediction_needs_pairs():
  given = recipe("bert_original_base")
  given.data.format = "FULL-SENTENCES"
  with pytest.raises(UserError, match=r"mlm_nsp needs data\.format SEGMENT-PAIR or SENTENCE-PAIR"):
    config_lib.resolve(given)


@pytest.mark.parametrize("name", PAPER_FLOPS)
def test_training_flops_round_to_the_papers(name):
  assert flops.paper_flops(config_lib.resolve(recipe(name))).per_run == pytest.approx(PAPER_FLOPS[name], rel=0.04)


@pytest.mark.parametrize("size", TABLE_4)
def test_electra_table_4(size):
  layers, hidden, ffn, heads, embedding, generator, rate, batch, bert_steps, electra_steps, length = TABLE_4[size]
  for name, steps in ((size, electra_steps), (f"bert_{size}", bert_steps)):
    c = config_lib.resolve(recipe(name))
    assert (c.model.num_hidden_layers, c.model.hidden_size, c.model.intermediate_size, c.model.num_attention_heads,
            c.model.embedding_size) == (layers, hidden, ffn, heads, embedding)
    assert (c.optimizer.name, c.optimizer.learning_rate, c.optimizer.schedule) == ("lamb", rate, "linear")
    assert (c.optimizer.warmup_steps, c.optimizer.epsilon, c.optimizer.weight_decay_rate) == (10_000, 1e-6, 0.01)
    assert (c.optimizer.beta1, c.optimizer.beta2) == (0.9, 0.999)
    assert (c.model.hidden_dropout_prob, c.model.attention_probs_dropout_prob) == (0.1, 0.1)
    assert (c.train.batch_size, c.train.num_steps, c.data.sequence_length) == (batch, steps, length)
    assert c.data.masking.num_static_masks == 0
  c = config_lib.resolve(recipe(size))
  assert (c.objective.name, c.objective.rtd_weight, c.data.masking.mask_share) == ("rtd", 50, 1)
  assert c.generator.hidden_size == round(hidden * generator)
  assert c.generator.hidden_size // c.generator.num_attention_heads == 64  # Table 4: the head size stays


@pytest.mark.parametrize("size, fraction, mask_rate", [("small", 1.0, 0.15), ("base", 1 / 3, 0.15),
                                                       ("large", 1 / 4, 0.25)])
def test_the_released_electra(size, fraction, mask_rate):
  """By the released code's configuration and, of Small's generator, its README."""
  c = config_lib.resolve(importlib.import_module(f"configs.{size}").get_config("released"))
  assert (c.optimizer.name, c.optimizer.bias_correction, c.objective.weight_tying) == ("adamw", False, "embeddings")
  assert (c.optimizer.beta2, c.optimizer.epsilon, c.optimizer.weight_decay_rate) == (0.999, 1e-6, 0.01)
  assert c.generator.hidden_size == round(c.model.hidden_size * fraction) and c.model.hidden_act == "gelu_new"
  assert (c.data.masking.mask_share, c.data.masking.random_share, c.data.masking.rate) == (0.85, 0.0, mask_rate)
  paper = config_lib.resolve(recipe(size))
  assert (c.optimizer.learning_rate, c.train.num_steps) == (paper.optimizer.learning_rate, paper.train.num_steps)
  with pytest.raises(UserError, match="no such variant"):
    importlib.import_module(f"configs.bert_{size}").get_config("released")


ROBERTA_TABLES = ("roberta_table1_static", "roberta_table1_dynamic", "roberta_table2_segment_pair",
                  "roberta_table2_sentence_pair", "roberta_table2_full_sentences", "roberta_table2_doc_sentences",
                  "roberta_table3_256", "roberta_table3_2k", "roberta_table3_8k")
VARIED = {  # by the papers: Table 1 masks; Table 2 formats, with what follows from them; Table 3 batches
  "data.masking.num_static_masks", "objective.name", "data.format", "train.batch_size",
  "train.num_steps", "optimizer.learning_rate", "optimizer.warmup_steps", "optimizer.beta2", "eval.batch_size"}


@pytest.mark.parametrize("name", ROBERTA_TABLES)
def test_the_tables_of_roberta_differ_in_what_the_paper_varies(name):
  c = config_lib.resolve(ablations.get_config(name))
  assert set(config_lib.diff(config_lib.resolve(recipe("bert_original_base")), c)) <= VARIED
  assert c.data.short_sequence_share == 0  # section 3.1
  assert c.optimizer.beta2 == (0.98 if c.train.batch_size > 256 else 0.999)  # section 3.1: with large batches


@pytest.mark.parametrize("name,rate,warmup", [("roberta_base", 6e-4, 24_000), ("roberta_large", 4e-4, 30_000)])
def test_roberta_table_9(name, rate, warmup):
  c = config_lib.resolve(recipe(name))
  assert (c.optimizer.name, c.optimizer.learning_rate, c.optimizer.warmup_steps) == ("adamw", rate, warmup)
  assert (c.optimizer.beta1, c.optimizer.beta2, c.optimizer.epsilon) == (0.9, 0.98, 1e-6)
  assert (c.optimizer.weight_decay_rate, c.optimizer.clip_norm) == (0.01, 0.0)
  assert (c.train.batch_size, c.train.num_steps) == (8192, 500_000)
  assert (c.data.format, c.data.tokenizer.kind) == ("FULL-SENTENCES", "byte_bpe")
  assert (c.data.masking.mask_share, c.data.masking.random_share) == (0.8, 0.1)
  assert c.model.max_position_embeddings - c.model.position_offset == 512


def test_all_faults_are_reported_at_once():
  given = recipe("base")
  given.train.batch_size = 0
  given.optimizer.clip_norm = -1.0
  given.model.max_position_embeddings = 128
  given.data.masking.rate = 1.5
  with pytest.raises(UserError) as error:
    config_lib.resolve(given)
  for key in ("train.batch_size", "optimizer.clip_norm", "model.max_position_embeddings", "data.masking.rate"):
    assert key in str(error.value)


@pytest.mark.parametrize("key, value", [
  ("seed", -1), ("model.embedding_size", 0), ("model.type_vocab_size", 0), ("model.layer_norm_eps", -1e-5),
  ("eval.finetune_every_steps", -1), ("optimizer.clip_norm", float("nan")), ("model.hidden_dropout_prob", 1.0)])
def test_numbers_that_no_run_can_have(key, value):
  given = recipe("base")
  given.update_from_flattened_dict({key: value})
  with pytest.raises(UserError, match=rf"{key} is "):
    config_lib.resolve(given)


def test_misspelt_choice_suggests_the_right_one():
  given = recipe("base")
  given.data.format = "FULL-SENTENCE"
  with pytest.raises(UserError, match="did you mean FULL-SENTENCES"):
    config_lib.resolve(given)


def test_resolved_config_is_frozen_and_the_recipe_untouched():
  given = recipe("base")
  config = config_lib.resolve(given)
  assert given.generator.hidden_size is None and config.generator.hidden_size == 256
  with pytest.raises(AttributeError):
    config.train.num_steps = 3


def test_a_run_on_a_part_of_the_machine_starts_as_many_processes(monkeypatch):
  monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 7}, raising=False)
  assert config_lib.resolve(recipe("base")).data.num_workers == 2


def test_the_commit_is_of_this_code_and_not_of_a_repository_around_it(monkeypatch):
  monkeypatch.setattr(config_lib, "__file__", str(ROOT / "tests/data/config.py"))
  assert config_lib._commit() == "unknown"


def test_a_workdir_of_another_version_is_refused(tmp_path):
  path = tmp_path / "config.json"
  config_lib.save(str(path), recipe("base"), config_lib.resolve(recipe("base")))
  record = json.loads(path.read_text()) | {"commit": "abc123"}
  del record["format"]
  path.write_text(json.dumps(record))
  with pytest.raises(UserError, match="format 0 of commit abc123"):
    config_lib.load(str(tmp_path))


@pytest.mark.parametrize("changes, said", [
  ({"train.remat": "some"}, "allowed: none, full, dots, all_dots"),
  ({"train.compute_dtype": "float16"}, "allowed: bfloat16, float32"),
])
def test_faults_of_numerics(changes, said):
  given = recipe("base")
  given.update_from_flattened_dict(changes)
  with pytest.raises(UserError, match=re.escape(said)):
    config_lib.resolve(given)


def test_save_load_diff(tmp_path):
  given = recipe("small")
  config = config_lib.resolve(given)
  config_lib.save(str(tmp_path / "config.json"), given, config)
  loaded = config_lib.load(str(tmp_path))
  assert config_lib.diff(loaded, config) == {}
  given.train.log_every_steps = 70
  changed = config_lib.resolve(given)
  assert config_lib.check_resumable(loaded, changed, "w") == {"train.log_every_steps": (100, 70)}
  given.model.hidden_size = 512
  with pytest.raises(UserError, match=r"model\.hidden_size: 256 in the workdir, 512 asked for"):
    config_lib.check_resumable(loaded, config_lib.resolve(given), "w")
