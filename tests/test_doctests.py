"""The examples in the docstrings are true. Modules are found by their prompts: a new example needs no line here."""

import doctest
import importlib

import pytest

from tests.conftest import ROOT

MODULES = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                 for path in (ROOT / "electra_jax").rglob("*.py") if ">>> " in path.read_text())


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
  result = doctest.testmod(importlib.import_module(name))
  assert result.attempted and not result.failed
