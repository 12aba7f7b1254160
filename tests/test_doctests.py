"""The examples in the docstrings are true. Modules are found by their prompts: a new example needs no line here."""

import doctest
import importlib
import os

import pytest

import electra_jax
from configs import base
from tests.conftest import ROOT
from tests.exchange.test_fine_tuned import fine_tuned_run
from tests.workdirs import make_workdir

MODULES = sorted({".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                  for path in (ROOT / "electra_jax").rglob("*.py") if ">>> " in path.read_text()} - {"electra_jax"})


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
  result = doctest.testmod(importlib.import_module(name))
  assert result.attempted and not result.failed


def test_examples_of_the_api(tmp_path, monkeypatch):
  """In a folder with runs of random parameters: an ELECTRA, a classifier, and one that answers questions."""
  (tmp_path / "runs").mkdir()
  os.rename(make_workdir(tmp_path, base, "wordpiece"), tmp_path / "runs/mine")
  fine_tuned_run(tmp_path / "runs/labels", "own_classification", "classification", ("bad", "good"))
  fine_tuned_run(tmp_path / "runs/squad", "squad_v1.1", "span")
  monkeypatch.chdir(tmp_path)
  result = doctest.testmod(electra_jax)
  assert result.attempted >= 6 and not result.failed
