"""Provenance: a run trains on the text that its files name, or says so, or is refused."""

import json
import shutil

import pytest

from electra_jax import config as config_lib
from electra_jax import pretrain
from electra_jax.data import shards
from electra_jax.errors import UserError
from electra_jax.tools import prepare_data
from electra_jax.training import checkpoints, workdir
from tests.small_runs import STEPS, assert_four_parts, contents, prepare, small, write_corpus

pytestmark = pytest.mark.usefixtures("quick_model")


def other_text(place):
  write_corpus(place.root / "other.txt", num_documents=30)
  return {"data__path": str(place.root / "other.txt")}


def changed_text(place):
  place.corpus.write_text(place.corpus.read_text() + "\n\nThe sea again.\n")
  return {"data__path": str(place.corpus)}


def changed_letter(place):
  text = place.corpus.read_text()
  place.corpus.write_text(text.replace("e", "a", 1))
  return {"data__path": str(place.corpus)}


def moved_text(place):
  (place.root / "elsewhere").mkdir()
  shutil.move(place.corpus, place.root / "elsewhere")
  return {"data__path": str(place.root / "elsewhere" / place.corpus.name)}


def removed_text(place):
  place.corpus.unlink()
  return {"data__path": str(place.corpus)}


def without(folder, change):
  def make(place):
    changes = change(place)
    shutil.rmtree(place.run / folder)
    return changes
  return make


def other_shards(place):
  changes = other_text(place)
  pretrain.pretrain(small(place, data__tokenizer__path=str(place.run / "tokenizer"), **changes), str(place.new))
  return {"data__path": "", "data__shards_path": str(place.new / "shards")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A place, and a copy of it as its run has left it."""
  root = tmp_path_factory.mktemp("own")
  place = prepare(root / "place")
  shutil.copytree(place.root, root / "kept")
  return place, root / "kept"


@pytest.fixture
def own(trained):
  """A place whose run was trained on the place's own corpus, not on that of the fixture it was copied from."""
  place, kept = trained
  shutil.rmtree(place.root)
  shutil.copytree(kept, place.root)
  return place


REFUSED = {  # what is done -> what the error names
  "other text": (other_text, ["made from another text", "data.path is", "corpus.txt"]),
  "other text before the first checkpoint": (
    without("checkpoints", other_text), ["made from another text", "other.txt"]),
  "text that is nowhere": (lambda place: {"data__path": str(place.root / "nowhere")}, ["nothing to compare with"]),
  "another weight": (lambda place: {"data__path": f"{place.corpus}*2"}, ["made from another text"]),
  "another source": (lambda place: {"data__path": "pydoc:"}, ["data.path is 'pydoc:'"]),
  "another field": (without("checkpoints", lambda place: {"data__text_field": "body"}), ["data.text_field is 'body'"]),
  "fewer documents": (
    without("checkpoints", lambda place: {"data__max_documents": 5}), ["data.max_documents is 5, 400"]),
  "other shards": (other_shards, ["another text than the one", "other.txt", "init_from"]),
  "changed text, no shards": (without("shards", changed_text), ["another text than the one"]),
  "a changed letter, no shards": (without("shards", changed_letter), ["another text than the one"]),
  "other text, no shards": (without("shards", other_text), ["another text than the one", "other.txt"])}


@pytest.mark.parametrize("row", REFUSED)
def test_another_text_is_refused(own, row):
  change, words = REFUSED[row]
  changes = change(own)
  before = contents(own.run)
  with pytest.raises(UserError) as caught:
    pretrain.pretrain(small(own, train__num_steps=STEPS + 1, **changes), str(own.run))
  assert_four_parts(caught.value, *words)
  after = contents(own.run)
  assert {name: after.get(name) for name in before} == before


SAID = {  # what is done -> (what is said, what config.json names)
  "nothing": (lambda place: {}, "", "corpus.txt"),
  "no path": (lambda place: {"data__path": ""}, "", "corpus.txt"),
  "a path in other words": (lambda place: {"data__path": f"{place.root}/run/../corpus.txt"}, "", "run/../corpus.txt"),
  "moved": (moved_text, "has moved from", "elsewhere/corpus.txt"),
  "changed": (changed_text, "Warning: the text under", "corpus.txt"),
  "removed": (removed_text, "", "corpus.txt"),
  "no shards": (without("shards", lambda place: {}), "No shards in", "corpus.txt"),
  "moved, no shards": (without("shards", moved_text), "No shards in", "elsewhere/corpus.txt"),
  "copied shards": (lambda place: {"data__path": "", "data__shards_path": str(shutil.copytree(
    place.run / "shards", place.root / "copy"))}, "", "corpus.txt")}


@pytest.mark.parametrize("row", SAID)
def test_the_same_text_goes_on_and_is_named(own, capsys, row):
  change, words, named = SAID[row]
  changes = change(own)
  capsys.readouterr()
  pretrain.pretrain(small(own, train__num_steps=STEPS + 1, **changes), str(own.run))
  said = capsys.readouterr().out
  assert words in said if words else "text" not in said
  assert checkpoints.saved_steps(str(own.run))[-1] == STEPS + 1
  assert config_lib.load(str(own.run)).data.path == f"{own.root}/{named}"
  record = json.loads((own.run / "config.json").read_text())
  assert record["text"]["checksum"] == shards.read_manifest(str(own.run / "shards"))["source"]["checksum"]


def test_the_manifest_names_the_text(own):
  source = shards.read_manifest(str(own.run / "shards"))["source"]
  assert source["path"] == str(own.corpus) and source["files"] == {str(own.corpus): own.corpus.stat().st_size}
  assert source["left_out"] == [] and len(source["checksum"]) == 16
  before = source["checksum"]
  changed_letter(own)
  pretrain.pretrain(small(own), str(own.new))
  assert shards.read_manifest(str(own.new / "shards"))["source"]["checksum"] != before


def test_hidden_files_are_said(place, capsys):
  (place.root / "texts").mkdir()
  shutil.copy(place.corpus, place.root / "texts")
  (place.root / "texts" / ".draft.txt").write_text("x")
  pretrain.pretrain(small(place, data__path=str(place.root / "texts")), str(place.new))
  assert "left out: \n    " in capsys.readouterr().out
  assert shards.read_manifest(str(place.new / "shards"))["source"]["left_out"] == [
    str(place.root / "texts" / ".draft.txt")]


# ---- prepare_data ----


def test_shards_of_a_run_are_not_replaced(place):
  before = contents(place.run)
  config = config_lib.resolve(small(place))
  with pytest.raises(UserError) as caught:
    prepare_data.prepare_data(config, str(place.run))
  assert_four_parts(caught.value, "trained on its shards", f"{place.run}, steps [2, 4]")
  config = config_lib.resolve(small(place, data__shards_path=str(place.run / "shards")))
  with pytest.raises(UserError, match="trained on its shards"):
    prepare_data.prepare_data(config, str(place.new))
  assert contents(place.run) == before


def test_a_workdir_in_use_is_not_prepared(place):
  config = config_lib.resolve(small(place))
  with workdir.hold(str(place.new)), pytest.raises(UserError, match="Another job is running"):
    prepare_data.prepare_data(config, str(place.new))
  assert not list(place.new.iterdir())
  prepare_data.prepare_data(config, str(place.new))
  prepare_data.prepare_data(config, str(place.new))  # again: nothing was trained there
  pretrain.pretrain(small(place), str(place.new))
