"""Do real pre-trained weights give their golden outputs through every family, and does training go on from there?"""

import gzip
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from configs import bert_original_base
from electra_jax import config as config_lib
from electra_jax import objectives, sharding
from electra_jax.data import tokenizers
from electra_jax.exchange import formats, initial, mapping, published
from electra_jax.inference import pretraining_heads
from electra_jax.models.bert import Bert, make_transformer_config
from electra_jax.tools import import_weights


@pytest.fixture(scope="module")
def folder(shared):
  return shared / "reference/weights/rxnfp_bert_pretrained"


@pytest.fixture(scope="module")
def golden(folder):
  """The arrays, the facts, and the batch that they were made with."""
  arrays = np.load(folder / "golden.npz")
  labels, length = arrays["labels"], arrays["labels"].shape[1]
  is_masked = labels != -100
  slots = int(is_masked.sum(axis=1).max())
  order = np.argsort(~is_masked, axis=1, kind="stable")[:, :slots]  # positions of the masked tokens come first
  weights = np.take_along_axis(is_masked, order, axis=1)
  ids = arrays["input_ids"].astype(np.int32)
  batch = {"input_ids": ids, "masked_input_ids": ids, "token_type_ids": np.zeros_like(ids),
           "attention_mask": arrays["attention_mask"].astype(bool), "masked_positions": order.astype(np.int32),
           "masked_ids": np.where(weights, np.take_along_axis(labels, order, axis=1), 0).astype(np.int32),
           "masked_weights": weights.astype(np.float32), "nsp_label": np.full(len(ids), -1, np.int32)}
  batch = jax.tree.map(jnp.asarray, batch)
  every = batch | {"masked_positions": jnp.broadcast_to(jnp.arange(length), ids.shape)}
  return arrays, json.loads((folder / "golden.json").read_text()), batch, every


def recipe():
  """BERT's own recipe without dropout, as a continued pre-training on the vocabulary of the weights."""
  given = bert_original_base.get_config()
  given.model.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
  given.data.sequence_length = 105
  return given


def test_continued_pre_training_starts_at_the_golden_loss(folder, golden):
  """Loss and the gradient of every tensor, from the folder as checkpoint.init_from takes it."""
  arrays, facts, batch, every = golden
  tokenizer = published.load_tokenizer(str(folder))
  config = config_lib.resolve(published.adapt(recipe(), formats.read(str(folder)), tokenizer))
  zeros = jax.tree.map(lambda s: jnp.zeros(s.shape), jax.eval_shape(import_weights.initial_params(config, tokenizer)))
  params, said = published.start_params(str(folder), zeros, tokenizer)
  said = said.replace(str(folder), "")  # whose name may contain any word
  assert "fresh" not in said and "Not used" not in said, said
  transformer = make_transformer_config(config.model, num_tokens=tokenizer.vocab_size, dtype="float32")
  objective = objectives.make(transformer, config.generator, config.objective, 1)
  model = Bert(transformer, ("mlm_head", "nsp_head"))

  @jax.jit
  def start(params):
    counts = jax.tree.map(lambda n: jnp.maximum(n, 1), objective.count_targets(batch))
    loss = jax.value_and_grad(lambda p: objective.phases[0].loss(p, batch, jax.random.key(0), False, counts)[0])
    logits = model.apply({"params": params["encoder"]}, every, every["input_ids"], False, method="mlm_and_nsp_logits")
    return loss(params), logits

  (loss, gradients), (mlm, nsp) = start(params)
  mask = batch["attention_mask"]
  np.testing.assert_allclose(mlm[mask][:, :591], arrays["logits"][mask], atol=1e-4, rtol=1e-4)
  np.testing.assert_allclose(nsp, arrays["nsp_logits"], atol=1e-4, rtol=1e-4)
  assert float(loss) == pytest.approx(facts["masked_loss"], abs=1e-4)
  flat = {sharding.path_name(path).removeprefix("encoder/"): np.asarray(leaf)
          for path, leaf in jax.tree_util.tree_leaves_with_path(gradients)}
  norms = {name: float(np.linalg.norm(value)) for name, value in mapping.to_hf(flat, "bert").items()}
  wanted = facts["grad_l2_of_masked_loss"]
  compared = norms.keys() & wanted.keys()
  assert len(compared) >= 200, norms.keys() ^ wanted.keys()
  for name in compared:
    assert norms[name] == pytest.approx(wanted[name], rel=1e-3, abs=1e-6), name


