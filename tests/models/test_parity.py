"""Are logits those of Hugging Face transformers? Random weights, float32, every family (tolerance 1e-4)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from electra_jax import sharding
from electra_jax.exchange import mapping
from electra_jax.models.bert import Bert
from electra_jax.models.transformer import TransformerConfig

BERT = TransformerConfig(
  vocab_size=128, num_tokens=128, embedding_size=48, hidden_size=48, intermediate_size=96, num_hidden_layers=3,
  num_attention_heads=4, max_position_embeddings=40, position_offset=0, type_vocab_size=2, hidden_act="gelu",
  hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, layer_norm_eps=1e-12, initializer_range=0.2,
  dtype=jnp.dtype("float32"))
# ELECTRA-Small's shape in small: embeddings narrower than the layers; its generator has them wider.
ELECTRA = dataclasses.replace(BERT, embedding_size=24)
GENERATOR = dataclasses.replace(BERT, hidden_size=16, intermediate_size=32, num_attention_heads=2)
ROBERTA = dataclasses.replace(BERT, position_offset=2, max_position_embeddings=42, type_vocab_size=1,
                              layer_norm_eps=1e-5)
ROWS = {
  "bert": (BERT, "bert", "mlm_head", transformers.BertConfig, transformers.BertForMaskedLM),
  "bert gelu_new": (dataclasses.replace(BERT, hidden_act="gelu_new"), "bert", "mlm_head", transformers.BertConfig,
                    transformers.BertForMaskedLM),
  "roberta": (ROBERTA, "roberta", "mlm_head", transformers.RobertaConfig, transformers.RobertaForMaskedLM),
  "electra generator": (GENERATOR, "electra", "mlm_head", transformers.ElectraConfig, transformers.ElectraForMaskedLM),
  "electra discriminator": (ELECTRA, "electra", "rtd_head", transformers.ElectraConfig,
                            transformers.ElectraForPreTraining),
}


def make_batch(config, seed=0):
  """Four rows of 7, 12, 20 and 32 real tokens; every position is a masked one, so that all logits are compared."""
  rng = np.random.default_rng(seed)
  length, pad = 32, max(config.position_offset - 1, 0)
  num_tokens = np.array([7, 12, 20, 32])
  mask = np.arange(length) < num_tokens[:, None]
  ids = np.where(mask, rng.integers(5, 128, (4, length)), pad)
  types = (np.arange(length) >= num_tokens[:, None] // 2) & mask & (config.type_vocab_size > 1)
  return batch_of(ids, mask, types)


def batch_of(ids, mask, types):
  ids = jnp.asarray(ids, jnp.int32)
  return {"masked_input_ids": ids, "input_ids": ids, "token_type_ids": jnp.asarray(types, jnp.int32),
          "attention_mask": jnp.asarray(mask),
          "masked_positions": jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)}


def init(config, head, batch):
  """(apply, params) with every parameter random, biases and scales too."""
  model = Bert(config, (head,))
  method = "mlm_logits" if head == "mlm_head" else "rtd_logits"

  def apply(params, batch, method=method):
    return model.apply({"params": params}, batch, batch["input_ids"], False, method=method)

  shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), batch, batch["input_ids"], False, method=method))
  rng = np.random.default_rng(7)
  params = jax.tree.map(lambda leaf: jnp.asarray(0.2 * rng.standard_normal(leaf.shape), leaf.dtype), shapes["params"])
  return jax.jit(apply, static_argnames="method"), params


def flat(params):
  return {sharding.path_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def make_theirs(config, config_class, model_class, tensors):
  keys = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "max_position_embeddings", "type_vocab_size", "hidden_act", "layer_norm_eps")
  theirs = config_class(**{key: getattr(config, key) for key in keys}, embedding_size=config.embedding_size,
                        pad_token_id=max(config.position_offset - 1, 0), attn_implementation="eager")
  model = model_class(theirs).eval()
  missing, unexpected = model.load_state_dict({k: torch.tensor(v) for k, v in tensors.items()}, strict=False)
  assert not unexpected
  model.tie_weights()
  assert all("decoder" in name or "lm_head.weight" in name or "position_ids" in name for name in missing), missing
  return model


@pytest.mark.parametrize("row", ROWS)
def test_logits_equal_transformers(row):
  config, family, head, config_class, model_class = ROWS[row]
  batch = make_batch(config)
  apply, params = init(config, head, batch)
  ours = apply(params, batch)
  theirs_model = make_theirs(config, config_class, model_class, mapping.to_hf(flat(params), family))
  with torch.no_grad():
    inputs = {name: torch.tensor(np.asarray(batch[name])).long() for name in ("input_ids", "token_type_ids",
                                                                              "attention_mask")}
    theirs = theirs_model(**inputs).logits.numpy()
  np.testing.assert_allclose(ours[batch["attention_mask"]], theirs[batch["attention_mask"]], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("row", ROWS)
def test_names_map_back(row):
  config, family, head, *_ = ROWS[row]
  params = flat(init(config, head, make_batch(config))[1])
  back = mapping.from_hf(mapping.to_hf(params, family), {path: value.shape for path, value in params.items()}, family)
  assert back.keys() == params.keys()
  assert all((back[path] == params[path]).all() for path in params)


def test_bert_for_pre_training():
  """The original BERT: both heads, names there and back, and the pooler under the encoder's prefix."""
  batch = make_batch(BERT)
  model = Bert(BERT, ("mlm_head", "nsp_head"))
  arguments = batch, batch["input_ids"], False
  shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), *arguments, method="mlm_and_nsp_logits"))
  rng = np.random.default_rng(7)
  params = jax.tree.map(lambda leaf: jnp.asarray(0.2 * rng.standard_normal(leaf.shape), leaf.dtype), shapes["params"])
  mlm, nsp = model.apply({"params": params}, *arguments, method="mlm_and_nsp_logits")
  tensors = mapping.to_hf(flat(params), "bert")
  theirs_model = make_theirs(BERT, transformers.BertConfig, transformers.BertForPreTraining, tensors)
  with torch.no_grad():
    theirs = theirs_model(**{name: torch.tensor(np.asarray(batch[name])).long()
                             for name in ("input_ids", "token_type_ids", "attention_mask")})
  mask = batch["attention_mask"]
  np.testing.assert_allclose(mlm[mask], theirs.prediction_logits.numpy()[mask], atol=1e-4, rtol=1e-4)
  np.testing.assert_allclose(nsp, theirs.seq_relationship_logits.numpy(), atol=1e-4, rtol=1e-4)
  assert {"bert.pooler.dense.weight", "cls.seq_relationship.bias"} <= tensors.keys()
  back = mapping.from_hf(tensors, {path: value.shape for path, value in flat(params).items()}, "bert")
  assert all((back[path] == value).all() for path, value in flat(params).items())


