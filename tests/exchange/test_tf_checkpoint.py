"""Do released TensorFlow checkpoints give back the model that they hold? Written with TensorFlow's own Saver."""

import dataclasses
import doctest
import json
import os
import pathlib
import re

import numpy as np
import pytest

from configs import base
from electra_jax.errors import UserError
from electra_jax.exchange import formats, tf_checkpoint
from electra_jax.inference import pretraining_heads
from electra_jax.tools import import_weights
from tests.exchange.random_networks import (
  BERT,
  ELECTRA,
  GENERATOR,
  check_start,
  imported_logits,
  logits,
  random_params,
  shapes_of,
)

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "mat", "on", "dog", "."]
MLM, RTD, MLM_NSP = ("mlm_head",), ("rtd_head",), ("mlm_head", "nsp_head")

# Written out by hand, so that the importer's own table is not what it is tested with.
RELEASED = [
  (r"embeddings/(token|position|token_type)/embedding", lambda m: "embeddings/" + {
    "token": "word_embeddings", "position": "position_embeddings", "token_type": "token_type_embeddings"}[m[1]]),
  (r"embeddings/layer_norm/(\w+)", lambda m: f"embeddings/LayerNorm/{NORM[m[1]]}"),
  (r"embeddings_project/(\w+)", lambda m: f"embeddings_project/{m[1]}"),
  (r"layer_(\d+)/attention/(query|key|value)/(\w+)",
   lambda m: f"encoder/layer_{int(m[1])}/attention/self/{m[2]}/{m[3]}"),
  (r"layer_(\d+)/attention/output/(\w+)", lambda m: f"encoder/layer_{int(m[1])}/attention/output/dense/{m[2]}"),
  (r"layer_(\d+)/attention/layer_norm/(\w+)",
   lambda m: f"encoder/layer_{int(m[1])}/attention/output/LayerNorm/{NORM[m[2]]}"),
  (r"layer_(\d+)/feed_forward/(intermediate|output)/(\w+)", lambda m: f"encoder/layer_{int(m[1])}/{m[2]}/dense/{m[3]}"),
  (r"layer_(\d+)/feed_forward/layer_norm/(\w+)", lambda m: f"encoder/layer_{int(m[1])}/output/LayerNorm/{NORM[m[2]]}"),
]
NORM = {"scale": "gamma", "bias": "beta"}
HEADS = {
  "bert": {"mlm_head/dense/kernel": "cls/predictions/transform/dense/kernel",
           "mlm_head/dense/bias": "cls/predictions/transform/dense/bias",
           "mlm_head/layer_norm/scale": "cls/predictions/transform/LayerNorm/gamma",
           "mlm_head/layer_norm/bias": "cls/predictions/transform/LayerNorm/beta",
           "mlm_head/output_bias": "cls/predictions/output_bias",
           "nsp_head/pooler/kernel": "bert/pooler/dense/kernel", "nsp_head/pooler/bias": "bert/pooler/dense/bias",
           "nsp_head/output/kernel": "cls/seq_relationship/output_weights",
           "nsp_head/output/bias": "cls/seq_relationship/output_bias"},
  "electra": {"mlm_head/dense/kernel": "generator_predictions/dense/kernel",
              "mlm_head/dense/bias": "generator_predictions/dense/bias",
              "mlm_head/layer_norm/scale": "generator_predictions/LayerNorm/gamma",
              "mlm_head/layer_norm/bias": "generator_predictions/LayerNorm/beta",
              "mlm_head/output_bias": "generator_predictions/output_bias",
              "rtd_head/dense/kernel": "discriminator_predictions/dense/kernel",
              "rtd_head/dense/bias": "discriminator_predictions/dense/bias",
              "rtd_head/output/kernel": "discriminator_predictions/dense_1/kernel",
              "rtd_head/output/bias": "discriminator_predictions/dense_1/bias"},
}


def released_names(params, family, scope, shared=None):
  """Our {path: array} as the released code's {variable: array}; `shared` is the scope of the embeddings."""
  found = {}
  for path, value in params.items():
    if path in HEADS[family]:
      name = HEADS[family][path]
      found[name] = value.T if name == "cls/seq_relationship/output_weights" else value  # [2, hidden]
      continue
    match, write = next((match, write) for pattern, write in RELEASED if (match := re.fullmatch(pattern, path)))
    found[f"{shared or scope if path.startswith('embeddings/') else scope}/{write(match)}"] = value
  return found


def write(folder, variables, name="model.ckpt-40", slots=()):
  """With the optimizer's slots and the step counter, as a training run leaves it; the released code prunes nothing."""
  import tensorflow as tf

  with tf.Graph().as_default():
    for variable, value in variables.items():
      for slot in ("", *slots):
        tf.compat.v1.get_variable(variable + slot, initializer=value if not slot else np.zeros_like(value))
    tf.compat.v1.train.get_or_create_global_step()
    with tf.compat.v1.Session() as session:
      session.run(tf.compat.v1.global_variables_initializer())
      tf.compat.v1.train.Saver().save(session, os.path.join(folder, name))
  return str(folder)


