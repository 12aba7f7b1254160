"""A run's tokenizer and shards: what exists is used, what is missing is made."""

import os

from ml_collections import ConfigDict

from electra_jax.data import shards, tokenizers
from electra_jax.data.sources import documents, provenance
from electra_jax.data.tokenizers import Tokenizer
from electra_jax.errors import UserError

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
      or the vocabulary that are there were made from others.
  """
  tokenizer = make_tokenizer(config_data, workdir, seed, init_from, is_trained=trained_on is not None)
  directory = shards_directory(config_data, workdir)
  if not shards.exist(directory):
    print(f"No shards in {directory} yet: making them from {config_data.path}.", flush=True)
    shards.prepare(config_data, tokenizer, directory, seed)
  source = shards.read_manifest(directory)["source"]
  provenance.check_same_text(trained_on, source, workdir)
  if note := provenance.check(source, config_data, directory):
    print(note, flush=True)


def make_tokenizer(config_data: ConfigDict, workdir: str, seed: int, init_from: str = "",
                   is_trained: bool = False) -> Tokenizer:
  """The workdir's tokenizer, else that of data.tokenizer.path, one next to the shards, `init_from`'s, or a new one.

  Raises:
    UserError: the vocabulary or the corpus cannot be read; or the workdir has one tokenizer, data.tokenizer.path names
      another, and no checkpoint (`is_trained`) depends on the first.
  """
  own, path = os.path.join(workdir, TOKENIZER_FOLDER), config_data.tokenizer.path
  if os.path.isdir(own):
    tokenizer = tokenizers.load_tokenizer(own, config_data.tokenizer)
    if path and not is_trained and os.path.exists(path):  # the copy is enough where the original is gone
      named = tokenizers.load_tokenizer(path, config_data.tokenizer)
      entries, others = (t.tokens(range(t.vocab_size)) for t in (tokenizer, named))
      if entries != others:
        raise UserError("The workdir has another vocabulary than data.tokenizer.path", got=f"{own} and {path}",
                        allowed="one vocabulary", fix=f"choose a new --workdir (or --out); or remove {own}, and the "
                        "shards that were made with it")
    if not is_trained and tokenizer.vocab_size < (wanted := config_data.tokenizer.vocab_size):
      print(f"The vocabulary in {own} has {tokenizer.vocab_size:,} entries, fewer than the {wanted:,} of "
            "data.tokenizer.vocab_size; remove it to train another.", flush=True)
    return tokenizer
  beside = os.path.join(os.path.dirname(os.path.abspath(shards_directory(config_data, workdir))), TOKENIZER_FOLDER)
  folders = filter(os.path.isdir, (beside, os.path.join(init_from, TOKENIZER_FOLDER) if init_from else ""))
  if source := path or next(folders, ""):
    tokenizer = tokenizers.load_tokenizer(source, config_data.tokenizer)
    tokenizer.save(own)
    return tokenizer
  documents.read_corpus(config_data)  # a path that leads nowhere fails before anything is announced
  print(f"No tokenizer yet: training a {config_data.tokenizer.kind} vocabulary on {config_data.path}.", flush=True)
  return tokenizers.train_tokenizer(config_data.tokenizer, documents.training_texts(config_data), own, seed)
