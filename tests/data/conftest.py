"""Shards of a small corpus, made once for each file of tests."""

import shutil

import pytest

from electra_jax.data import shards
from tests.data.corpora import make_config, make_corpus
from tests.data.fakes import FakeTokenizer


@pytest.fixture(scope="module")
def made(tmp_path_factory):
  """(config, directory, manifest) of shards that nobody may change; copy them to do harm."""
  folder = tmp_path_factory.mktemp("shards")
  config = make_config(make_corpus(folder))
  directory = folder / "shards"
  return config, directory, shards.prepare(config, FakeTokenizer(), str(directory), seed=0)


@pytest.fixture
def copy(made, tmp_path):
  shutil.copytree(made[1], tmp_path / "copy")
  return tmp_path / "copy"
