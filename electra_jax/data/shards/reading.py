"""Random access to packed examples: memory-mapped shards, each block checked when it is first read."""

import os
import resource
import zlib

import numpy as np
from jaxtyping import Int32, Int64, Integer
from ml_collections import ConfigDict

from electra_jax.data.examples import NO_NSP
from electra_jax.data.shards import manifest as manifest_lib
from electra_jax.data.shards import preparation, writing
from electra_jax.data.shards.manifest import REBUILD, read_manifest
from electra_jax.data.shards.writing import MANIFEST
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError


def open_shards(directory: str, split: str, config_data: ConfigDict | None = None,
                tokenizer: Tokenizer | None = None) -> "ShardedExamples":
  """Opens one split ("train" or "heldout") for random access; checks that it fits config and tokenizer, if given.

  File sizes are checked at once, the checksum of each block of a file when it is first read from.

  Raises:
    UserError: missing, damaged or truncated shards, or shards that were made for another config or tokenizer.
  """
  manifest = read_manifest(directory)
  if config_data is not None:
    manifest_lib.check_packing(manifest["packing"], config_data, directory)
  if tokenizer is not None and manifest["tokenizer"]["fingerprint"] != tokenizer.fingerprint:
    raise UserError("The shards were made with another tokenizer",
                    got=f"fingerprint {tokenizer.fingerprint[:12]} of the tokenizer, "
                        f"{manifest['tokenizer']['fingerprint'][:12]} in {os.path.join(directory, MANIFEST)}",
                    allowed="the tokenizer that the shards were made with",
                    fix=f"set --config.data.tokenizer.path to it, or {REBUILD}")
  return ShardedExamples(directory, manifest, split)


