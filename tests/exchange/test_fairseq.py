"""Do fairseq's RoBERTa files give back the model they were written from, and is nothing in them executed?"""

import argparse
import collections
import gzip
import json
import re

import numpy as np
import pytest
import torch

from electra_jax.data import tokenizers
from electra_jax.data.tokenizers import fairseq_vocabulary
from electra_jax.errors import UserError
from electra_jax.exchange import formats
from tests.exchange.random_networks import ROBERTA, check_start, imported_logits, logits, random_params

MLM = ("mlm_head",)
ARGS = dict(arch="roberta_base", activation_fn="gelu", encoder_attention_heads=2, dropout=0.1, attention_dropout=0.2,
            lr=[0.0005], fp16=True, data=None)

# Written out by hand, so that the importer's own table is not what it is tested with. %d: the layer.
FAIRSEQ = {
  "embeddings/token/": "sentence_encoder.embed_tokens.", "embeddings/position/": "sentence_encoder.embed_positions.",
  "embeddings/layer_norm/": "sentence_encoder.layernorm_embedding.",
  "attention/query/": "sentence_encoder.layers.%d.self_attn.q_proj.",
  "attention/key/": "sentence_encoder.layers.%d.self_attn.k_proj.",
  "attention/value/": "sentence_encoder.layers.%d.self_attn.v_proj.",
  "attention/output/": "sentence_encoder.layers.%d.self_attn.out_proj.",
  "attention/layer_norm/": "sentence_encoder.layers.%d.self_attn_layer_norm.",
  "feed_forward/intermediate/": "sentence_encoder.layers.%d.fc1.",
  "feed_forward/output/": "sentence_encoder.layers.%d.fc2.",
  "feed_forward/layer_norm/": "sentence_encoder.layers.%d.final_layer_norm.",
  "mlm_head/dense/": "lm_head.dense.", "mlm_head/layer_norm/": "lm_head.layer_norm.", "mlm_head/output_": "lm_head.",
}


def newest_names(params):
  """Our {path: array} as the parameters of a fairseq 0.12 checkpoint."""
  found = collections.OrderedDict()
  for path, value in params.items():
    if path.startswith("embeddings/token_type"):
      continue  # fairseq has none
    number = re.match(r"layer_(\d+)/", path)
    path = path.removeprefix(number[0] if number else "")
    ours = next(key for key in FAIRSEQ if path.startswith(key))
    name = FAIRSEQ[ours] % int(number[1]) if number else FAIRSEQ[ours]
    kind = "bias" if path.endswith("bias") else "weight"
    found[f"encoder.{name}{kind}"] = torch.tensor(value.T if path.endswith("/kernel") else value)
  found["encoder.lm_head.weight"] = found["encoder.sentence_encoder.embed_tokens.weight"]
  found["encoder.sentence_encoder.version"] = torch.tensor([3.0])
  return found


def oldest_names(params):
  """The same as the released roberta.base has them: decoder, emb_layer_norm, in_proj."""
  found = newest_names(params)
  for name in [name for name in found if ".q_proj." in name]:
    parts = [found.pop(name.replace(".q_proj.", f".{part}_proj.")) for part in "qkv"]
    found[name.replace(".q_proj.", ".in_proj_")] = torch.cat(parts)
  return {name.replace("encoder.", "decoder.", 1).replace("layernorm_embedding", "emb_layer_norm"): value
          for name, value in found.items()}


@pytest.fixture(scope="module")
def params():
  found = random_params(ROBERTA, MLM)
  return found | {"embeddings/token_type/embedding": np.zeros((1, 128), np.float32)}


@pytest.fixture(scope="module")
def expected(params):
  return logits(ROBERTA, MLM, params)


