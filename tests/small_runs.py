"""Runs in which everything is small, around a model that compiles in a moment; and what must be true of any error."""

import contextlib
import hashlib
import os
import pathlib
from typing import NamedTuple

import jax
import numpy as np
import pytest

from configs import tiny
from electra_jax import objectives, pretrain, sharding
from electra_jax.errors import UserError
from tests import fake_objective
from tests.conftest import ONE_DEVICE, ROOT

STEPS = 4
WORDS = ["the", "sea", "and", "a", "ship", "went", "over", "under", "cold", "bright", "water", "while", "seven",
         "sailors", "sang", "old", "songs", "about", "home"]


def write_corpus(path, num_documents=60):
  rng = np.random.default_rng(0)
  path.write_text("\n\n".join("\n".join(" ".join(rng.choice(WORDS, 12)) + "." for _ in range(4))
                              for _ in range(num_documents)))
  return path


def environment(flags=ONE_DEVICE):
  """Of a process that computes as these tests do, on one device."""
  return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}


@contextlib.contextmanager
def devices(count):
  """Runs within have so few devices: programs for one compile in less time than those for the eight of the tests."""
  make_mesh = sharding.make_mesh
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sharding, "make_mesh", lambda sizes, chosen=None: make_mesh(sizes, chosen or jax.devices()[:count]))
    yield


class Place(NamedTuple):
  """A folder with a corpus and a run of STEPS steps, and the name of a workdir that does not exist yet."""

  root: pathlib.Path

  @property
  def corpus(self):
    return self.root / "corpus.txt"

  @property
  def run(self):
    return self.root / "run"

  @property
  def new(self):
    return self.root / "new"


def small(place, **changes):
  """A recipe in which everything is small; `changes` are dotted keys with "__" for the dot."""
  given = tiny.get_config("tiny")
  given.update_from_flattened_dict({
    "data.path": str(place.corpus), "data.sequence_length": 16, "data.heldout_share": 0.1, "data.num_workers": 1,
    "data.shard_examples": 1, "data.reader": "threads", "data.tokenizer.kind": "wordpiece",
    "data.tokenizer.vocab_size": fake_objective.VOCABULARY, "train.batch_size": 8, "train.num_steps": STEPS,
    "train.log_every_steps": 1, "checkpoint.every_steps": 2, "optimizer.warmup_steps": 1, "log.tensorboard": False,
    **{key.replace("__", "."): value for key, value in changes.items()}})
  return given


def prepare(root, **changes):
  """A place with a corpus of 20 documents and a finished run of the quick model."""
  place = Place(root)
  root.mkdir(exist_ok=True)
  write_corpus(place.corpus, num_documents=20)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(objectives, "make", fake_objective.make)
    pretrain.pretrain(small(place, **changes), str(place.run))
  return place


def with_data_of(place, **changes):
  """`small` with the vocabulary and the shards of the place's run."""
  return small(place, data__shards_path=str(place.run / "shards"), data__tokenizer__path=str(place.run / "tokenizer"),
               **changes)


def contents(folder):
  """Relative path -> digest of every file, and "" for folders."""
  return {str(path.relative_to(folder)): hashlib.sha1(path.read_bytes()).hexdigest() if path.is_file() else ""
          for path in sorted(folder.rglob("*"))}


def assert_four_parts(error, *words):
  assert all(str(part).strip() for part in (error.what, error.got, error.allowed, error.fix))
  assert all(word in str(error) for word in words), str(error)


def refused(place, workdir, *words, **changes):
  """Runs, and asserts the error and that every file is as before; of a new workdir the empty folder is left at most."""
  before = contents(place.root)
  with pytest.raises(UserError) as caught:
    pretrain.pretrain(small(place, **changes), str(workdir))
  assert_four_parts(caught.value, *words)
  after = contents(place.root)
  assert {name: after.get(name) for name in before} == before
  assert set(after) - set(before) <= {"new"}


def flip_byte(path):
  data = bytearray(path.read_bytes())
  data[-5] ^= 1
  path.write_bytes(data)


def shard_of(place, example):
  (path,) = (place.run / "shards" / "train").glob(f"{example:05d}*")  # shards hold one example each here
  return path