def test_missing_and_misshaped_tensors_are_named():
  params = flat(init(BERT, "mlm_head", make_batch(BERT))[1])
  tensors = mapping.to_hf(params, "bert")
  del tensors["cls.predictions.bias"]
  tensors["bert.embeddings.LayerNorm.bias"] = np.zeros(3)
  with pytest.raises(ValueError, match=r"cls\.predictions\.bias is missing") as error:
    mapping.from_hf(tensors, {path: value.shape for path, value in params.items()}, "bert")
  assert "bert.embeddings.LayerNorm.bias has shape (3,)" in str(error.value)


def test_padding_does_not_change_real_tokens():
  """bug-reports 2: ten real tokens give the same logits with and without 22 padding tokens behind them."""
  batch = make_batch(ELECTRA)
  apply, params = init(ELECTRA, "rtd_head", batch)
  short = {name: rows[:1, :7] for name, rows in batch.items()}
  padded = apply(params, batch)[:1, :7]
  unpadded = apply(params, short)
  np.testing.assert_allclose(padded, unpadded, atol=1e-5)


def test_row_without_real_tokens_is_finite():
  batch = make_batch(BERT)
  batch["attention_mask"] = jnp.zeros_like(batch["attention_mask"])
  apply, params = init(BERT, "mlm_head", batch)
  assert jnp.isfinite(apply(params, batch)).all()


def test_real_bert_weights_reproduce_their_golden_outputs(shared):
  """A BERT pre-trained elsewhere (reaction SMILES): embeddings, a middle layer, logits and the loss, to 1e-4."""
  import json

  from safetensors.numpy import load_file

  folder = shared / "reference" / "weights" / "rxnfp_bert_pretrained"
  theirs = json.loads((folder / "config.json").read_text())
  golden = np.load(folder / "golden.npz")
  config = dataclasses.replace(
    BERT, vocab_size=theirs["vocab_size"], num_tokens=theirs["vocab_size"], embedding_size=theirs["hidden_size"],
    hidden_size=theirs["hidden_size"], intermediate_size=theirs["intermediate_size"],
    num_hidden_layers=theirs["num_hidden_layers"], num_attention_heads=theirs["num_attention_heads"],
    max_position_embeddings=theirs["max_position_embeddings"])
  ids, mask = golden["input_ids"].astype(np.int32), golden["attention_mask"].astype(bool)
  batch = batch_of(ids, mask, np.zeros_like(ids))
  apply, params = init(config, "mlm_head", batch)
  paths = {path: value.shape for path, value in flat(params).items()}
  found = mapping.from_hf(load_file(folder / "model.safetensors"), paths, "bert")
  params = jax.tree_util.tree_map_with_path(lambda path, _: jnp.asarray(found[sharding.path_name(path)]), params)
  logits = apply(params, batch)
  np.testing.assert_allclose(logits[mask], golden["logits"][mask], atol=1e-4, rtol=1e-4)
  hidden = apply(params, batch, method="encode")
  np.testing.assert_allclose(hidden[mask], golden["hidden_last"][mask], atol=1e-4, rtol=1e-4)
