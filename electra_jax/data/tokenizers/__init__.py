"""Loading of tokenizers (saved by us or published), and training of one on the corpus.

The kinds are in `kinds`, their training in `training`; here are the table of both and the work on the disk.
"""

import functools
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ml_collections import ConfigDict
from tqdm import tqdm

from electra_jax import files as files_lib
from electra_jax.data.tokenizers import published_tokenizer, published_vocabulary
from electra_jax.data.tokenizers.base import FACTS_FILE, Tokenizer
from electra_jax.data.tokenizers.kinds import ByteBPE, SentencePiece, SentencePieceBPE, WordPiece
from electra_jax.data.tokenizers.training import train_byte_bpe, train_sentencepiece, train_wordpiece
from electra_jax.errors import UserError


class Kind(NamedTuple):
  """A row of TOKENIZERS."""

  tokenizer: type[Tokenizer]
  train: Callable[[Iterator[str], int, bool, int], dict[str, bytes]]  # (texts, vocab_size, lowercase, seed) -> files


TOKENIZERS: dict[str, Kind] = {
  "sentencepiece": Kind(SentencePiece, train_sentencepiece),
  "sentencepiece_bpe": Kind(SentencePieceBPE, functools.partial(train_sentencepiece, model_type="bpe")),
  "wordpiece": Kind(WordPiece, train_wordpiece),
  "byte_bpe": Kind(ByteBPE, train_byte_bpe),
}


def train_tokenizer(config_tokenizer: ConfigDict, texts: Iterator[str], directory: str, seed: int) -> Tokenizer:
  """Learns a vocabulary from the first `training_bytes` of the texts and writes it; shows progress.

  The directory appears complete or not at all. A corpus with fewer distinct pieces than `vocab_size` gives a smaller
  vocabulary, which is printed and recorded (`Tokenizer.vocab_size`).

  Raises:
    UserError: the directory is taken, the vocabulary is too small, or the disk refuses.
  """
  kind, lowercase = config_tokenizer.kind, config_tokenizer.lowercase
  files_lib.check_free(directory)  # before minutes of training, not after
  with tqdm(total=config_tokenizer.training_bytes, desc=f"Training {kind} tokenizer", unit="B", unit_scale=True,
            mininterval=1.0, disable=None) as bar:  # None: not shown unless on a terminal
    limited = _limited(texts, config_tokenizer.training_bytes, bar)
    files = TOKENIZERS[kind].train(limited, config_tokenizer.vocab_size, lowercase, seed)
  tokenizer = TOKENIZERS[kind].tokenizer(files, lowercase, source="the new vocabulary")
  if tokenizer.vocab_size > config_tokenizer.vocab_size:
    raise UserError("data.tokenizer.vocab_size is too small for the characters of the text",
                    got=config_tokenizer.vocab_size, allowed=f"at least {tokenizer.vocab_size} for this text",
                    fix="raise --config.data.tokenizer.vocab_size")
  if tokenizer.vocab_size < config_tokenizer.vocab_size:
    print(f"The text is enough for {tokenizer.vocab_size:,} vocabulary entries, fewer than the "
          f"{config_tokenizer.vocab_size:,} of data.tokenizer.vocab_size; the rest stays unused.")
  tokenizer.save(directory)
  return tokenizer


def _limited(texts: Iterable[str], training_bytes: int, bar: tqdm) -> Iterator[str]:
  read = 0
  for text in texts:
    size = len(text.encode("utf-8"))
    read += size
    bar.update(size)
    yield text
    if read >= training_bytes:
      break
  bar.set_description("Learning the vocabulary")
  bar.refresh()  # from here on the libraries show nothing


def load_tokenizer(path: str, config_tokenizer: ConfigDict | None = None) -> Tokenizer:
  """Loads a directory written by `Tokenizer.save`, or published files (docs/data_formats.md lists them).

  Args:
    path: file or directory.
    config_tokenizer: `config.data.tokenizer`; if given, the kind, lowercasing and size must agree with it, and its
      lowercasing counts if the settings name none.

  Raises:
    UserError: nothing is found, the files are damaged, a special token is missing, or the config asks for another one.
  """
  if not path.strip() or not os.path.exists(path):
    raise UserError("The tokenizer does not exist", got=repr(path),
                    allowed="a directory written by train_tokenizer, or vocab.txt, vocab.json with merges.txt, "
                            "*.model, tokenizer.json, or a directory with these",
                    fix="check --config.data.tokenizer.path, or leave it empty to train a vocabulary on data.path")
  facts_path = os.path.join(path, FACTS_FILE)
  try:
    if os.path.exists(facts_path):
      tokenizer = _load_saved(path, facts_path)
    else:
      wanted = () if config_tokenizer is None else (config_tokenizer.kind, config_tokenizer.lowercase)
      tokenizer = published_vocabulary.load(path, *wanted)
  except OSError as error:
    raise UserError("The tokenizer cannot be read", got=f"{path}: {error}", allowed="readable files",
                    fix="check the path and its permissions") from error
  if config_tokenizer is not None:
    _check_config(tokenizer, config_tokenizer, path)
  return tokenizer


def _check_config(tokenizer: Tokenizer, config_tokenizer: ConfigDict, path: str) -> None:
  for key, got in (("kind", tokenizer.kind), ("lowercase", tokenizer.lowercase)):
    if config_tokenizer[key] != got:
      raise UserError(f"data.tokenizer.{key} does not agree with the vocabulary",
                      got=f"{config_tokenizer[key]!r} in the config, {got!r} in {path}", allowed="the vocabulary's own",
                      fix=f"set --config.data.tokenizer.{key}={got}, or use another vocabulary")
  if tokenizer.vocab_size > config_tokenizer.vocab_size:
    raise UserError("The vocabulary has more entries than data.tokenizer.vocab_size",
                    got=f"{tokenizer.vocab_size:,} in {path}, {config_tokenizer.vocab_size:,} in the config",
                    allowed="at most data.tokenizer.vocab_size, from which the model's token table is sized",
                    fix=f"set --config.data.tokenizer.vocab_size={tokenizer.vocab_size}")


def _load_saved(directory: str, facts_path: str) -> Tokenizer:
  def damaged(got: str) -> UserError:
    return UserError("A saved tokenizer is damaged", got=got, allowed="the files as they were saved",
                     fix="restore the directory from a copy, or train the tokenizer again in a new directory")

  try:
    facts = json.loads(pathlib.Path(facts_path).read_text("utf-8"))
    tokenizer_class = TOKENIZERS[facts["kind"]].tokenizer
    if os.path.exists(os.path.join(directory, published_tokenizer.FILE)):
      tokenizer_class = published_tokenizer.PublishedTokenizer
    files = {name: pathlib.Path(directory, name).read_bytes() for name in tokenizer_class.file_names}
    lowercase, fingerprint = facts["lowercase"], facts["fingerprint"]
  except (ValueError, KeyError, TypeError, OSError) as error:
    raise damaged(f"{facts_path}: {error!r}") from error
  tokenizer = tokenizer_class(files, lowercase, source=directory)
  if tokenizer.fingerprint != fingerprint:
    raise damaged(f"{directory}: the files' fingerprint is {tokenizer.fingerprint[:12]}, not {str(fingerprint)[:12]}")
  return tokenizer
