"""Published weights by their name on the Hugging Face hub, from a hub that is a folder of this machine."""

import fnmatch
import os
import shutil
import sys
from unittest.mock import Mock

import huggingface_hub
import pytest

from electra_jax import config as config_lib
from electra_jax import recipes
from electra_jax.errors import UserError
from electra_jax.exchange import hub, published
from electra_jax.finetuning import pretrained
from electra_jax.inference import loading
from electra_jax.tools import import_weights
from tests.exchange.test_continued import discriminator
from tests.small_runs import assert_four_parts


@pytest.fixture
def calls(tmp_path, monkeypatch):
  """The patterns that were asked for; the hub has `me/tiny`, other names are unknown, "answers" is whether it does."""
  discriminator(tmp_path / "hub")
  (tmp_path / "hub/tf_model.h5").write_bytes(b"large, and of no use here")
  asked = []

  def model_info(self, name, timeout):
    assert timeout <= 2
    if name != "me/tiny":
      raise huggingface_hub.errors.HfHubHTTPError("401 Client Error\nand more", response=Mock())

  def snapshot_download(name, allow_patterns, local_files_only):
    if local_files_only and not os.path.exists(tmp_path / "cache"):
      raise huggingface_hub.errors.LocalEntryNotFoundError("nothing in the cache")
    asked.append(allow_patterns)
    (tmp_path / "cache").mkdir(exist_ok=True)
    for file in os.listdir(tmp_path / "hub"):
      if any(fnmatch.fnmatch(file, pattern) for pattern in allow_patterns):
        shutil.copy(tmp_path / "hub" / file, tmp_path / "cache")
    return str(tmp_path / "cache")

  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
  monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
  hub._download.cache_clear()
  yield asked
  hub._download.cache_clear()


def test_a_name_is_fetched_once_and_is_a_start_of_everything(calls, tmp_path, capsys):
  given = recipes.load("small:continued")[1]
  given.checkpoint.init_from = "me/tiny"
  fitted = published.fit(given, str(tmp_path / "run"))
  assert fitted.model.hidden_size == 128 and fitted.checkpoint.init_from == "me/tiny"
  assert fitted.data.tokenizer.path == str(tmp_path / "cache")
  start = pretrained.load("me/tiny")
  assert start.model["hidden_size"] == 128 and start.tokenizer.vocab_size == 49
  assert loading.load("me/tiny").folder == str(tmp_path / "cache")
  with pytest.raises(UserError, match="taken"):  # the folder, after the weights have been read
    import_weights.import_weights("me/tiny", recipes.load("small")[1], str(tmp_path / "hub"))
  assert capsys.readouterr().out.count("me/tiny is not a path here, so it was taken from") == len(calls) == 1
  assert sorted(os.listdir(tmp_path / "cache")) == ["config.json", "model.safetensors", "vocab.txt"]


def test_weights_of_torch_are_fetched_where_there_are_no_others(calls, tmp_path):
  (tmp_path / "hub/model.safetensors").rename(tmp_path / "hub/pytorch_model.bin")
  (tmp_path / "hub/pytorch_model.bin.index.json").write_text("{}")
  assert hub.fetch("me/tiny") == str(tmp_path / "cache")
  assert len(calls) == 2 and (tmp_path / "cache/pytorch_model.bin").exists()


def test_the_cache_is_enough_without_a_network(calls, tmp_path, monkeypatch):
  hub.fetch("me/tiny")
  hub._download.cache_clear()
  (tmp_path / "hub/config.json").unlink()  # nothing more is taken from there that the cache lacks
  monkeypatch.setattr(huggingface_hub.HfApi, "model_info", Mock(side_effect=TimeoutError("no answer")))
  assert pretrained.load("me/tiny").model["hidden_size"] == 128
  shutil.rmtree(tmp_path / "cache")
  hub._download.cache_clear()
  with pytest.raises(UserError, match=r"gives no model of that name \(TimeoutError: no answer\)"):
    hub.fetch("me/tiny")


def test_what_is_here_is_not_asked_for(calls, tmp_path):
  (tmp_path / "me").mkdir()
  (tmp_path / "me/tiny").mkdir()
  (tmp_path / "stem.index").write_text("")
  for path in ("me/tiny", "stem", "", "a/b/c", "gs://bucket/run", "/nowhere"):
    assert hub.fetch(path) == path
  assert not calls


def test_a_name_that_the_hub_does_not_know(calls):
  with pytest.raises(UserError) as caught:
    pretrained.load("me/typo")
  assert_four_parts(caught.value, "No run can be read from me/typo", "no such file or folder",
                    "gives no model of that name (HfHubHTTPError: 401 Client Error)", "check the path",
                    "hf download me/typo")


def test_without_the_package(calls, monkeypatch):
  monkeypatch.setitem(sys.modules, "huggingface_hub", None)
  with pytest.raises(UserError) as caught:
    loading.load("me/tiny")
  assert_four_parts(caught.value, "No run can be read from me/tiny", "is not installed", "pip install huggingface_hub")
  with pytest.raises(UserError, match="No run can be read"):
    config_lib.load("me/tiny")
