"""Does a published model answer as its own network does? Weights and a vocabulary in place of a run."""

import json
import types

import jax
import numpy as np
import pytest
import torch

from electra_jax.errors import UserError
from electra_jax.exchange import formats, mapping, published
from electra_jax.exchange.mapping import Weights
from electra_jax.inference import pretraining_heads
from electra_jax.tools import appendix_e
from tests.exchange.random_networks import ELECTRA, GENERATOR, ROBERTA, random_params
from tests.exchange.test_fairseq import oldest_names

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "mat", "on", "dog", "."]


def config_of(config, family, **changes):
  keys = ("vocab_size", "embedding_size", "hidden_size", "intermediate_size", "num_hidden_layers",
          "num_attention_heads", "max_position_embeddings", "type_vocab_size", "hidden_act", "layer_norm_eps",
          "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
  return {"model_type": family, **{key: getattr(config, key) for key in keys}, **changes}


@pytest.fixture
def pair(monkeypatch, tmp_path):
  """A folder that some format reads as an ELECTRA pair with a WordPiece vocabulary."""
  weights = {name: Weights(config_of(config, "electra"), mapping.to_hf(random_params(config, (head,), seed), "electra"))
             for seed, (name, config, head) in enumerate((("discriminator", ELECTRA, "rtd_head"),
                                                          ("generator", GENERATOR, "mlm_head")))}
  (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
  row = types.SimpleNamespace(find=lambda path: path if path == str(tmp_path) else None, read=lambda path: weights)
  monkeypatch.setitem(formats.FORMATS, "a test", row)
  return str(tmp_path), weights


def test_appendix_e_asks_for_a_run(pair):
  with pytest.raises(UserError, match="have no held-out text"):
    appendix_e.evaluate(pair[0], 8)


def test_electra_pair_fills_judges_and_embeds(pair):
  path, _ = pair
  run = pretraining_heads.load(path)
  assert run.step is None and run.config.objective.name == "rtd" and run.config.data.sequence_length == 20
  (one,) = pretraining_heads.answer(run, ["the cat sat on the [MASK] ."], top_k=5)
  assert sum(c.probability for c in one.candidates[0]) <= 1 and len(one.words) == 7
  assert {c.token_id for c in one.candidates[0]} <= set(range(5, len(WORDS)))  # rows beyond the vocabulary are none
  (vector,) = pretraining_heads.embed(run, ["the cat"])
  assert vector.shape == (128,)
  batch = pretraining_heads.make_batch(run, [pretraining_heads.encode(run, "the cat")])
  logits = jax.jit(run.network.rtd_logits)(run.params, batch, batch["input_ids"])
  found = [word.probability for word in pretraining_heads.detect_replaced(run, ["the cat"])[0]]
  np.testing.assert_allclose(found, jax.nn.sigmoid(logits)[0, 1:3], rtol=1e-5)


def test_a_vocabulary_next_to_weights_in_the_current_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
  assert published.load_tokenizer("bert_model.ckpt").vocab_size == len(WORDS)


def test_fairseq_folder_answers_with_the_ids_of_dict_txt(tmp_path):
  params = random_params(ROBERTA, ("mlm_head",)) | {"embeddings/token_type/embedding": np.zeros((1, 128), np.float32)}
  torch.save({"model": oldest_names(params)}, tmp_path / "model.pt")
  (tmp_path / "dict.txt").write_text("2 90\n0 40\n1 7\n")
  (tmp_path / "encoder.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2}))
  (tmp_path / "vocab.bpe").write_text("#version: 0.2\na b\n")
  run = pretraining_heads.load(str(tmp_path))
  assert pretraining_heads.encode(run, "ab<mask>").ids == [0, 4, 7, 2]
  ((candidates,),) = pretraining_heads.fill_mask(run, ["ab<mask>"], top_k=3)
  assert sorted(c.token_id for c in candidates) == [4, 5, 6]
  with pytest.raises(UserError, match="Published weights have no steps"):
    pretraining_heads.load(str(tmp_path), step=3)


@pytest.mark.parametrize("change, said, got", [
  (dict(hidden_act="relu"), "not describe an encoder", "relu"),
  (dict(position_embedding_type="relative_key"), "not describe an encoder", "relative_key"),
  (dict(num_attention_heads=None), "not describe an encoder", "no num_attention_heads"),
  (dict(vocab_size=7), "more entries than", "12 entries for 7 rows"),
  (dict(vocab_size=77), "not those of this electra", "word_embeddings.weight has shape"),
  (dict(intermediate_size=33), "not those of this electra", "intermediate.dense.weight has shape"),
])
def test_models_that_do_not_fit(pair, change, said, got):
  path, weights = pair
  config = {key: value for key, value in (weights["discriminator"].config | change).items() if value is not None}
  weights["discriminator"] = Weights(config, weights["discriminator"].tensors)
  with pytest.raises(UserError, match=said) as error:
    pretraining_heads.load(path)
  assert got in error.value.got


def test_missing_vocabulary_and_missing_heads(pair, tmp_path):
  path, weights = pair
  del weights["generator"]
  run = pretraining_heads.load(path)
  with pytest.raises(UserError, match="no masked LM"):
    pretraining_heads.fill_mask(run, ["the [MASK]"])
  (tmp_path / "vocab.txt").unlink()
  with pytest.raises(UserError, match="no vocabulary next to it"):
    pretraining_heads.load(path)
  with pytest.raises(UserError, match="No published weights"):
    formats.read(str(tmp_path / "nowhere"))
