"""Are Hugging Face folders read whatever wrote them, and refused with a reason where something is wrong?"""

import argparse
import json
import pickle

import numpy as np
import pytest
import safetensors.numpy
import torch

from electra_jax.errors import UserError
from electra_jax.exchange import formats, hf, hf_config, initial, mapping
from tests.exchange.random_networks import BERT, ELECTRA, GENERATOR, ROBERTA, check_start, random_params, shapes_of
from tests.exchange.test_published import config_of

MLM, RTD, MLM_NSP = ("mlm_head",), ("rtd_head",), ("mlm_head", "nsp_head")
NETWORKS = {"bert": (BERT, MLM_NSP), "roberta": (ROBERTA, MLM), "electra": (ELECTRA, RTD)}


def write(folder, family="bert", tensors=None, name="model.safetensors", **changes):
  """The folder of a random network; `tensors` in place of its own."""
  config, heads = NETWORKS[family]
  own = mapping.to_hf(random_params(config, heads), family)
  folder.mkdir(exist_ok=True)
  (folder / "config.json").write_text(json.dumps(config_of(config, family, pad_token_id=int(family == "roberta"),
                                                           **changes)))
  given = own if tensors is None else tensors(own)
  if name.endswith("safetensors"):
    safetensors.numpy.save_file({k: np.ascontiguousarray(v) for k, v in given.items()}, folder / name)
  else:
    torch.save({k: torch.tensor(v) for k, v in given.items()}, folder / name)
  return own


def read_one(folder):
  (weights,) = formats.read(str(folder)).values()
  return weights


def with_buffers_and_copies(own):
  """As versions 1 to 4 of transformers stored it."""
  table = own["bert.embeddings.word_embeddings.weight"]
  return {key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
          for key, value in own.items()} | {
    "bert.embeddings.position_ids": np.arange(20)[None], "cls.predictions.decoder.weight": table.copy(),
    "cls.predictions.decoder.bias": own["cls.predictions.bias"].copy()}


def bare_half(own):
  return {key.removeprefix("bert."): value.astype(np.float16) for key, value in own.items() if key.startswith("bert.")}


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_old_names_buffers_and_tied_copies(tmp_path, name):
  own = write(tmp_path / "m", tensors=with_buffers_and_copies, name=name)
  found = read_one(tmp_path / "m").tensors
  assert found.keys() == own.keys()
  assert all(np.array_equal(found[key], value) for key, value in own.items())


