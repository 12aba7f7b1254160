"""Vectors of a sentence-transformers folder are those that its modules make, or the module is named."""

import json

import numpy as np
import pytest
import torch

from electra_jax.errors import UserError
from electra_jax.inference import pretraining_heads
from tests.exchange.test_fine_tuned import ids_of, saved

TEXTS = ["a b c", "q", "a a z y x w"]
MEAN, CLS = {"pooling_mode_mean_tokens": True}, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  folder = tmp_path_factory.mktemp("encoder")
  return folder, *saved(folder, "bert", None)


def write(folder, pooling=None, others=(), encoder=None):
  """The modules around an encoder."""
  modules = {"Transformer": "", **({} if pooling is None else {"Pooling": "1_Pooling"}), **{
    name: f"2_{name}" for name in others}}
  (folder / "1_Pooling").mkdir(exist_ok=True)
  (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
  (folder / "sentence_bert_config.json").write_text(json.dumps(encoder or {}))
  (folder / "modules.json").write_text(json.dumps([
    {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
    for i, (name, path) in enumerate(modules.items())]))


def expected(encoder, text, pooling, is_normalised):
  with torch.no_grad():
    (states,) = encoder(torch.tensor([[2, *ids_of(text), 3]])).last_hidden_state
  vector = states[0] if pooling == "cls" else states.mean(0)
  return (vector / vector.norm() if is_normalised else vector).numpy()


@pytest.mark.parametrize("asked, modules, pooling, is_normalised", [
  (None, dict(pooling=MEAN), "mean", False), (None, dict(pooling=CLS), "cls", False),
  (None, dict(pooling={"pooling_mode": "cls"}), "cls", False),
  (None, dict(pooling={"pooling_mode": "mean"}), "mean", False),
  (None, dict(pooling=MEAN, others=["Normalize"]), "mean", True),
  (None, dict(pooling=CLS, others=["Normalize"]), "cls", True),
  (None, dict(), "mean", False), ("mean", dict(pooling=CLS, others=["Normalize"]), "mean", False),
  ("cls", dict(pooling=MEAN, others=["Dense"]), "cls", False),
  (None, dict(pooling=MEAN, encoder={"do_lower_case": True, "max_seq_length": 64}), "mean", False)])
def test_vectors(model, asked, modules, pooling, is_normalised):
  folder, encoder, run = model
  write(folder, **modules)
  for text, vector in zip(TEXTS, pretraining_heads.embed(run, TEXTS, asked)):
    np.testing.assert_allclose(vector, expected(encoder, text, pooling, is_normalised), atol=1e-5)


@pytest.mark.parametrize("modules, named", [
  (dict(pooling={"pooling_mode_max_tokens": True}), "pooling_mode_max_tokens"),
  (dict(pooling=MEAN | {"pooling_mode_cls_token": True}), "pooling_mode_cls_token"),
  (dict(pooling=MEAN, others=["Dense"]), "Dense"), (dict(pooling={"pooling_mode": "lasttoken"}), "lasttoken"),
  (dict(pooling=[1]), "AttributeError"), (dict(pooling=MEAN, encoder=[1]), "AttributeError")])
def test_other_modules_are_named(model, modules, named):
  folder, _, run = model
  write(folder, **modules)
  with pytest.raises(UserError) as error:
    pretraining_heads.embed(run, TEXTS)
  assert named in error.value.got and "--pooling" in error.value.fix