def electra_pair(generator_config):
  """(discriminator, generator), which share all their embeddings, as in the released code."""
  discriminator, generator = random_params(ELECTRA, RTD, 1), random_params(generator_config, MLM, 2)
  generator |= {path: value for path, value in discriminator.items() if path.startswith("embeddings/")}
  return discriminator, generator


@pytest.fixture(scope="module")
def small(tmp_path_factory):
  """A released ELECTRA with a narrow generator; its variables, to leave some out."""
  discriminator, generator = electra_pair(GENERATOR)
  variables = {**released_names(discriminator, "electra", "electra"),
               **released_names(generator, "electra", "generator", shared="electra")}
  return variables, discriminator, generator, write(tmp_path_factory.mktemp("electra_small"), variables,
                                                     slots=("/adam_m", "/adam_v"))


def same(found, expected):
  for one, other in zip(found, expected, strict=True):
    np.testing.assert_array_equal(one, other)


def test_electra_gives_both_networks_and_their_logits(small):
  variables, discriminator, generator, folder = small
  assert "electra/embeddings/word_embeddings" in variables and "generator/embeddings_project/kernel" in variables
  found = formats.read(folder)
  assert sorted(found) == ["discriminator", "generator"]
  same(imported_logits(found["discriminator"], RTD), logits(ELECTRA, RTD, discriminator))
  same(imported_logits(found["generator"], MLM), logits(GENERATOR, MLM, generator))
  assert found["generator"].config["hidden_size"] == 64 and found["discriminator"].config["embedding_size"] == 24
  assert not any("adam" in name or "step" in name for network in found.values() for name in network.tensors)


def test_small_plus_plus_has_a_generator_as_large_as_the_discriminator(tmp_path):
  """generator_hidden_size 1.0: equal shapes must not be mistaken for one network."""
  discriminator, generator = electra_pair(dataclasses.replace(ELECTRA))
  found = formats.read(write(tmp_path, {
    **released_names(discriminator, "electra", "electra"),
    **released_names(generator, "electra", "generator", shared="electra")}))
  kernel = "electra.encoder.layer.1.attention.self.query.weight"
  for name, params in (("discriminator", discriminator), ("generator", generator)):
    np.testing.assert_array_equal(found[name].tensors[kernel], params["layer_01/attention/query/kernel"].T)
  assert found["generator"].config == found["discriminator"].config


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
  params = random_params(BERT, MLM_NSP)
  folder = tmp_path_factory.mktemp("uncased")
  return params, write(folder, released_names(params, "bert", "bert"), "bert_model.ckpt")


def test_bert_with_both_heads(bert):
  params, folder = bert
  for path in (folder, os.path.join(folder, "bert_model.ckpt"), os.path.join(folder, "bert_model.ckpt.index")):
    assert tf_checkpoint.find(path) == os.path.join(folder, "bert_model.ckpt")
  (weights,) = formats.read(folder).values()
  same(imported_logits(weights, MLM_NSP), logits(BERT, MLM_NSP, params))


def test_config_beside_the_checkpoint_knows_the_heads(bert):
  _, folder = bert
  path = os.path.join(folder, "bert_config.json")
  try:
    with open(path, "w") as file:
      json.dump({"num_attention_heads": 4, "hidden_dropout_prob": 0.0, "vocab_size": 7}, file)
    config = formats.read(folder)["encoder"].config
    assert (config["num_attention_heads"], config["hidden_dropout_prob"], config["vocab_size"]) == (4, 0.0, 50)
    with open(path, "w") as file:
      file.write("{")
    with pytest.raises(UserError, match="has no config"):
      formats.read(folder)
  finally:
    os.remove(path)


def test_missing_and_unknown_variables_are_named(small, tmp_path, caplog):
  variables = dict(small[0])
  del variables["electra/encoder/layer_1/output/LayerNorm/gamma"]
  variables["generator/encoder/layer_0/conv/kernel"] = np.zeros((3, 3), np.float32)
  with pytest.raises(UserError, match="not those of a BERT or ELECTRA") as error:
    formats.read(write(tmp_path, variables))
  assert "electra/encoder/layer_1/output/LayerNorm/gamma is missing" in error.value.got
  assert "generator/encoder/layer_0/conv/kernel (3, 3) is unknown" in error.value.got


def test_fine_tuned_head_is_named_and_left_out(small, tmp_path, caplog):
  variables = {name: value for name, value in small[0].items() if name.startswith("electra/")}
  variables["task_specific/mnli/logits/kernel"] = np.zeros((128, 3), np.float32)
  found = formats.read(write(tmp_path, variables))
  assert list(found) == ["discriminator"] and "task_specific/mnli/logits/kernel" in caplog.text
  assert not any("predictions" in name for name in found["discriminator"].tensors)


