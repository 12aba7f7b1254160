"""Journal of a preparation: what an unfinished set of shards already holds, so that it resumes after a kill.

After each finished shard the file `journal.npz` of the unfinished set gets the counts so far, the list of shards, and
the rows that wait for the next one. A later preparation of the same corpus for the same configuration reads the text
again, which is fast, and packs what the finished shards lack; these are not touched. The journal is removed when the
set is complete, so nothing in the result shows that there was a kill.
"""

import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from electra_jax.data.shards import preparation, writing
from electra_jax.data.shards.manifest import PACKING_KEYS, SPLITS
from electra_jax.data.tokenizers.base import Tokenizer

VERSION = 3  # to be raised when the same configuration gives other rows, or this file takes another form

# Keys of config.data that decide which rows there are, besides PACKING_KEYS.
JOB_KEYS = ("path", "text_field", "text_format", "on_bad_record", "max_documents", "shard_examples")


@dataclasses.dataclass
class Packed:
  """What has been packed so far."""

  num_chunks: int = 0
  checksum: int = 0  # of their text: a corpus that has changed is prepared anew
  seconds: float = 0.0  # taken by earlier runs
  counts: dict[str, Counter] = dataclasses.field(default_factory=lambda: {split: Counter() for split in SPLITS})
  unknown_words: Counter = dataclasses.field(default_factory=Counter)  # the most frequent ones, nearly exact counts

  def add(self, packed: preparation.Packed) -> None:
    """Counts one more chunk."""
    self.num_chunks += 1
    self.checksum = join_checksums(self.checksum, packed.checksum)
    self.counts[packed.split].update(packed.counts)
    self.unknown_words.update(packed.unknown_words)
    if len(self.unknown_words) > 10 * preparation.MAX_UNKNOWN_WORDS:
      self.unknown_words = Counter(dict(self.unknown_words.most_common(preparation.MAX_UNKNOWN_WORDS)))


def join_checksums(before: int, checksum: int) -> int:
  """The checksum of a list of chunks with one more at its end; the order counts.

  >>> join_checksums(join_checksums(0, 1), 2) == join_checksums(join_checksums(0, 2), 1)
  False
  """
  return (before * 1_000_003 + checksum) % 2**64


def describe(config_data: ConfigDict, tokenizer: Tokenizer, seed: int) -> dict:
  """What a set is made from, as JSON; two preparations of equal descriptions and equal text give equal files."""
  job = {key: config_data[key] for key in (*PACKING_KEYS[config_data.format], *JOB_KEYS)}
  chunks = [preparation.CHUNK_CHARACTERS, preparation.LENDER_CHARACTERS]
  return job | {"seed": seed, "tokenizer": tokenizer.fingerprint, "chunks": chunks, "version": VERSION}


class Journal:
  """Writes packed chunks, and notes after each finished shard what is done.

  Attributes:
    writers: split -> SplitWriter.
    progress: what has been written, by earlier runs too.
    started: of this run, by time.monotonic.
  """

  def __init__(self, partial: str, job: dict, shard_examples: int, dtype: np.dtype):
    self._partial, self._job, self.started, self.progress = partial, job, time.monotonic(), Packed()
    self.writers = {split: writing.SplitWriter(os.path.join(partial, split), shard_examples, dtype) for split in SPLITS}

  def skip_done(self, read_chunks: Callable[[], Iterator[preparation.Chunk]]) -> Iterator[preparation.Chunk]:
    """The chunks after those that an earlier run has written; all if there was none, or its text was another."""
    if saved := self._load():
      progress, files, rows = saved
      chunks, checksum = read_chunks(), 0
      for chunk in itertools.islice(chunks, progress.num_chunks):
        checksum = join_checksums(checksum, preparation.text_checksum(chunk))
      if checksum == progress.checksum:
        print(f"Resuming after {sum(map(len, files.values()))} finished shards of a preparation that ended early.",
              flush=True)
        self.progress = progress
        for split, writer in self.writers.items():
          writer.restore(files[split], rows[split])
        return chunks
      print("The corpus has changed since a preparation that ended early: starting anew.", flush=True)
    remove(self._partial)
    for split in SPLITS:
      shutil.rmtree(os.path.join(self._partial, split), ignore_errors=True)
    return read_chunks()

  def write(self, packed: preparation.Packed) -> None:
    """Counts a chunk and writes its rows."""
    self.progress.add(packed)
    writer = self.writers[packed.split]
    num_shards = len(writer.files)
    writer.add(packed.rows)
    if len(writer.files) > num_shards:
      self._save()

  def total(self, name: str) -> int:
    """A count of both splits."""
    return sum(self.progress.counts[split][name] for split in SPLITS)

  def seconds(self) -> float:
    """Time taken by this run and earlier ones."""
    return self.progress.seconds + time.monotonic() - self.started

  def _save(self) -> None:
    """Notes what is finished, atomically, after a shard has reached the disk."""
    path, done = path_in(self._partial), self.progress
    state = vars(done) | {"job": self._job, "seconds": self.seconds(),
                          "files": {split: writer.files for split, writer in self.writers.items()}}
    rows: dict[str, Any] = {split: writer.waiting for split, writer in self.writers.items()}
    with writing.disk_errors(path):
      with open(f"{path}.new", "wb") as file:
        np.savez(file, state=json.dumps(state), **rows)  # not flushed: if a power cut damages it, all starts anew
      os.replace(f"{path}.new", path)

  def _load(self) -> tuple[Packed, dict[str, list[dict]], dict[str, np.ndarray]] | None:
    """(progress, finished shards, rows that wait); None if there are none of this job, or they are not as noted."""
    try:
      with np.load(path_in(self._partial)) as saved:
        state, rows = json.loads(str(saved["state"])), {split: saved[split] for split in SPLITS}
      files = state["files"]
      if state["job"] != self._job or any(
          os.path.getsize(os.path.join(self._partial, file["file"])) != file["bytes"]
          for split in SPLITS for file in files[split]):
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
      return None
    counts = {split: Counter(counts) for split, counts in state["counts"].items()}
    progress = Packed(state["num_chunks"], state["checksum"], state["seconds"], counts,
                      Counter(state["unknown_words"]))
    return progress, files, rows


def path_in(partial: str) -> str:
  """The journal of an unfinished set, which exists once a shard is finished."""
  return os.path.join(partial, "journal.npz")


def remove(partial: str) -> None:
  """Ends the journal of a set that is complete."""
  with writing.disk_errors(partial):
    pathlib.Path(path_in(partial)).unlink(missing_ok=True)
