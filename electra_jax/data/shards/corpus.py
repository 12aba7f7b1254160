"""A run's tokenizer and shards: what exists is used, what is missing is made."""

import os

from ml_collections import ConfigDict

from electra_jax.data import shards, tokenizers
from electra_jax.data.sources import documents, provenance
from electra_jax.data.tokenizers import Tokenizer

TOKENIZER_FOLDER = "tokenizer"
SHARDS_FOLDER = "shards"


def shards_directory(config_data: ConfigDict, workdir: str) -> str:
  """`data.shards_path`, or the workdir's own folder."""
  return config_data.shards_path or os.path.join(workdir, SHARDS_FOLDER)


def check(config_data: ConfigDict, workdir: str) -> None:
  """Raises the UserError of a corpus that cannot be read, if shards would have to be made from it."""
  if not shards.exist(shards_directory(config_data, workdir)):
    documents.read_corpus(config_data)


def make_missing(config_data: ConfigDict, workdir: str, seed: int, init_from: str = "",
                 trained_on: dict | None = None) -> None:
  """Puts a tokenizer into `<workdir>/tokenizer` and shards into `shards_directory`, where they are missing.

  Args:
    init_from: the run whose parameters, and vocabulary, this one starts from, if any.
    trained_on: path and checksum of the text behind the workdir's checkpoints, if it has any.

  Raises:
    UserError: the corpus or the vocabulary cannot be read, or the disk refuses (nothing half-made remains); the shards
      that are there hold another text.
  """
  tokenizer = make_tokenizer(config_data, workdir, seed, init_from)
  directory = shards_directory(config_data, workdir)
  if not shards.exist(directory):
    print(f"No shards in {directory} yet: making them from {config_data.path}.", flush=True)
    shards.prepare(config_data, tokenizer, directory, seed)
  source = shards.read_manifest(directory)["source"]
  provenance.check_same_text(trained_on, source, workdir)
  if note := provenance.check(source, config_data, directory):
    print(note, flush=True)


def make_tokenizer(config_data: ConfigDict, workdir: str, seed: int, init_from: str = "") -> Tokenizer:
  """The workdir's tokenizer, else that of data.tokenizer.path, one next to the shards, `init_from`'s, or a new one."""
  own = os.path.join(workdir, TOKENIZER_FOLDER)
  if os.path.isdir(own):
    return tokenizers.load_tokenizer(own, config_data.tokenizer)
  beside = os.path.join(os.path.dirname(os.path.abspath(shards_directory(config_data, workdir))), TOKENIZER_FOLDER)
  folders = filter(os.path.isdir, (beside, os.path.join(init_from, TOKENIZER_FOLDER) if init_from else ""))
  source = config_data.tokenizer.path or next(folders, "")
  if source:
    tokenizer = tokenizers.load_tokenizer(source, config_data.tokenizer)
    tokenizer.save(own)
    return tokenizer
  documents.read_corpus(config_data)  # a path that leads nowhere fails before anything is announced
  print(f"No tokenizer yet: training a {config_data.tokenizer.kind} vocabulary on {config_data.path}.", flush=True)
  return tokenizers.train_tokenizer(config_data.tokenizer, documents.training_texts(config_data), own, seed)
