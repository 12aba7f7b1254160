"""The generated pages of docs/: current, whole, and with a meaning for each key."""

import doctest
import re

import pytest

from configs import common
from docs import generate
from electra_jax import config as config_lib
from tests.conftest import ROOT

PAGES = generate.pages()
ROWS = dict(re.findall(r"^\| `([\w.]+)` \| .*? \| (.*) \|$", PAGES["configuration.md"], re.MULTILINE))

SELF_EXPLAINING = {"model.hidden_dropout_prob", "model.attention_probs_dropout_prob", "optimizer.beta1",
                   "optimizer.beta2", "optimizer.epsilon", "generator.intermediate_size",
                   "generator.num_attention_heads", "generator.num_hidden_layers", "train.num_steps",
                   "train.log_every_steps", "checkpoint.keep_last"}


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_current(name):
  """If this fails: python -m docs.generate"""
  assert (ROOT / "docs" / name).read_text() == PAGES[name]


def test_every_key_has_its_row_and_meaning():
  keys = set(config_lib.flatten(common.defaults()))
  keys -= {f"model.{size}" for size in common.SIZES["base"]} | {key for key in keys if key.startswith("mesh.")}
  assert keys <= set(ROWS) and {"model", "mesh"} <= set(ROWS)
  assert {key for key in keys if not ROWS[key].strip()} <= SELF_EXPLAINING


def test_every_difference_begins_a_paragraph():
  lines = [line for folder in ("configs", "electra_jax") for path in (ROOT / folder).rglob("*.py")
           for line in path.read_text().splitlines() if re.match(r" *Differs ", line)]
  assert len(lines) == len(re.findall("^- ", PAGES["differences.md"], re.MULTILINE))


def test_examples():
  found = doctest.testmod(generate)
  assert found.attempted >= 3 and not found.failed