@pytest.mark.parametrize("name, family", [("model.safetensors", "bert"), ("pytorch_model.bin", "electra")])
def test_runs_start_from_it(tmp_path, name, family):
  write(tmp_path / "m", family, name=name)
  (tmp_path / "m/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
  check_start(tmp_path / "m", {{"electra": "discriminator"}.get(family, "encoder"): random_params(*NETWORKS[family])})


def test_bare_encoder_in_half_precision(tmp_path):
  own = write(tmp_path / "m", tensors=bare_half)
  found = read_one(tmp_path / "m").tensors
  assert found.keys() == {key for key in own if key.startswith("bert.")}
  assert {value.dtype for value in found.values()} == {np.dtype("float32")}


@pytest.mark.parametrize("family", NETWORKS)
def test_names_are_a_bijection(family):
  """Every parameter has a name of its own, and comes back by it; what is missing or misshaped is named."""
  config, heads = NETWORKS[family]
  params, shapes = random_params(config, heads), shapes_of(config, heads)
  tensors = mapping.to_hf(params, family)
  assert len(tensors) == len(params) and all(mapping.is_known(name, family) for name in tensors)
  back = mapping.from_hf(tensors, shapes, family)
  assert back.keys() == params.keys() and all(np.array_equal(back[path], params[path]) for path in params)
  for path in params:
    name = mapping.their_name(path, family)
    with pytest.raises(UserError) as error:
      mapping.from_hf({key: value for key, value in tensors.items() if key != name}, shapes, family)
    assert f"{name} is missing" in error.value.got
    with pytest.raises(UserError) as error:
      mapping.from_hf(tensors | {name: np.zeros((3, 5, 7))}, shapes, family)
    assert f"{name} has shape (3, 5, 7)" in error.value.got


@pytest.mark.parametrize("family", NETWORKS)
@pytest.mark.parametrize("head", hf_config.FINE_TUNING)
def test_names_of_fine_tuned_heads_are_a_bijection(family, head):
  rows = {ours: theirs for ours, theirs in mapping.FAMILIES[family][1].items() if ours.startswith(f"{head}/")}
  assert len(set(rows.values())) == len(rows) >= 2
  config = {"model_type": family, "architectures": [hf_config.ARCHITECTURES[family][head]]}
  assert hf_config.heads_of(config, rows.values()) == (head,)


@pytest.mark.parametrize("family", NETWORKS)
def test_every_tensor_that_is_missing_or_too_many_is_named(tmp_path, family):
  """Of encoders and heads, also of fine-tuned ones, when the folder becomes a model."""
  heads, rows = NETWORKS[family][1], mapping.FAMILIES[family][1]
  for head in (heads[-1], "classification_head", "span_head"):
    names = [theirs for ours, theirs in rows.items() if ours.startswith(f"{head}/") and ".pooler." not in theirs]
    own = {name: np.zeros(2, np.float32) for ours, name in rows.items() if ours.startswith(f"{head}/")}
    for name in names:
      given = [one for one in own if one != name]
      described = {"model_type": family, "architectures": [hf_config.ARCHITECTURES[family][head]]}
      assert hf_config.missing_of_heads(described, given) == [name]
    assert hf_config.missing_of_heads({"model_type": family}, own) == []
  name = f"{family}.encoder.layer.0.extra.weight"
  write(tmp_path / "m", family, tensors=lambda own: own | {name: np.zeros(3, np.float32)})
  with pytest.raises(UserError) as error:
    read_one(tmp_path / "m")
  assert f"{name} (3,) is unknown" in error.value.got


def test_a_bias_under_its_second_name(tmp_path):
  """Some versions of transformers store lm_head.decoder.bias alone."""
  own = write(tmp_path / "m", "roberta", tensors=lambda own: {
    name.replace("lm_head.bias", "lm_head.decoder.bias"): value for name, value in own.items()})
  np.testing.assert_array_equal(read_one(tmp_path / "m").tensors["lm_head.bias"], own["lm_head.bias"])


class Code:
  """What a pickle can do."""

  def __reduce__(self):
    return print, ("this must not run",)


def cut(path):
  def change(folder):
    content = (folder / path).read_bytes()
    (folder / path).write_bytes(content[: len(content) // 2])
  return change


def config(**changes):
  def change(folder):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
  return change


def code_in_bin(folder):
  (folder / "model.safetensors").unlink()
  torch.save({"weight": torch.zeros(2), "extra": Code()}, folder / "pytorch_model.bin")


def in_bin(content):
  """Writes pytorch_model.bin in place of the weights: bytes, or what torch.save makes of a function of the tensors."""
  def change(folder):
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    own = {name: torch.tensor(value) for name, value in arrays.items()}
    (folder / "model.safetensors").unlink()
    if isinstance(content, bytes):
      (folder / "pytorch_model.bin").write_bytes(content)
    else:
      torch.save(content(own), folder / "pytorch_model.bin")
  return change


def tensors(**changes):
  def change(folder):
    write(folder, tensors=lambda own: own | {name.replace("__", "."): value for name, value in changes.items()})
  return change


FAULTS = {
  "truncated safetensors": (cut("model.safetensors"), "The weights cannot be read", "model.safetensors"),
  "truncated config": (cut("config.json"), "no config.json that can be read", "config.json"),
  "no config": (lambda folder: (folder / "config.json").unlink(), "no config.json that can be read", "config.json"),
  "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "The folder has no weights", "config.json"),
  "code in .bin": (code_in_bin, "objects that would run code", "print"),
  **{f"a raw pickle of protocol {p}": (in_bin(pickle.dumps({"w": Code()}, p)), "would run code", name)
     for p, name in ((0, "a pickle"), (2, "print"), (4, "a pickle that torch.save has not written"), (5, "a pickle"))},
  "a raw pickle of numbers": (in_bin(pickle.dumps({"w": [1.0]}, 2)), "would run code", "a pickle"),
  "a raw pickle of an array": (in_bin(pickle.dumps({"w": np.zeros(2)})), "would run code", "a pickle"),
  "a whole module": (in_bin(lambda own: torch.nn.Linear(2, 2)), "would run code", "torch.nn.modules"),
  "options next to tensors": (in_bin(lambda own: {"model": own, "args": argparse.Namespace(x=1)}), "would run code",
                             "argparse.Namespace"),
  "a web page": (in_bin(b"<html>404</html>"), "cannot be read", "b'<html>404</html>'"),
  "a pointer of LFS": (in_bin(b"version https://git-lfs.github.com/spec/v1\n"), "cannot be read", "git-lfs"),
  "an empty file": (in_bin(b""), "cannot be read", "it is empty"),
  "a list": (in_bin(lambda own: [own]), "not a table of tensors", "a list"),
  "numbers next to tensors": (in_bin(lambda own: own | {"epoch": 3}), "not a table of tensors", "'epoch', a int"),
  "another table": (in_bin(lambda own: {"net": own}), "not a table of tensors", "'net', a dict"),
  "text for a size": (config(hidden_size="big"), "no model can have", "hidden_size='big'"),
  "a list for a size": (config(num_attention_heads=[2]), "no model can have", "num_attention_heads=[2]"),
  "a negative size": (config(intermediate_size=-4), "no model can have", "intermediate_size=-4"),
  "no layers": (config(num_hidden_layers=0), "no model can have", "num_hidden_layers=0"),
  "a fraction": (config(vocab_size=50.5), "no model can have", "vocab_size=50.5"),
  "true for a size": (config(type_vocab_size=True), "no model can have", "type_vocab_size=True"),
  "a rate above 1": (config(hidden_dropout_prob=7), "no model can have", "hidden_dropout_prob=7"),
  "text for a rate": (config(layer_norm_eps="1e-12"), "no model can have", "layer_norm_eps='1e-12'"),
  "labels as a list": (config(id2label=["a", "b"]), "no model can have", "id2label=['a', 'b']"),
  "labels by name": (config(id2label={"a": 0}), "no model can have", "id2label={'a': 0}"),
  "one architecture": (config(architectures="BertModel"), "no model can have", "architectures='BertModel'"),
  "a family as a list": (config(model_type=["bert"]), "family that is not supported", "['bert']"),
  "an activation as a list": (config(hidden_act=["gelu"]), "does not describe an encoder", "hidden_act=['gelu']"),
  "heads that do not divide": (config(num_attention_heads=3), "do not fit each other", "num_attention_heads=3"),
  "more layers": (config(num_hidden_layers=10**9), "disagree about the number of layers", "1000000000"),
  "a config that is a list": (lambda folder: (folder / "config.json").write_text("[1]"), "no config.json",
                              "config.json"),
  "a config that is null": (lambda folder: (folder / "config.json").write_text("null"), "no config.json",
                            "config.json"),
  "another family": (config(model_type="gpt2"), "family that is not supported", "gpt2"),
  "the wrong family": (config(model_type="roberta"), "not those of the roberta", "bert.embeddings"),
  "another activation": (config(hidden_act="relu"), "does not describe an encoder", "hidden_act='relu'"),
  "relative positions": (config(position_embedding_type="relative_key"), "does not describe an encoder", "relative"),
  "no size": (config(hidden_size=None), "does not describe an encoder", "no hidden_size"),
  "an extra tensor": (tensors(bert__encoder__layer__0__adapter__weight=np.zeros(3, np.float32)), "plain bert",
                      "bert.encoder.layer.0.adapter.weight (3,) is unknown"),
  "half a head": (lambda folder: write(folder, architectures=["BertForPreTraining"], tensors=lambda own: {
    name: value for name, value in own.items() if name != "cls.predictions.transform.dense.bias"}), "plain bert",
                  "cls.predictions.transform.dense.bias is missing"),
  "an untied table": (tensors(cls__predictions__decoder__weight=np.zeros((50, 128), np.float32)), "plain bert",
                      "cls.predictions.decoder.weight differs from bert.embeddings.word_embeddings.weight"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_told_in_four_parts(tmp_path, fault, capsys):
  change, what, got = FAULTS[fault]
  write(tmp_path / "m")
  change(tmp_path / "m")
  with pytest.raises(UserError, match=what) as error:
    read_one(tmp_path / "m")
  assert got in error.value.got and error.value.allowed and error.value.fix
  assert "weights_only" not in str(error.value) and len(str(error.value)) < 2000
  assert "must not run" not in capsys.readouterr().out


@pytest.mark.parametrize("key", hf.STATE_DICTS)
def test_the_state_dict_of_a_training_checkpoint(tmp_path, key):
  own = write(tmp_path / "m")
  in_bin(lambda tensors: {key: tensors, "epoch": 3, "lr": 0.1, "note": "x"})(tmp_path / "m")
  found = read_one(tmp_path / "m").tensors
  assert found.keys() == own.keys() and all(np.array_equal(found[name], own[name]) for name in own)


def test_unknown_head_is_named_and_left_out(tmp_path, caplog):
  write(tmp_path / "m", tensors=lambda own: own | {"crf.transitions": np.zeros((3, 3), np.float32)})
  assert "crf.transitions" not in read_one(tmp_path / "m").tensors and "crf.transitions" in caplog.text


# ---- putting networks into a run's parameters ----


def tree(**networks):
  """{network: nested parameters} of zeros."""
  from flax import traverse_util

  flat = {f"{name}/{path}": np.zeros(shape, np.float32) for name, shapes in networks.items()
          for path, shape in shapes.items()}
  return traverse_util.unflatten_dict(flat, sep="/")


def pair_of_weights():
  discriminator, generator = random_params(ELECTRA, RTD, 1), random_params(GENERATOR, MLM, 2)
  generator[initial.TABLE] = discriminator[initial.TABLE]
  return {"discriminator": hf.Weights(config_of(ELECTRA, "electra"), mapping.to_hf(discriminator, "electra")),
          "generator": hf.Weights(config_of(GENERATOR, "electra"), mapping.to_hf(generator, "electra"))}


def padded(shapes):
  return {path: (64, *shape[1:]) if path in initial.VOCABULARY else shape for path, shape in shapes.items()}


def test_pair_with_a_shared_table_and_padding():
  generator = {path: shape for path, shape in shapes_of(GENERATOR, MLM).items() if path != initial.TABLE}
  params = tree(discriminator=padded(shapes_of(ELECTRA, RTD)), generator=padded(generator))
  weights = pair_of_weights()
  start = initial.merge(weights, params, num_tokens=50)
  assert not start.fresh and not start.unused
  table = start.params["discriminator"]["embeddings"]["token"]["embedding"]
  np.testing.assert_array_equal(table[:50], weights["generator"].tensors["electra.embeddings.word_embeddings.weight"])
  assert table.shape == (64, 24) and not table[50:].any()


def test_what_the_weights_lack_starts_fresh_and_the_rest_is_named():
  params = tree(encoder=shapes_of(BERT, MLM_NSP))
  encoder = {p: v for p, v in random_params(BERT, MLM_NSP).items() if not p.startswith("nsp_head")}
  weights = {"encoder": hf.Weights(config_of(BERT, "bert"), mapping.to_hf(encoder, "bert"))}
  start = initial.merge(weights, params, num_tokens=50)
  assert start.fresh == ["encoder/nsp_head"] and not start.params["encoder"]["nsp_head"]["output"]["bias"].any()
  assert start.params["encoder"]["mlm_head"]["output_bias"].all()
  start = initial.merge(weights, tree(discriminator=shapes_of(BERT, RTD), generator=shapes_of(GENERATOR, MLM)), 50)
  assert start.fresh == ["discriminator/rtd_head", "generator"] and start.unused == ["encoder/mlm_head"]


def test_weights_of_other_sizes_and_vocabularies():
  params = tree(encoder=shapes_of(BERT, MLM))
  weights = {"encoder": hf.Weights(config_of(BERT, "bert"), mapping.to_hf(random_params(BERT, MLM), "bert"))}
  with pytest.raises(UserError, match="smaller vocabulary than the run") as error:
    initial.merge(weights, params, num_tokens=60)
  assert error.value.got == "50 rows for 60 tokens"
  params["encoder"]["layer_00"]["feed_forward"]["intermediate"]["bias"] = np.zeros(48, np.float32)
  with pytest.raises(UserError, match="The weights are not those") as error:
    initial.merge(weights, params, num_tokens=50)
  assert "bert.encoder.layer.0.intermediate.dense.bias has shape (32,)" in error.value.got
