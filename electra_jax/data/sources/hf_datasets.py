"""Data sets of Hugging Face's library, `hf:PATH[:SPLIT]`, from its hub or from a folder."""

import glob
import os
from collections.abc import Iterator

from electra_jax.data.sources.records import Reading
from electra_jax.errors import UserError, named

SAVED = ("state.json", "dataset_dict.json")  # one of these is in a folder that `save_to_disk` wrote


def read(path: str, reading: Reading) -> Iterator[list[str]]:
  """One document a record, in the order of the data set, whose rows stay on disk.

  PATH is a folder that the library's `save_to_disk` wrote, or whatever its `load_dataset` takes; SPLIT is train by
  default, and with `load_dataset` may be a slice: `hf:stanfordnlp/imdb:unsupervised`,
  `hf:roneneldan/TinyStories:train[:1%]`.

  Raises:
    UserError: the library is missing or refuses, or there is no such split or field.
  """
  def fault(got: object, fix: str) -> UserError:
    return UserError("A Hugging Face data set cannot be read", got=f"{path}: {got}", fix=fix,
                     allowed="hf:PATH[:SPLIT], for example hf:stanfordnlp/imdb:unsupervised or hf:/saved/folder")

  source, _, split = path.removeprefix("hf:").partition(":")
  if not source:
    raise fault("no path", "name a data set")
  try:
    import datasets
  except Exception as error:  # a broken installation raises anything
    raise fault(f"{type(error).__name__}: {error}", "pip install datasets") from error
  folder = os.path.expanduser(source)
  try:
    if any(os.path.exists(os.path.join(folder, name)) for name in SAVED):
      saved = datasets.load_from_disk(folder)
      if not isinstance(saved, dict) and split not in ("", "train", str(saved.split)):
        raise ValueError("the folder holds one data set without splits")
      dataset = saved[split or "train"] if isinstance(saved, dict) else saved
    elif os.path.isdir(folder) and glob.has_magic(os.path.abspath(folder)):
      raise ValueError("the library takes [ ] * ? for a pattern; rename the folder, or link to it")
    else:
      dataset = datasets.load_dataset(folder if os.path.isdir(folder) else source, split=split or "train")
  except Exception as error:  # the library and those below it raise dozens of types
    raise fault(f"{type(error).__name__}: {str(error).strip()[:200]}", "check path, split and the network") from error
  if reading.text_field not in dataset.column_names:
    raise fault(f'no field "{reading.text_field}"; its fields are {named(dataset.column_names)}',
                "name the one that holds the text: --config.data.text_field=...")
  records = enumerate(dataset.select_columns([reading.text_field]), 1)
  return reading.documents((f"{path}: record {number}", record) for number, record in records)
