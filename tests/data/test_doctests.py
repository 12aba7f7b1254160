"""The examples in the docstrings are true."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", [
  "data.counter_hash", "data.order", "data.masking", "data.packing", "data.pipeline", "data.preparation",
  "tools.prepare_data"])
def test_examples_in_docstrings(name):
  result = doctest.testmod(importlib.import_module(f"electra_jax.{name}"))
  assert result.attempted and not result.failed
