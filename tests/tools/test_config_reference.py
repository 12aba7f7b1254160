"""Is docs/configuration.md what configs/common.py says, and is every key in it, with a meaning where it needs one?"""

import re

import pytest

from configs import common
from electra_jax import config as config_lib
from electra_jax.errors import UserError
from electra_jax.tools import config_reference
from tests.conftest import ROOT

PAGE = config_reference.reference((ROOT / "configs/common.py").read_text(), "configs/common.py")
ROWS = dict(re.findall(r"^\| `([\w.]+)` \| .*? \| (.*) \|$", PAGE, re.MULTILINE))

SELF_EXPLAINING = {"model.hidden_dropout_prob", "model.attention_probs_dropout_prob", "optimizer.beta1",
                   "optimizer.beta2", "optimizer.epsilon", "generator.intermediate_size",
                   "generator.num_attention_heads", "generator.num_hidden_layers", "train.num_steps",
                   "train.log_every_steps", "checkpoint.keep_last"}


def test_the_page_is_current():
  """If this fails: python -m electra_jax.tools.config_reference configs/common.py > docs/configuration.md"""
  assert (ROOT / "docs/configuration.md").read_text() == PAGE


def test_every_key_has_its_row_and_meaning():
  keys = set(config_lib.flatten(common.defaults()))
  keys -= {f"model.{size}" for size in common.SIZES["base"]} | {key for key in keys if key.startswith("mesh.")}
  assert keys <= set(ROWS) and {"model", "mesh"} <= set(ROWS)
  assert {key for key in keys if not ROWS[key].strip()} <= SELF_EXPLAINING


def test_a_missing_file():
  with pytest.raises(UserError, match="cannot be read"):
    config_reference.main(["config_reference", "no/such.py"])
