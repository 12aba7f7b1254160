"""The first command of a newcomer: a recipe by name or path, from any folder, on the text that the recipe names."""

import json
import os
import random
import subprocess
import sys
import time

import pytest

from electra_jax import __main__ as command
from electra_jax import recipes
from tests.conftest import ONE_DEVICE, ROOT

WIKIPEDIA = "wikipedia"


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
  """A data set under the name that the papers' recipes read, in TFDS's own format."""
  import tensorflow_datasets as tfds

  folder, rng = tmp_path_factory.mktemp("tfds"), random.Random(0)
  words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(300)]
  rows = [(i, {"title": f"article {i}", "text": "\n\n".join(" ".join(rng.choices(words, k=200)) for _ in range(4))})
          for i in range(60)]
  tfds.dataset_builders.store_as_tfds_dataset(
    WIKIPEDIA, "1.0.0", tfds.features.FeaturesDict({"title": tfds.features.Text(), "text": tfds.features.Text()}),
    {"train": rows}, config="20230601.en", data_dir=folder, disable_shuffling=True)
  return str(folder)


def environment(**more):
  variables = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ONE_DEVICE}
  return os.environ | variables | more


def test_the_literal_line_starts_in_an_empty_folder(tmp_path, tfds_dir):
  """configs/ is next to it as in a checkout; a step of Base takes minutes here, so it is asked to stop before one."""
  os.symlink(ROOT / "configs", tmp_path / "configs")
  line = [sys.executable, "-m", "electra_jax.main", "--config=configs/base.py"]
  with subprocess.Popen(line, cwd=tmp_path, text=True, env=environment(TFDS_DATA_DIR=tfds_dir), stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT) as run:
    printed, end = [], time.monotonic() + 300
    for line in run.stdout:
      printed.append(line)
      if "Starting from scratch" in line or time.monotonic() > end:  # what is left is the compiler
        run.kill()
        break
  assert printed[0] == "Recipe configs/base.py, workdir runs/base (--workdir names another).\n", "".join(printed)
  assert "Starting from scratch" in printed[-1], "".join(printed)
  assert json.loads((tmp_path / "runs/base/config.json").read_text())["recipe"] == "configs/base.py"
  assert (tmp_path / "runs/base/shards").exists()


NAMES = {"base": "configs/base.py", "base:fast": "configs/base.py:fast", "configs/base.py": "configs/base.py",
         "small.py:tiny": "configs/small.py:tiny", "glue:rte": "configs/finetune/glue.py:rte",
         "configs/finetune/squad.py:v1.1": "configs/finetune/squad.py:v1.1",
         "finetune/race": "configs/finetune/race.py",
         "nope": None, "/nowhere/base.py": None}


@pytest.mark.parametrize("name", NAMES)
def test_recipes_are_found_by_name_from_anywhere(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  expected = name if NAMES[name] is None else str(ROOT / NAMES[name])
  assert recipes.find(name) == expected
  assert recipes.with_paths(["x", f"--config={name}"])[1] == f"--config={expected}"
  assert recipes.with_paths(["x", "--config", name])[2] == expected


def test_recipes_load_where_configs_cannot_be_imported_yet(tmp_path, monkeypatch):
  """As in a notebook, next to an installed wheel."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder and os.path.realpath(folder) != str(ROOT)])
  for name in [name for name in sys.modules if name.split(".")[0] == "configs"]:
    monkeypatch.delitem(sys.modules, name)
  assert recipes.load("own:classification")[1].task.name == "own_classification"


def test_a_recipe_of_ones_own_comes_first(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "base").write_text("mine")
  assert recipes.find("base:x") == "base:x"


def test_without_the_data_set_and_without_a_network(tmp_path):
  """Names are resolved nowhere here: TFDS alone would try for minutes."""
  code = ("import socket, sys\n"
          "def nowhere(*_, **__): raise socket.gaierror(-2, 'Name or service not known')\n"
          "socket.getaddrinfo = nowhere\n"
          "from electra_jax.data.sources.documents import read_documents\n"
          "next(read_documents('tfds:wikipedia/20230601.en'))")
  names = ("http_proxy", "https_proxy", "all_proxy")
  proxies = {name: "" for low in names for name in (low, low.upper())}
  done = subprocess.run([sys.executable, "-c", code], env=environment(TFDS_DATA_DIR=str(tmp_path), **proxies),
                        timeout=120, capture_output=True, text=True, cwd=tmp_path, check=False)
  message = done.stderr[done.stderr.rindex("UserError"):]
  assert "there is no network" in message and "--config.data.path=/path/to/text" in message
  assert "--config=configs/tiny.py" in message and len(message.strip().splitlines()) == 4


def test_sub_commands_are_modules(capsys, monkeypatch):
  for module, _ in command.COMMANDS.values():
    assert (ROOT / "electra_jax" / (module.replace(".", "/") + ".py")).exists() or (
      ROOT / "electra_jax" / module.replace(".", "/") / "__main__.py").exists(), module
  monkeypatch.setattr(sys, "argv", ["electra-jax", "--version"])
  command.main()
  monkeypatch.setattr(sys, "argv", ["electra-jax", "trian"])
  with pytest.raises(SystemExit, match="2"):
    command.main()
  out, error = capsys.readouterr()
  assert out.startswith("electra_jax 0.") and "Unknown command: trian" in error and "  train " in error
