"""Data sets of TensorFlow Datasets: the rows of a split, and the documents of `tfds:NAME[:SPLIT]`."""

import contextlib
import os
import re
import socket
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any

from electra_jax.data.sources.records import Reading
from electra_jax.errors import UserError, named

# A name may end in a version: wiki40b/en:1.3.0
_SPEC = re.compile(r"tfds:(?P<name>[^:]+(:[\d*]+(\.[\d*]+)*)?)(:(?P<split>.+))?")


def read(path: str, reading: Reading) -> Iterator[list[str]]:
  """One document a record of `tfds:NAME[:SPLIT]`, by default of the split train, in the order of the files.

  Raises:
    UserError: there is no such data set, or it has no such text; a record is not UTF-8 (unless those are skipped).
  """
  spec, field = _SPEC.fullmatch(path), reading.text_field
  if not spec:
    raise _fault(path, "no name", "name a data set")
  features, rows = load(path, spec["name"], spec["split"] or "train", only=field, fix="take your own "
                        "text, --config.data.path=/path/to/text, or the demo, --config=configs/tiny.py")
  if field not in features or str(features[field].np_dtype) not in ("object", "str", "<class 'object'>"):
    raise _fault(path, f'no text under "{field}"; its features are {named(sorted(features))}',
                 "name the one that holds the text: --config.data.text_field=...")

  def records() -> Iterator[tuple[str, dict]]:
    for number, row in enumerate(rows, 1):
      text = row[field]
      with contextlib.suppress(UnicodeDecodeError):  # such bytes are no text
        text = text.decode("utf-8")
      yield f"{path}: record {number}", {field: text}

  return reading.documents(records())


def load(path: str, name: str, split: str, *, fix: str, only: str = "") -> tuple[Any, Iterable[dict]]:
  """(features, rows as NumPy) of a split; TFDS downloads a data set that is not yet in its folder, TFDS_DATA_DIR of the
  environment or ~/tensorflow_datasets.

  Args:
    path: the data set's name in an error.
    fix: what to do if the data set cannot be had.
    only: the only feature to decode, if there is one of this name.

  Raises:
    UserError: there is no such data set or split, or it cannot be fetched.
  """
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before the import: no start-up notices
  try:
    import tensorflow_datasets as tfds

    builder: Any = tfds.builder(name)
    if not builder.is_prepared() and _is_offline():
      raise OSError("it is not on this machine, and there is no network")
    builder.download_and_prepare()
    features = builder.info.features
    rows = builder.as_dataset(
      split=split, decoders=tfds.decode.PartialDecoding({only: True}) if only in features else None,
      read_config=tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False))
  except Exception as error:  # TFDS and TensorFlow raise dozens of types
    first_line = str(error).strip().partition("\n")[0]
    raise _fault(path, f"{type(error).__name__}: {first_line}",
                 f"check name, split, TFDS_DATA_DIR and the network; or {fix}") from error
  return features, tfds.as_numpy(rows)


def _fault(path: str, got: object, fix: str) -> UserError:
  return UserError("A TFDS data set cannot be read", got=f"{path}: {got}", fix=fix,
                   allowed="tfds:NAME[:SPLIT], for example tfds:imdb_reviews:unsupervised or tfds:wiki40b/en")


def _is_offline() -> bool:
  """Whether TFDS's bucket has no address here: TFDS itself tries for minutes."""
  if urllib.request.getproxies():
    return False  # the proxy resolves names
  try:
    socket.getaddrinfo("storage.googleapis.com", 443)
  except OSError:
    return True
  return False
