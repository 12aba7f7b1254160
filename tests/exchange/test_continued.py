"""Continued pre-training is one key: published weights bring their sizes and vocabulary into any fitting recipe."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from electra_jax import config as config_lib
from electra_jax import pretrain, recipes
from electra_jax.errors import UserError
from electra_jax.exchange import formats, initial, mapping, published
from electra_jax.tools import import_weights
from electra_jax.training import checkpoints
from tests.conftest import ROOT
from tests.exchange.random_networks import BERT, ELECTRA, GENERATOR, ROBERTA, random_params
from tests.exchange.test_published import config_of
from tests.small_runs import write_corpus

pytestmark = pytest.mark.usefixtures("one_device")

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [chr(ord("a") + i) for i in range(22)]
WORDPIECE = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS)]  # 49 entries of the 50 rows


def write_network(folder, family, config, heads, seed=0, shared=None):
  """A Hugging Face folder with random weights and its vocabulary; `shared` replaces parameters."""
  folder.mkdir(parents=True)
  params = random_params(config, heads, seed) | (shared or {})
  tensors = {name: np.ascontiguousarray(value) for name, value in mapping.to_hf(params, family).items()}
  safetensors.numpy.save_file(tensors, folder / "model.safetensors")
  described = config_of(config, family, pad_token_id=int(family == "roberta"))
  (folder / "config.json").write_text(json.dumps(described))
  if family == "roberta":
    entries = ["<s>", "<pad>", "</s>", "<unk>", *LETTERS, "\u0120", ".", "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({entry: i for i, entry in enumerate(entries)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
  else:
    (folder / "vocab.txt").write_text("\n".join(WORDPIECE) + "\n")
  return params


def bert(folder):
  return {"encoder": write_network(folder, "bert", BERT, ("mlm_head", "nsp_head"))}


def roberta(folder):
  return {"encoder": write_network(folder, "roberta", ROBERTA, ("mlm_head",))}


def discriminator(folder):
  return {"discriminator": write_network(folder, "electra", ELECTRA, ("rtd_head",))}


def pair(folder):
  kept = write_network(folder / "discriminator", "electra", ELECTRA, ("rtd_head",))
  table = {name: kept[name] for name in ["embeddings/token/embedding"]}
  return {"discriminator": kept,
          "generator": write_network(folder / "generator", "electra", GENERATOR, ("mlm_head",), 1, table)}


def unshared_pair(folder):
  return {"discriminator": write_network(folder / "discriminator", "electra", ELECTRA, ("rtd_head",)),
          "generator": write_network(folder / "generator", "electra", GENERATOR, ("mlm_head",), 1)}


def run(tmp_path, name, weights, **changes):
  """Two updates by a recipe of which nothing but speed is changed; the resolved config."""
  _, given = recipes.load(f"{name}:continued")
  write_corpus(tmp_path / "corpus.txt", num_documents=40)
  given.update_from_flattened_dict({
    "checkpoint.init_from": str(weights), "data.path": str(tmp_path / "corpus.txt"), "data.heldout_share": 0.0,
    "data.reader": "threads", "data.num_workers": 1, "log.tensorboard": False, "train.num_steps": 2,
    "train.batch_size": 8, "train.log_every_steps": 1, "train.steps_per_dispatch": 1, "train.compute_dtype": "float32",
    "model.hidden_dropout_prob": 0.0, "model.attention_probs_dropout_prob": 0.0, "optimizer.name": "adamw",
    "optimizer.learning_rate": 1e-12, "optimizer.weight_decay_rate": 0.0,
    **{key.replace("__", "."): value for key, value in changes.items()}})
  config_lib.resolve(given)  # as main does first
  pretrain.pretrain(given, str(tmp_path / "run"))
  return config_lib.load(str(tmp_path / "run"))


ROWS = {  # weights -> (recipe, what makes them, sharing)
  "bert": ("bert_base", bert, "token_embeddings"), "bert with nsp": ("bert_original_base", bert, "token_embeddings"),
  "roberta": ("roberta_base", roberta, "token_embeddings"),
  "discriminator alone": ("small", discriminator, "token_embeddings"),
  "electra": ("base", pair, "token_embeddings"), "electra, nothing shared": ("base", unshared_pair, "none")}


@pytest.mark.parametrize("name", ROWS)
def test_one_key_is_enough(tmp_path, name, capsys):
  """The run has the sizes, the vocabulary and (at a learning rate of nothing) the parameters of the weights."""
  recipe, make, sharing = ROWS[name]
  wanted = make(tmp_path / "weights")
  config = run(tmp_path, recipe, tmp_path / "weights")
  said = capsys.readouterr().out
  assert "Sizes and vocabulary are those of" in said and "Starting from the published weights" in said
  assert "Note:" not in said, said
  assert config.model.hidden_size == 128 and config.model.num_hidden_layers == 2 and config.model.vocab_size == 128
  assert config.objective.weight_tying == sharing and config.data.sequence_length == 20
  _, params = checkpoints.load_params(str(tmp_path / "run"))
  for network, arrays in wanted.items():
    for path, value in arrays.items():
      found = params[network]
      if path.startswith("embeddings/token/") and network == "generator" and sharing != "none":
        continue
      if path.split("/")[0] == "nsp_head" and "nsp_head" not in found:
        continue
      for part in path.split("/"):
        found = found[part]
      rows = config.data.tokenizer.vocab_size if path in initial.VOCABULARY else len(value)
      np.testing.assert_allclose(np.asarray(found)[:rows], value[:rows], atol=1e-6, err_msg=f"{network}/{path}")


def test_the_same_command_resumes_without_the_weights(tmp_path, capsys):
  bert(tmp_path / "weights")
  before = run(tmp_path, "bert_base", tmp_path / "weights")
  (tmp_path / "weights").rename(tmp_path / "moved")
  after = run(tmp_path, "bert_base", tmp_path / "weights", train__num_steps=4)
  assert "step 2" in capsys.readouterr().out and after.model == before.model


@pytest.mark.parametrize("recipe, make, said", [
  ("base", bert, "a masked LM's, but objective.name=rtd trains a discriminator"),
  ("bert_base", discriminator, "a discriminator's (ELECTRA), but objective.name=mlm")])
def test_weights_of_another_objective_are_told(tmp_path, recipe, make, said, capsys):
  make(tmp_path / "weights")
  _, given = recipes.load(f"{recipe}:continued")
  given.checkpoint.init_from = str(tmp_path / "weights")
  published.fit(given, str(tmp_path / "run"))
  assert said in capsys.readouterr().out


def test_text_prepared_ahead_has_the_vocabulary_of_the_weights(tmp_path):
  bert(tmp_path / "weights")
  write_corpus(tmp_path / "corpus.txt", num_documents=40)
  subprocess.run([sys.executable, "-m", "electra_jax.tools.prepare_data", "--config=configs/bert_base.py:continued",
                  f"--config.checkpoint.init_from={tmp_path}/weights", f"--config.data.path={tmp_path}/corpus.txt",
                  f"--out={tmp_path}/data"], cwd=ROOT, check=True, capture_output=True)
  prepared = json.loads((tmp_path / "data/shards/manifest.json").read_text())
  assert prepared["tokenizer"]["vocab_size"] == len(WORDPIECE) and prepared["packing"]["sequence_length"] == 20


def test_weights_without_a_vocabulary(tmp_path):
  bert(tmp_path / "weights")
  (tmp_path / "weights" / "vocab.txt").rename(tmp_path / "vocab.txt")
  with pytest.raises(UserError, match="no vocabulary next to it") as caught:
    run(tmp_path, "bert_base", tmp_path / "weights")
  assert "--config.data.tokenizer.path" in caught.value.fix
  _, given = recipes.load("bert_base:continued")
  given.checkpoint.init_from, given.data.tokenizer.path = str(tmp_path / "weights"), str(tmp_path / "vocab.txt")
  assert published.fit(given, str(tmp_path / "run")).model.hidden_size == 128


@pytest.mark.parametrize("recipe, name", [
  ("bert_base", "trained_2e17/bert_small"), ("small", "trained_2e17/electra_small"),
  ("bert_base", "weights/rxnfp_bert_pretrained")])
def test_real_weights(shared, recipe, name, tmp_path):
  """They fit their kind of recipe, without a note and without a part that starts fresh."""
  _, given = recipes.load(f"{recipe}:continued")
  given.checkpoint.init_from = path = str(shared / "reference" / name)
  fitted = published.fit(given, str(tmp_path / "run"))
  config, weights = config_lib.resolve(fitted), formats.read(path)
  tokenizer = published.load_tokenizer(path)
  shapes = jax.eval_shape(import_weights.initial_params(config, tokenizer))
  params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes)
  start = initial.merge(weights, params, tokenizer.vocab_size)
  assert not start.fresh and not published.mismatch(weights, config.objective.name)