def renamed(folder, out, family):
  """The folder as that of an ELECTRA generator or a RoBERTa, as the golden files describe it."""
  new = {"electra": {"cls.predictions.transform": "generator_predictions", "cls.predictions.bias":
                     "generator_lm_head.bias"},
         "roberta": {"cls.predictions.transform.dense": "lm_head.dense", "cls.predictions.transform.LayerNorm":
                     "lm_head.layer_norm", "cls.predictions.bias": "lm_head.bias"}}[family]
  tensors = {}
  for name, value in safetensors.numpy.load_file(folder / "model.safetensors").items():
    if ".pooler." in name or "seq_relationship" in name:
      continue
    for old, theirs in new.items():
      name = name.replace(old, theirs)
    if family == "roberta" and name.endswith("position_embeddings.weight"):
      value = np.concatenate([np.zeros_like(value[:1]), value])
    tensors[name.replace("bert.", f"{family}.", 1)] = value
  config = json.loads((folder / "config.json").read_text()) | {
    "electra": {"model_type": "electra", "embedding_size": 256},
    "roberta": {"model_type": "roberta", "pad_token_id": 0, "max_position_embeddings": 513}}[family]
  out.mkdir()
  (out / "config.json").write_text(json.dumps(config))
  safetensors.numpy.save_file(tensors, out / "model.safetensors")
  shutil.copy(folder / "vocab.txt", out)
  (out / "tokenizer_config.json").write_text('{"do_lower_case": false}')  # of reactions: its letters have two cases
  return str(out)


def test_the_same_weights_as_an_electra_generator(folder, tmp_path):
  """The same network with the same parameters as the BERT, whose outputs are compared above: nothing to compile."""
  networks = []
  for path in (str(folder), renamed(folder, tmp_path / "m", "electra")):
    ((name, weights),) = formats.read(path).items()
    encoder = published.make_encoder(name, weights, 591, path)
    assert encoder.head_names == ("mlm_head",)
    networks.append((name, encoder.transformer, published.make_params(encoder, weights)))
  (_, config, params), (name, other_config, other_params) = networks
  assert name == "generator" and config == other_config
  jax.tree.map(np.testing.assert_array_equal, params, other_params)


def test_the_same_weights_as_a_roberta(folder, golden, tmp_path):
  arrays, _, _, every = golden
  run = pretraining_heads.load(renamed(folder, tmp_path / "m", "roberta"))
  logits = np.asarray(jax.jit(run.network.mlm_logits)(run.params, every))
  mask = every["attention_mask"]
  np.testing.assert_allclose(logits[mask], arrays["logits"][mask], atol=1e-4, rtol=1e-4)


def test_mini_lm(shared, tmp_path):
  """Every layer and the pooler of a published sentence encoder."""
  source = shared / "reference/weights/minilm_l6_fp16"
  tensors = safetensors.numpy.load_file(source / "model_fp16.safetensors")
  table = np.zeros((30522, 384), np.float16)
  table[tensors.pop("embeddings.word_embeddings.kept_ids")] = tensors.pop("embeddings.word_embeddings.kept_rows")
  safetensors.numpy.save_file(tensors | {"embeddings.word_embeddings.weight": table}, tmp_path / "model.safetensors")
  shutil.copy(source / "config.json", tmp_path)
  vocabulary = (shared / "reference/vocab/bert-base-uncased-vocab.txt.gz").read_bytes()
  (tmp_path / "vocab.txt").write_bytes(gzip.decompress(vocabulary))
  weights = formats.read(str(tmp_path))["encoder"]
  model = initial.model_keys({"encoder": weights})["model"]
  assert (model["num_hidden_layers"], model["num_attention_heads"], model["vocab_size"]) == (6, 12, 30522)
  tokenizer = tokenizers.load_tokenizer(str(tmp_path / "vocab.txt"))
  encoder = published.make_encoder("encoder", weights, tokenizer.vocab_size, str(tmp_path))
  params = published.make_params(encoder, weights)
  golden = np.load(source / "golden.npz")
  ids, mask = golden["input_ids"].astype(np.int32), golden["attention_mask"].astype(bool)
  batch = {"token_type_ids": jnp.zeros_like(ids), "attention_mask": jnp.asarray(mask)}
  hidden = np.asarray(jax.jit(lambda p: Bert(encoder.transformer).apply(
    {"params": p}, batch, jnp.asarray(ids), False, method="encode"))(params))
  np.testing.assert_allclose(hidden[mask], golden["last_hidden"][mask], atol=1e-4, rtol=1e-4)
  pooler = (weights.tensors[f"bert.pooler.dense.{kind}"] for kind in ("weight", "bias"))
  pooled = np.tanh(hidden[:, 0] @ next(pooler).T + next(pooler))
  np.testing.assert_allclose(pooled, golden["pooler_output"], atol=1e-4, rtol=1e-4)