def test_runs_start_from_released_checkpoints(small, bert):
  """Pre-training and fine-tuning, from both kinds, as they are."""
  electra = {"discriminator": small[1], "generator": small[2]}
  for folder, wanted in ((small[3], electra), (bert[1], {"encoder": bert[0]})):
    with open(os.path.join(folder, "vocab.txt"), "w") as file:
      file.write("\n".join(VOCABULARY))
    check_start(folder, wanted)


def test_files_that_are_no_checkpoint(small, bert, tmp_path):
  with pytest.raises(UserError, match="No published weights"):
    formats.read(str(tmp_path))
  for name in ("a", "b"):
    (tmp_path / f"{name}.index").write_bytes(b"no table")
  with pytest.raises(UserError, match="several TensorFlow checkpoints"):
    formats.read(str(tmp_path))
  (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/where/it/was/made/a"\n')
  with pytest.raises(UserError, match="cannot be read"):
    formats.read(str(tmp_path))
  for name in ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"):
    content = (pathlib.Path(bert[1]) / name).read_bytes()
    (tmp_path / name).write_bytes(content if name.endswith("index") else content[:5000])
  with pytest.raises(UserError, match="cannot be read") as error:
    formats.read(str(tmp_path / "bert_model.ckpt"))
  assert "complete" in error.value.allowed
  other = tmp_path / "other"
  other.mkdir()
  with pytest.raises(UserError, match="no model that can be imported"):
    formats.read(write(other, {"resnet/conv/kernel": np.zeros((3, 3), np.float32)}))


def test_imported_run_answers_as_the_checkpoint_does(small, tmp_path):
  """tools/import_weights of both networks, which share their token table in the run as they do in the checkpoint."""
  folder = small[3]
  with open(os.path.join(folder, "vocab.txt"), "w") as file:
    file.write("\n".join(VOCABULARY))
  out = str(tmp_path / "imported")
  start = import_weights.import_weights(folder, base.get_config("tiny"), out)
  assert start.fresh == start.unused == []
  runs = pretraining_heads.load(folder), pretraining_heads.load(out)
  assert "embeddings" in runs[1].params["generator"] and "token" not in runs[1].params["generator"]["embeddings"]
  texts = ["the cat sat on the [MASK] .", "the dog ."]
  (masks, _), (other_masks, _) = (pretraining_heads.fill_mask(run, texts, top_k=3) for run in runs)
  assert [c.token_id for c in masks[0]] == [c.token_id for c in other_masks[0]]
  for one, other in zip(*(pretraining_heads.detect_replaced(run, texts) for run in runs)):
    np.testing.assert_allclose([w.probability for w in one], [w.probability for w in other], rtol=1e-5)


@pytest.mark.parametrize("models", [
  {"discriminator": "ElectraForPreTraining-small-discriminator", "generator": "ElectraForMaskedLM-small-h256"},
  {"encoder": "BertForPreTraining-base"}])
def test_published_sizes_need_exactly_the_parameters_of_transformers(shared, monkeypatch, models):
  """The released small++ and BERT-Base: names and shapes, without the arrays' memory."""
  golden = json.loads((shared / "reference/golden/hf_parameters.json").read_text())["models"]
  variables, parameters = {}, {}
  for network, model in models.items():
    parameters[network] = {name: tuple(shape) for name, shape in golden[model]["parameters"]}
    family = golden[model]["config"]["model_type"]
    sizes = golden[model]["config"]
    config = dataclasses.replace(BERT, **{key: sizes[key] for key in (
      "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
      "max_position_embeddings", "type_vocab_size")}, embedding_size=sizes.get("embedding_size", sizes["hidden_size"]))
    heads = {"encoder": MLM_NSP, "generator": MLM, "discriminator": RTD}[network]
    empty = {path: np.broadcast_to(np.float32(0), shape) for path, shape in shapes_of(config, heads).items()}
    scope = {"encoder": "bert", "discriminator": "electra", "generator": "generator"}[network]
    variables |= released_names(empty, family, scope, shared="electra" if family == "electra" else None)

  class Reader:
    def get_variable_to_shape_map(self):
      return {name: value.shape for name, value in variables.items()} | {"global_step": ()}

    def get_tensor(self, name):
      return variables[name]

  monkeypatch.setattr(tf_checkpoint, "find", lambda path: path)
  monkeypatch.setattr(tf_checkpoint, "_open", lambda prefix: Reader())
  found = formats.read("released")
  assert {network: {name: value.shape for name, value in one.tensors.items()} for network, one in found.items()
          } == parameters
  assert all(found[network].config[key] == value for network, model in models.items()
             for key, value in golden[model]["config"].items() if key in found[network].config)


def test_doctests():
  assert doctest.testmod(tf_checkpoint).failed == 0
