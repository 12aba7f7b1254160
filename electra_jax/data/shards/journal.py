"""Journal of a preparation: what the unfinished shards hold already, so that it resumes after a kill.

After each finished shard the folder `journal/` of the unfinished set gets the counts so far, the list of shards, and
the rows that wait for the next one. A later preparation of the same corpus for the same configuration reads the text
again, which is fast, and packs what the finished shards lack; these are not touched. The journal goes when the set is
complete, so nothing in the result tells that there was a kill.
"""

import dataclasses
import json
import os
import shutil
import zipfile
from collections import Counter
from typing import Any

import numpy as np
from jaxtyping import Int64

from electra_jax.data.shards import preparation, writing
from electra_jax.data.shards.manifest import PACKING_KEYS, SPLITS

FOLDER = "journal"
JOB = "job.json"  # what the set is made from
STATE = "state.json"  # how far it is

VERSION = 2  # to be raised when the same configuration comes to give other rows, or this file another form

# Keys of config.data that decide which rows there are, besides PACKING_KEYS.
JOB_KEYS = ("path", "text_field", "text_format", "on_bad_record", "max_documents", "shard_examples")


@dataclasses.dataclass
class Progress:
  """What has been packed so far."""

  num_chunks: int = 0
  checksum: int = 0  # of their text: a corpus that has changed is prepared anew
  seconds: float = 0.0  # that earlier runs took
  counts: dict[str, Counter] = dataclasses.field(default_factory=lambda: {split: Counter() for split in SPLITS})
  lengths: dict[str, Int64[np.ndarray, "length_plus_1"]] = dataclasses.field(default_factory=dict)
  unknown_words: Counter = dataclasses.field(default_factory=Counter)  # the most frequent ones, nearly exact counts

  def add(self, packed: preparation.Packed) -> None:
    """Counts one more chunk."""
    self.num_chunks += 1
    self.checksum = join_checksums(self.checksum, packed.checksum)
    self.counts[packed.split].update(packed.counts)
    self.lengths[packed.split] = self.lengths.get(packed.split, 0) + packed.lengths
    self.unknown_words.update(packed.unknown_words)
    if len(self.unknown_words) > 10 * preparation.MAX_UNKNOWN_WORDS:
      self.unknown_words = Counter(dict(self.unknown_words.most_common(preparation.MAX_UNKNOWN_WORDS)))


def join_checksums(before: int, checksum: int) -> int:
  """The checksum of a list of chunks with one more at its end; the order counts.

  >>> join_checksums(join_checksums(0, 1), 2) == join_checksums(join_checksums(0, 2), 1)
  False
  """
  return (before * 1_000_003 + checksum) % 2**64


def describe(config_data, tokenizer, seed: int) -> dict:
  """What a set is made from, as JSON; two preparations of equal descriptions and equal text give equal files."""
  job = {key: config_data[key] for key in (*PACKING_KEYS[config_data.format], *JOB_KEYS)}
  chunks = [preparation.CHUNK_CHARACTERS, preparation.LENDER_CHARACTERS, preparation.MAX_CHUNKS_OF_ONE_DOCUMENT]
  return job | {"seed": seed, "tokenizer": tokenizer.fingerprint, "chunks": chunks, "version": VERSION}


def begin(partial: str, job: dict) -> None:
  """Opens the journal of a new, empty set."""
  folder = os.path.join(partial, FOLDER)
  with writing.disk_errors(folder):
    os.mkdir(folder)
    _write_json(os.path.join(folder, JOB), job)


def is_of(partial: str, job: dict) -> bool:
  """Whether an unfinished set is of this job and has a finished shard."""
  return os.path.exists(_state_path(partial)) and _read_json(os.path.join(partial, FOLDER, JOB)) == job


def has_finished_shard(partial: str) -> bool:
  """Whether it is worth to keep an unfinished set."""
  return os.path.exists(_state_path(partial))


def save(partial: str, progress: Progress, writers: dict[str, writing.SplitWriter], seconds: float) -> None:
  """Notes what is finished, atomically. Called after a shard has reached the disk."""
  folder = os.path.join(partial, FOLDER)
  name = f"waiting-{progress.num_chunks}.npz"
  state = {"num_chunks": progress.num_chunks, "checksum": progress.checksum, "seconds": seconds, "waiting": name,
           "counts": progress.counts, "unknown_words": progress.unknown_words,
           "lengths": {split: n.tolist() for split, n in progress.lengths.items()},
           "files": {split: writer.files for split, writer in writers.items()}}
  with writing.disk_errors(folder):
    rows: dict[str, Any] = {split: writer.waiting_rows() for split, writer in writers.items()}
    np.savez(os.path.join(folder, name), **rows)
    _write_json(_state_path(partial), state)
    for other in os.listdir(folder):
      if other.startswith("waiting-") and other != name:
        os.remove(os.path.join(folder, other))


def restore(partial: str, writers: dict[str, writing.SplitWriter]) -> Progress | None:
  """Puts the writers behind the finished shards of a set; None if there are none, or they are not as noted."""
  state = _read_json(_state_path(partial))
  if state is None:
    return None
  try:
    for split in SPLITS:
      for file in state["files"][split]:
        if os.path.getsize(os.path.join(partial, file["file"])) != file["bytes"]:
          return None
    with np.load(os.path.join(partial, FOLDER, state["waiting"])) as waiting:
      rows = {split: waiting[split] for split in SPLITS}
  except (OSError, ValueError, zipfile.BadZipFile):
    return None
  for split, writer in writers.items():
    writer.restore(state["files"][split], rows[split])
  return Progress(state["num_chunks"], state["checksum"], state["seconds"],
                  {split: Counter(counts) for split, counts in state["counts"].items()},
                  {split: np.array(lengths, np.int64) for split, lengths in state["lengths"].items()},
                  Counter(state["unknown_words"]))


def remove(partial: str) -> None:
  """Ends the journal of a set that is complete."""
  with writing.disk_errors(partial):
    shutil.rmtree(os.path.join(partial, FOLDER))


def _state_path(partial: str) -> str:
  return os.path.join(partial, FOLDER, STATE)


def _write_json(path: str, value: dict) -> None:
  with open(f"{path}.new", "w", encoding="utf-8") as file:
    json.dump(value, file)  # not flushed to the disk: what a power cut leaves of a journal is read, or starts anew
  os.replace(f"{path}.new", path)


def _read_json(path: str) -> dict | None:
  try:
    with open(path, encoding="utf-8") as file:
      return json.load(file)
  except (OSError, ValueError):
    return None