LAYOUTS = {
  "released, zip": (oldest_names, lambda model: {"args": argparse.Namespace(**ARGS), "model": model}, {}),
  "released, before zip": (oldest_names, lambda model: {"args": argparse.Namespace(**ARGS), "model": model},
                           dict(_use_new_zipfile_serialization=False)),
  "training run": (newest_names, lambda model: {
    "args": None, "cfg": {"model": ARGS}, "model": model, "optimizer_history": [{"num_updates": 7}],
    "extra_state": {"epoch": 2, "best": 3.5}, "last_optimizer_state": {"state": {0: {"exp_avg": torch.zeros(3)}}}}, {}),
  "parameters alone": (newest_names, lambda model: {"model": model}, {}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_come_back(params, expected, tmp_path, layout):
  name, wrap, options = LAYOUTS[layout]
  torch.save(wrap(name(params)), tmp_path / "model.pt", **options)
  (weights,) = formats.read(str(tmp_path)).values()
  (found,) = imported_logits(weights, MLM)
  np.testing.assert_array_equal(found, expected[0])
  assert weights.config["num_attention_heads"] == 2 and weights.config["max_position_embeddings"] == 22
  assert weights.config["attention_probs_dropout_prob"] == (0.1 if layout == "parameters alone" else 0.2)


def test_half_precision_becomes_float32(params, tmp_path):
  torch.save({"model": {k: v.half() for k, v in newest_names(params).items()}}, tmp_path / "model.pt")
  (weights,) = formats.read(str(tmp_path / "model.pt")).values()
  assert {value.dtype for value in weights.tensors.values()} == {np.dtype("float32")}


def test_runs_start_from_it(params, tmp_path):
  torch.save({"model": oldest_names(params)}, tmp_path / "model.pt")
  list(write_vocabulary(tmp_path, "2 90\n0 40\n1 7\n", {"a": 0, "b": 1, "ab": 2}))
  check_start(tmp_path, {"encoder": params})
  check_start(tmp_path / "model.pt", {"encoder": params})


class Meter:
  """Stands for the classes of fairseq that training runs pickle."""

  def __reduce__(self):
    return print, ("this must not run",)


def with_meter(checkpoint):
  return checkpoint | {"extra_state": {"train_meters": Meter()}}


def pre_layer_norm(checkpoint):
  return {"model": checkpoint["model"] | {"encoder.sentence_encoder.layer_norm.weight": torch.zeros(128)}}


def untied(checkpoint):
  return {"model": checkpoint["model"] | {"encoder.lm_head.weight": torch.zeros(50, 128)}}


def without_a_bias(checkpoint):
  return {"model": {k: v for k, v in checkpoint["model"].items() if "layers.1.fc1.bias" not in k}}


@pytest.mark.parametrize("change, what, got", [
  (with_meter, "would run code when loaded", "print"),
  (pre_layer_norm, "not those of a RoBERTa", "encoder.sentence_encoder.layer_norm.weight (128,) is unknown"),
  (untied, "not those of a RoBERTa", "encoder.lm_head.weight differs"),
  (without_a_bias, "not those of a RoBERTa", "encoder.sentence_encoder.layers.1.fc1.bias is missing"),
  (lambda c: {"model": {"encoder.embed_tokens.weight": torch.zeros(3)}}, "are not those", "encoder.embed_tokens"),
  (lambda c: c["model"], "no fairseq checkpoint", "OrderedDict"),
])
def test_files_that_are_refused(params, tmp_path, capsys, change, what, got):
  torch.save(change({"model": newest_names(params)}), tmp_path / "model.pt")
  with pytest.raises(UserError, match=what) as error:
    formats.read(str(tmp_path))
  assert got in error.value.got and "this must not run" not in capsys.readouterr().out


def test_damaged_and_missing_files(params, tmp_path):
  torch.save({"model": newest_names(params)}, tmp_path / "model.pt")
  content = (tmp_path / "model.pt").read_bytes()
  (tmp_path / "cut.pt").write_bytes(content[: len(content) // 2])
  (tmp_path / "page.pt").write_bytes(b"<html>404 Not Found</html>")
  for name in ("cut.pt", "page.pt"):
    with pytest.raises(UserError, match="cannot be read"):
      formats.read(str(tmp_path / name))
  with pytest.raises(UserError, match="No published weights"):
    formats.read(str(tmp_path / "other.pt"))


def test_classification_heads_are_named_and_left_out(params, tmp_path, caplog):
  model = newest_names(params) | {"classification_heads.mnli.dense.weight": torch.zeros(3, 3)}
  torch.save({"model": model}, tmp_path / "model.pt")
  (weights,) = formats.read(str(tmp_path)).values()
  assert "classification_heads.mnli.dense.weight" in caplog.text
  assert not any("classification" in name for name in weights.tensors)


# ---- dict.txt ----


def write_vocabulary(folder, dict_text, encoder, merges="#version: 0.2\na b\n"):
  paths = [folder / name for name in ("dict.txt", "encoder.json", "vocab.bpe")]
  for path, text in zip(paths, (dict_text, json.dumps(encoder), merges)):
    path.write_text(text)
  return map(str, paths)


def test_ids_are_in_the_order_of_dict_txt(tmp_path):
  files = fairseq_vocabulary.vocabulary(*write_vocabulary(tmp_path, "2 90\n0 40\n1 7\nmadeupword0000 0\n",
                                               {"a": 0, "b": 1, "ab": 2}))
  assert json.loads(files["vocab.json"]) == {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "ab": 4, "a": 5, "b": 6,
                                             "madeupword0000": 7, "<mask>": 8}
  tokenizer = tokenizers.TOKENIZERS["byte_bpe"].tokenizer(files, False)
  assert (tokenizer.pad_id, tokenizer.mask_id, tokenizer.encode("abba")) == (1, 8, [4, 6, 5])


@pytest.mark.parametrize("dict_text, encoder, got", [
  ("2 90\nx y\n", {"a": 0, "b": 1, "ab": 2}, "dict.txt:2"), ("9 90\n", {"a": 0}, "dict.txt:1"),
  ("0 1\n0 1\n", {"a": 0}, "twice"), ("0 1\n", [1], "encoder.json")])
def test_vocabularies_that_are_refused(tmp_path, dict_text, encoder, got):
  with pytest.raises(UserError, match="vocabulary cannot be read") as error:
    fairseq_vocabulary.vocabulary(*write_vocabulary(tmp_path, dict_text, encoder))
  assert got in error.value.got


def test_published_vocabulary(shared, tmp_path):
  for theirs, ours in (("fairseq-gpt2_bpe-dict.txt", "dict.txt"), ("gpt2-encoder.json", "encoder.json"),
                       ("gpt2-vocab.bpe", "vocab.bpe")):
    (tmp_path / ours).write_bytes(gzip.decompress((shared / "reference/vocab" / f"{theirs}.gz").read_bytes()))
  files = fairseq_vocabulary.vocabulary(*(str(tmp_path / name) for name in ("dict.txt", "encoder.json", "vocab.bpe")))
  published = gzip.decompress((shared / "reference/vocab/roberta-vocab.json.gz").read_bytes())
  assert json.loads(files["vocab.json"]) == json.loads(published)
