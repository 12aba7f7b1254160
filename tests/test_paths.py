"""Paths of runs: what a library takes for a pattern is refused before anything is made; every other name works."""

import os
import shutil
import subprocess
import sys

import pytest
from absl import flags

from configs import tiny
from electra_jax import main, pretrain
from electra_jax.data.sources import hf_datasets, records
from electra_jax.errors import UserError
from electra_jax.exchange import tf_checkpoint
from electra_jax.finetuning import results
from electra_jax.training import checkpoints, workdir
from tests.conftest import ROOT
from tests.small_runs import assert_four_parts, contents, environment, small

pytestmark = pytest.mark.usefixtures("quick_model")

REFUSED = ["lr[1e-3]", "[!a]", "a*b", "what?", "back\\slash", "\udce9", "open[", "a]b"]
FINE = ["two words ", "ünï 中文", "{a,b}", "it's #1%20", "$HOME", "~", "a;b&c|d", "a=b,c:d@e", "new\nline",
        "(x) \u3000!"]


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("form", ["{}", "{}/run", "run/{}"])
def test_a_workdir_that_would_lose_its_checkpoints_is_refused(place, name, form):
  before = contents(place.root)
  folder = str(place.root / form.format(name))
  with pytest.raises(UserError) as caught:
    pretrain.pretrain(small(place), folder)
  assert_four_parts(caught.value, "Checkpoints cannot be kept", "--workdir", repr(name)[1:-1])
  with pytest.raises(UserError, match="cannot be kept"), workdir.lock(folder):
    pass
  with pytest.raises(UserError, match="cannot be kept"):
    results.claim(None, folder, {})
  assert contents(place.root) == before


def test_the_folder_that_a_relative_workdir_is_in_counts(place, monkeypatch):
  (place.root / "lr[1e-3]").mkdir()
  monkeypatch.chdir(place.root / "lr[1e-3]")
  with pytest.raises(UserError, match=r"lr\[1e-3\]"):
    pretrain.pretrain(small(place), "run")
  assert not os.listdir(".")


@pytest.mark.parametrize("name", FINE)
def test_odd_names_that_work(place, name):
  folder = place.root / name
  folder.mkdir()
  shutil.move(place.run, folder / "run")
  pretrain.pretrain(small(place, train__num_steps=5), str(folder / "run"))
  assert checkpoints.load_params(str(folder / "run"))[0] == 5
  (folder / "link").symlink_to(folder / "run")
  pretrain.pretrain(small(place, train__num_steps=6), str(folder / "link"))
  assert checkpoints.saved_steps(str(folder / "run"))[-1] == 6


@pytest.mark.parametrize("name", [*REFUSED[:4], *FINE])
def test_a_run_in_an_odd_folder_is_read(place, name):
  """What was copied there: parameters, vocabulary, shards and corpus."""
  folder = place.root / name
  folder.mkdir()
  shutil.move(place.run, folder / "run")
  assert checkpoints.load_params(str(folder / "run"))[0] == 4
  shutil.move(place.corpus, folder / "corpus.txt")
  given = small(place, data__path=str(folder / "corpus.txt"), data__shards_path=str(folder / "run" / "shards"),
                data__tokenizer__path=str(folder / "run" / "tokenizer"), checkpoint__init_from=str(folder / "run"))
  pretrain.pretrain(given, str(place.new))
  assert checkpoints.load_params(str(place.new))[0] == 4


@pytest.mark.parametrize("read, words", [
  (lambda folder: tf_checkpoint._open(f"{folder}/model.ckpt"), "cannot read a checkpoint under this path"),
  (lambda folder: hf_datasets.read(f"hf:{folder}", records.Reading()), "takes [ ] * ? for a pattern")])
def test_what_other_libraries_cannot_read_is_told(tmp_path, read, words):
  pytest.importorskip("tensorflow")
  pytest.importorskip("datasets")
  (tmp_path / "lr[1e-3]").mkdir()
  with pytest.raises(UserError) as caught:
    read(tmp_path / "lr[1e-3]")
  assert_four_parts(caught.value, words)


# ---- the home folder ----


def test_home_in_flags_and_keys(monkeypatch):
  monkeypatch.setenv("HOME", "/somewhere")
  values = flags.FlagValues()
  for name, value in {"workdir": "~/runs/a", "out": "~", "pair": "~ 5", "number": "x~/y", "empty": ""}.items():
    flags.DEFINE_string(name, value, "", flag_values=values)
  main.expand_home({name: values[name] for name in values})
  values.mark_as_parsed()
  assert [values[name].value for name in ("workdir", "out", "pair", "number", "empty")] == [
    "/somewhere/runs/a", "/somewhere", "~ 5", "x~/y", ""]
  config = tiny.get_config()
  config.update_from_flattened_dict({"data.path": "~/text,~/b", "data.tokenizer.path": "~/v", "task.init_from": "~/run",
                                     "checkpoint.init_from": "~/run", "data.shards_path": "~/s", "task.data_dir": "~"})
  main.expand_config(config)
  assert (config.data.path, config.data.tokenizer.path, config.task.init_from, config.checkpoint.init_from,
          config.data.shards_path, config.task.data_dir) == (
    "/somewhere/text,~/b", "/somewhere/v", "/somewhere/run", "/somewhere/run", "/somewhere/s", "/somewhere")


@pytest.mark.parametrize("command, status", [
  ("electra_jax.tools.prepare_data --config=configs/tiny.py --config.data.path=~/corpus.txt --out=~/data "
   "--config.data.tokenizer.kind=wordpiece --config.data.tokenizer.vocab_size=64 --config.data.num_workers=1", 0),
  ("electra_jax.main --config=configs/tiny.py --workdir=~/lr[1]", 2)])
def test_home_in_a_command(tmp_path, command, status):
  (tmp_path / "corpus.txt").write_text("\n\n".join(f"The sea and ship {i}." for i in range(50)))
  done = subprocess.run([sys.executable, "-m", *command.split()], cwd=ROOT, env=environment() | {"HOME": str(tmp_path)},
                        capture_output=True, text=True, timeout=120)
  assert done.returncode == status, done.stderr
  assert not (ROOT / "~").exists()
  assert {path.name for path in tmp_path.iterdir()} - {".cache", ".config"} == {"corpus.txt"} | (
    {"data"} if not status else set())


