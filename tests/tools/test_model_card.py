"""Model cards: what the hub reads in them, whether their Python runs, and the upload, to a hub that is not there."""

import os
import pathlib
import re
import sys
import types

import huggingface_hub
import pytest
import transformers

from configs import bert_original_base, roberta_base, tiny
from electra_jax import config as config_lib
from electra_jax import main as main_lib
from electra_jax.errors import UserError
from electra_jax.exchange import hub, model_card
from electra_jax.tools import export
from tests.small_runs import assert_four_parts
from tests.workdirs import make_workdir

RUNS = {"electra": (tiny, "sentencepiece"), "roberta": (roberta_base, "byte_bpe"),
        "bert": (bert_original_base, "wordpiece")}


@pytest.fixture(scope="module")
def workdir_of(tmp_path_factory):
  """name -> a run's folder with random parameters; made once."""
  root = tmp_path_factory.mktemp("runs")
  return lambda name: make_workdir(root, *RUNS[name])


def python_of(card):
  return re.search(r"^```python\n(.*?)^```$", card, re.MULTILINE | re.DOTALL).group(1)


@pytest.mark.parametrize("name", RUNS)
def test_the_lines_of_python_of_a_card_run(workdir_of, tmp_path, monkeypatch, name):
  done = export.export(workdir_of(name), str(tmp_path / "out"))
  for folder in map(pathlib.Path, done.folders):
    monkeypatch.chdir(folder.parent)
    exec(python_of((folder / "README.md").read_text()).replace('"PATH"', f'"{folder.name}"'), {})
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)  # as long as trained, not as its positions
    assert tokenizer.model_max_length == RUNS[name][0].get_config("tiny").data.sequence_length


class FakeHub:
  """In place of huggingface_hub.HfApi; `fails` is the method that raises."""

  uploaded, fails = {}, ""

  def whoami(self):
    self.step("whoami")

  def create_repo(self, repository, exist_ok):
    self.step("create_repo")
    return f"https://huggingface.co/{repository}"

  def upload_folder(self, repo_id, folder_path, commit_message):
    self.step("upload_folder")
    self.uploaded[repo_id] = sorted(os.listdir(folder_path))

  def step(self, name):
    if name == self.fails:
      raise ConnectionError("no network")


@pytest.fixture
def pushes(workdir_of, tmp_path, monkeypatch):
  """The command with --push, at a hub that is not there; the dictionary of what was uploaded."""
  monkeypatch.setattr(huggingface_hub, "HfApi", FakeHub)
  monkeypatch.setattr(FakeHub, "uploaded", {})
  monkeypatch.setattr(FakeHub, "fails", "")
  monkeypatch.setattr(main_lib, "start_jax", lambda: None)

  def push(name, **changes):
    options = dict(workdir=workdir_of(name), out=str(tmp_path / "out"), step=None, format="hf", push="me/mine",
                   license="apache-2.0", language="en, no") | changes
    monkeypatch.setattr(export, "FLAGS", types.SimpleNamespace(**options))
    export.main([])
    return FakeHub.uploaded

  return push


def test_push_uploads_each_network_with_a_card_that_the_hub_reads(pushes, tmp_path, capsys):
  uploaded = pushes("electra")
  assert uploaded.keys() == {"me/mine-discriminator", "me/mine-generator"}
  assert all({"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(files)
             for files in uploaded.values())
  assert "Uploaded to https://huggingface.co/me/mine-generator" in capsys.readouterr().out
  text = (tmp_path / "out/generator/README.md").read_text()
  card = huggingface_hub.ModelCard(text).data
  assert (card.license, card.language, card.pipeline_tag) == ("apache-2.0", ["en", "no"], "fill-mask")
  assert 'model="me/mine-generator"' in text and "PATH" not in text


def test_the_scores_of_a_card_are_those_of_the_hub(tmp_path):
  resolved = config_lib.resolve(tiny.get_config("tiny"))
  described = {"architectures": ["ElectraForMaskedLM"], "model_type": "electra", "num_hidden_layers": 2,
               "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "vocab_size": 1024}
  row = {"step": 40, "split": "eval", "mlm/loss": 5.25, "rtd/auc": 0.82, "mlm/accuracy": float("nan"), "loss": 30.0}
  found = huggingface_hub.ModelCard(model_card.make("generator", described, resolved, 40, 1000, row)).data.eval_results
  assert {(one.metric_type, one.metric_value) for one in found} == {("loss", 5.25), ("roc_auc", 0.82)}
  assert {(one.task_type, one.dataset_name) for one in found} == {("fill-mask", "held-out text")}
  found = huggingface_hub.ModelCard(model_card.make(
    "encoder", described | {"architectures": ["BertForSequenceClassification"]}, resolved, 40, 1000, None,
    scores={"accuracy": 0.9, "f1": float("nan")})).data.eval_results
  assert [(one.metric_type, one.metric_value) for one in found] == [("accuracy", 0.9)]


@pytest.mark.parametrize(("changes", "fails", "words"), [
  ({"license": ""}, "", ["licence", "--license=apache-2.0 --language=en"]),
  ({"language": ""}, "", ["language"]), ({"format": "msgpack"}, "", ["--format=hf"]),
  ({"push": "mine"}, "", ["a repository of the hub", "--push=me/my-electra"]),
  ({}, "whoami", ["does not know who is uploading", "no network", "hf auth login"]),
  ({}, "upload_folder", ["upload to me/mine has failed", "no network", "hf upload me/mine "])])
def test_a_push_that_fails_says_so_before_anything_is_written(pushes, tmp_path, changes, fails, words):
  """But for the upload itself, after which the folder is complete."""
  FakeHub.fails = fails
  with pytest.raises(UserError) as caught:
    pushes("roberta", **changes)
  assert_four_parts(caught.value, *words)
  assert (tmp_path / "out/README.md").exists() == (fails == "upload_folder")


def test_push_without_the_package(monkeypatch):
  monkeypatch.setitem(sys.modules, "huggingface_hub", None)
  with pytest.raises(UserError, match="--push needs a package") as caught:
    hub.check("me/mine")
  assert "pip install huggingface_hub" in caught.value.fix
