"""Small corpora of the words of `fakes`, their config and the shards made of them."""

import numpy as np
from ml_collections import ConfigDict

from electra_jax.data import shards
from tests.data.fakes import WORDS


def make_config(path, **changes):
  config = ConfigDict(dict(
    path=str(path), text_field="text", text_format="auto", on_bad_record="error",
    heldout_share=0.1, max_documents=0, sentences="line",
    format="ELECTRA", sequence_length=16, short_sequence_share=0.05,
    shard_examples=50, num_workers=1))
  config.update(changes)
  return config


def make_corpus(folder, documents=120, seed=0):
  rng = np.random.default_rng(seed)
  path = folder / "corpus.txt"
  text = "\n\n".join("\n".join(" ".join(rng.choice(WORDS, rng.integers(1, 12))) for _ in range(rng.integers(1, 8)))
                     for _ in range(documents))
  path.write_text(text)
  return path


def read_all(directory, split, **checks):
  examples = shards.open_shards(str(directory), split, **checks)
  return examples, *examples.read(np.arange(len(examples)))


def assert_four_parts(error, *words):
  text = str(error.value)
  assert all(part in text for part in ("got:", "allowed:", "fix:", *words)), text