class ShardedExamples:
  """Random access to the examples of one split; safe to use from several threads.

  Attributes:
    sequence_length: tokens per row.
    pad_id: fills a row after its tokens.
    has_nsp_labels: whether the examples are pairs for next sentence prediction.
  """

  def __init__(self, directory: str, manifest: dict, split: str):
    self.sequence_length: int = manifest["packing"]["sequence_length"]
    self.pad_id: int = manifest["tokenizer"]["pad_id"]
    self.has_nsp_labels: bool = manifest["version"] == 2
    self._columns = preparation.HEADER_COLUMNS + self.has_nsp_labels
    self._special_ids = manifest["tokenizer"]["special_ids"]
    self._shard_examples: int = manifest["shard_examples"]
    self._dtype = manifest_lib.row_dtype(manifest["tokenizer"]["vocab_size"], self.sequence_length)
    self._directory, self._entry = directory, manifest["splits"][split]
    self._shards: list[dict] = [dict(shard, path=os.path.join(directory, shard["file"]))
                                for shard in self._entry["shards"]]
    self._length: int = self._entry["examples"]
    self._rows: list[np.ndarray | None] = [None] * len(self._shards)  # two threads may map a shard at once: no harm
    self._row_bytes = (self._columns + self.sequence_length) * self._dtype.itemsize
    self._headers = np.array([shard["bytes"] - shard["examples"] * self._row_bytes for shard in self._shards], np.int64)
    self._blocks_per_shard = max((len(shard["block_crc32"]) for shard in self._shards), default=0)
    self._is_sound = np.zeros(len(self._shards) * self._blocks_per_shard, bool)  # whether a block has been checked
    for shard in self._shards:
      _check_size(shard)
    _allow_open_files(len(self._shards))

  def _check_rows(self, shard_of: np.ndarray, row_of: np.ndarray) -> None:
    start = self._headers[shard_of] + row_of * self._row_bytes
    blocks = np.concatenate([start, start + self._row_bytes - 1]) // writing.CHECK_BYTES
    blocks += np.tile(shard_of * self._blocks_per_shard, 2)
    for block in np.unique(blocks[~self._is_sound[blocks]]).tolist():
      number, block_of_shard = divmod(block, self._blocks_per_shard)
      _check(self._shards[number], block_of_shard)
      self._is_sound[block] = True

  def __len__(self) -> int:
    return self._length

  def read(self, example_ids: Int64[np.ndarray, "batch"]) -> tuple[
      Int32[np.ndarray, "batch length"], Int32[np.ndarray, "batch"], Int32[np.ndarray, "batch"]]:
    """(input_ids, num_tokens, second_segment_start) of examples, in the order asked for.

    Raises:
      IndexError: an id is negative or not below len(self).
      UserError: a part of a shard that is read for the first time is damaged.
    """
    rows = self._read_rows(example_ids, slice(None))
    header = rows[:, :self._columns].astype(np.int32)
    return rows[:, self._columns:].astype(np.int32), header[:, 0], header[:, 1]

  def nsp_labels(self, example_ids: Int64[np.ndarray, "batch"]) -> Int32[np.ndarray, "batch"]:
    """0 if segment B follows A in the text, 1 if it is another document's, -1 for formats without NSP.

    Raises:
      IndexError, UserError: as `read`.
    """
    if not self.has_nsp_labels:
      return np.full(len(example_ids), NO_NSP, np.int32)
    return self._read_rows(example_ids, slice(2, 3))[:, 0].astype(np.int32)

  def lengths(self) -> Integer[np.ndarray, "examples"]:
    """num_tokens of every example, in order of ids; a view of the file, not a copy.

    Raises:
      UserError: the file is damaged.
    """
    file = self._entry["lengths"]
    file = dict(file, path=os.path.join(self._directory, file["file"]))
    _check_size(file)
    _check(file)
    return np.asarray(np.load(file["path"], mmap_mode="r" if self._length else None))

  def _read_rows(self, example_ids: np.ndarray, columns: slice) -> np.ndarray:
    if len(example_ids) and not 0 <= example_ids.min() <= example_ids.max() < self._length:
      raise IndexError(f"example ids must lie in [0, {self._length})")
    width = len(range(self._columns + self.sequence_length)[columns])
    rows = np.empty((len(example_ids), width), self._dtype)
    shard_of, row_of = np.divmod(example_ids, self._shard_examples)
    self._check_rows(shard_of, row_of)
    by_shard = np.argsort(shard_of, kind="stable")
    starts = np.flatnonzero(np.diff(shard_of[by_shard], prepend=-1))
    for group in np.split(by_shard, starts[1:]) if len(by_shard) else ():
      rows[group] = self._shard(int(shard_of[group[0]]))[row_of[group], columns]
    return rows

  def token_counts(self, vocab_size: int, max_examples: int = 0) -> Int64[np.ndarray, "vocab"]:
    """How often each ordinary id occurs in the first `max_examples` (0 = all); 0 for special ones and padding."""
    counts = np.zeros(vocab_size, np.int64)
    number = min(max_examples or len(self), len(self))
    for start in range(0, number, 4096):
      ids, *_ = self.read(np.arange(start, min(start + 4096, number)))
      counts += np.bincount(ids.ravel(), minlength=vocab_size)
    counts[self._special_ids] = 0
    return counts

  def _shard(self, number: int) -> np.ndarray:
    rows = self._rows[number]
    if rows is None:
      shape = self._shards[number]["examples"], self._columns + self.sequence_length
      mapped = np.memmap(self._shards[number]["path"], self._dtype, "r", int(self._headers[number]), shape)
      rows = self._rows[number] = np.asarray(mapped)  # memmap's own indexing is several times slower
    return rows


def _check_size(shard: dict) -> None:
  try:
    size = os.path.getsize(shard["path"])
  except OSError as error:
    raise _damaged(shard, error.strerror) from error
  if size != shard["bytes"]:
    raise _damaged(shard, f"{size:,} bytes, {MANIFEST} says {shard['bytes']:,}")


def _check(file: dict, *blocks: int) -> None:
  """Compares blocks of a file (by default all) with their checksums."""
  try:
    with open(file["path"], "rb") as content:
      for block in blocks or range(len(file["block_crc32"])):
        content.seek(block * writing.CHECK_BYTES)
        crc, recorded = zlib.crc32(content.read(writing.CHECK_BYTES)), file["block_crc32"][block]
        if crc != recorded:
          raise _damaged(file, f"CRC-32 {crc:08x} of block {block}, {MANIFEST} says {recorded:08x}")
  except OSError as error:
    raise _damaged(file, error.strerror) from error


def _damaged(shard: dict, got: object) -> UserError:
  return UserError("A shard is damaged", got=f"{shard['path']}: {got}", allowed=f"the file that {MANIFEST} describes",
                   fix=f"copy the folder again, check its disk, or {REBUILD}")


def _allow_open_files(number: int) -> None:
  """Raises the soft limit of open files if the shards need it: each memory map holds one."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  needed = number + 512  # the rest of the program opens files too
  if soft != resource.RLIM_INFINITY and soft < needed:
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
