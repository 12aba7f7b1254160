"""The wheel: built, installed into a new environment, and trained with from a folder that is no checkout."""

import os
import random
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest

import electra_jax
from tests.conftest import ONE_DEVICE, ROOT

pytest.importorskip("hatchling", reason="hatchling builds the wheel (tests/requirements.txt)")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
  folder = tmp_path_factory.mktemp("wheel")
  subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation",
                  "-w", folder, ROOT], check=True)
  (path,) = folder.glob("*.whl")
  return path


@pytest.fixture(scope="module")
def environment(wheel):
  """The folder of a new environment with the wheel; what the wheel needs is that of the tests, so no network is."""
  folder = wheel.parent / "environment"
  venv.EnvBuilder(with_pip=False).create(folder)
  python = folder / "bin/python"
  subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel],
                 check=True)
  (packages,) = folder.glob("lib/python*/site-packages")
  (packages / "of_the_tests.pth").write_text(sysconfig.get_path("purelib"))
  return folder


def run(environment, place, *arguments):
  variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
    "XLA_FLAGS": ONE_DEVICE}
  done = subprocess.run([environment / "bin/electra-jax", *arguments], cwd=place, env=variables, text=True,
                        capture_output=True, timeout=300)
  assert done.returncode == 0, done.stderr
  return done.stdout + done.stderr


def test_recipes_licence_and_types_are_in_the_wheel(wheel):
  names = zipfile.ZipFile(wheel).namelist()
  recipes = {str(path.relative_to(ROOT)) for path in (ROOT / "configs").rglob("*.py")}
  assert recipes == {name.partition("_recipes/")[2] for name in names if "/_recipes/" in name}
  assert "electra_jax/py.typed" in names and any(name.endswith("/LICENSE") for name in names)
  assert not [name for name in names if name.startswith(("tests/", "docs/", "benchmarks/"))]


def test_ten_steps_from_another_folder(environment, tmp_path):
  """One layer and a vocabulary of a few words, so that the command spends its time on the start."""
  rng = random.Random(0)
  words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 8))) for _ in range(200)]
  (tmp_path / "text.txt").write_text("\n\n".join(" ".join(rng.choices(words, k=60)) for _ in range(80)))
  assert run(environment, tmp_path, "--version") == f"electra_jax {electra_jax.__version__}\n"
  said = run(environment, tmp_path, "train", "--config=tiny", "--config.data.path=text.txt", "--workdir=run",
             "--config.train.num_steps=10", "--config.model.num_hidden_layers=1", "--config.data.reader=threads",
             "--config.data.tokenizer.vocab_size=400", "--config.data.heldout_share=0.0",
             "--config.log.tensorboard=False")
  assert "10/10" in said and "Finished after" in said and said.startswith("Recipe configs/tiny.py, workdir run.\n")
  assert {"config.json", "metrics.jsonl", "checkpoints"} <= set(os.listdir(tmp_path / "run"))
