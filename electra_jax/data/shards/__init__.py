"""Packed examples on disk: checksummed, memory-mapped shards with a manifest.

A directory holds `manifest.json` and, for each split, `train/00000.npy ...`: integer arrays [examples, 2 + length]
with the columns num_tokens, second_segment_start, (of formats with NSP: nsp_label,) ids; and `train/lengths.npy`, the
first column alone. All shards of a split but the last have the same size, so an example id gives file and row at once.
A directory appears complete or not at all.
"""

import json
import os
import resource
import shutil
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int32, Int64, Integer
from tqdm import tqdm

from electra_jax.data.examples import NO_NSP
from electra_jax.data.packing import NSP_FORMATS
from electra_jax.data.shards import journal, preparation, writing
from electra_jax.data.shards import manifest as manifest_lib
from electra_jax.data.shards.manifest import REBUILD, SPLITS, exist, read_manifest
from electra_jax.data.shards.writing import MANIFEST
from electra_jax.data.sources import documents, provenance
from electra_jax.errors import UserError, listed

__all__ = ["SPLITS", "ShardedExamples", "exist", "open_shards", "prepare", "read_manifest"]

CHECK_BYTES = 1 << 20  # of a shard that are read at once for its checksum


# ---- writing ----


def prepare(config_data, tokenizer, directory: str, seed: int, progress: bool = True) -> dict:
  """Reads `config_data.path`, tokenizes, packs and writes both splits; returns the manifest.

  The files depend on text, tokenizer, packing keys and seed, not on `num_workers`. They are written beside the
  directory and moved into place at the end; shards that were there before are replaced only then. After a kill, an
  interrupt or an error the same call goes on behind the last finished shard (`journal`); only where the disk refused
  is everything unfinished given back at once.

  Args:
    config_data: the config.data branch.
    tokenizer: must survive pickling when `num_workers` is above 1: it travels to the worker processes.
    seed: of the draws of the formats.

  Raises:
    UserError: the corpus is unreadable, has no token or, for NSP, no second document; the disk is full or not
      writable; or `directory` holds something else than shards.
  """
  directory = os.path.abspath(directory)
  writing.check_replaceable(directory)
  job = journal.describe(config_data, tokenizer, seed)
  source = provenance.describe(config_data)
  if source["left_out"]:
    print(f"Hidden files and folders are left out: {listed(source['left_out'], most=5)}", flush=True)
  partial = writing.make_partial_directory(directory, is_ours=lambda found: journal.is_of(found, job))
  is_kept = False
  try:
    manifest = _write_splits(config_data, tokenizer, partial, seed, job, source, progress)
    path = os.path.join(partial, MANIFEST)
    with writing.disk_errors(path), open(path, "w", encoding="utf-8") as file:
      json.dump(manifest, file, indent=2)
    journal.remove(partial)
    writing.move_into_place(partial, directory)
  except writing.DiskError:
    raise
  except BaseException:
    is_kept = journal.has_finished_shard(partial)  # the same command goes on from there
    raise
  finally:
    if not is_kept:
      shutil.rmtree(partial, ignore_errors=True)
  if warning := manifest_lib.unknown_warning(manifest):
    print(warning, flush=True)
  return manifest


def _write_splits(config_data, tokenizer, partial: str, seed: int, job: dict, source: dict,
                  show_progress: bool) -> dict:
  """Writes the shards of both splits, or the rest of them, and returns the manifest."""
  skipped, packing_job = Counter(), preparation.make_job(config_data, tokenizer, seed)
  dtype = manifest_lib.row_dtype(tokenizer.vocab_size, config_data.sequence_length)

  def read_chunks() -> Iterator[preparation.Chunk]:
    skipped.clear()
    corpus = documents.read_corpus(config_data, skipped)
    return preparation.make_chunks(documents.split_documents(corpus, config_data.heldout_share),
                                   for_nsp=config_data.format in NSP_FORMATS)

  log = journal.Journal(partial, job, config_data.shard_examples, dtype)
  chunks = log.skip_done(read_chunks)
  before = log.total("tokens")
  with tqdm(desc="preparing shards", unit="B", unit_scale=True, total=documents.corpus_bytes(config_data.path),
            disable=None if show_progress else True, mininterval=0.5, initial=log.total("text_bytes")) as bar:
    for packed in preparation.pack_corpus(chunks, packing_job, config_data.num_workers):
      log.write(packed)
      speed = (log.total("tokens") - before) / max(time.monotonic() - log.started, 1e-9)
      bar.set_postfix_str(f"{log.total('documents'):,} documents, {speed:,.0f} tokens/s", refresh=False)
      bar.update(packed.counts["text_bytes"])
  done = log.progress
  if not done.counts["train"]["examples"]:
    raise UserError("The corpus is too small for a single training example",
                    got=f"{config_data.path}: {done.counts['train']['documents']} documents without a token",
                    allowed="text with at least one token", fix="check --config.data.path and the tokenizer")
  lengths = {split: done.lengths.get(split, np.zeros(0, np.int64)) for split in SPLITS}
  splits = {split: writer.finish() for split, writer in log.writers.items()}
  return manifest_lib.make(config_data, tokenizer, seed, splits, done.counts, lengths, skipped, log.seconds(),
                           done.unknown_words, source | {"checksum": f"{done.checksum:016x}"})


# ---- reading ----


def open_shards(directory: str, split: str, config_data=None, tokenizer=None) -> "ShardedExamples":
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
    pad_id: what fills a row behind its tokens.
    has_nsp_labels: whether the examples are pairs for next sentence prediction.
  """

  def __init__(self, directory: str, manifest: dict, split: str):
    self.sequence_length: int = manifest["packing"]["sequence_length"]
    self.pad_id: int = manifest["tokenizer"]["pad_id"]
    self._columns = manifest_lib.VERSIONS[manifest["version"]]
    self.has_nsp_labels: bool = self._columns == preparation.NSP_HEADER_COLUMNS
    self._special_ids = manifest["tokenizer"]["special_ids"]
    self._length: int = manifest["splits"][split]["examples"]
    self._shard_examples: int = manifest["shard_examples"]
    self._dtype = manifest_lib.row_dtype(manifest["tokenizer"]["vocab_size"], self.sequence_length)
    self._shards: list[dict] = [dict(shard, path=os.path.join(directory, shard["file"]))
                    for shard in manifest["splits"][split]["shards"]]
    self._lengths = manifest["splits"][split].get("lengths")
    if self._lengths:
      self._lengths = dict(self._lengths, path=os.path.join(directory, self._lengths["file"]))
    self._rows: list[np.ndarray | None] = [None] * len(self._shards)
    self._lock = threading.Lock()
    self._start_checks()
    for shard in self._shards:
      _check_size(shard)
    _allow_open_files(len(self._shards))

  def _start_checks(self) -> None:
    """Which blocks of which shard are known to be sound: none, or, without checksums of blocks, not even asked."""
    row_bytes = (self._columns + self.sequence_length) * np.dtype(self._dtype).itemsize
    self._row_bytes = row_bytes
    self._headers = np.array([shard["bytes"] - shard["examples"] * row_bytes for shard in self._shards], np.int64)
    counts = [-(-shard["bytes"] // writing.CHECK_BYTES) for shard in self._shards]
    self._has_blocks = row_bytes < writing.CHECK_BYTES and all(
      len(shard["block_crc32"]) == count for shard, count in zip(self._shards, counts))
    self._blocks_per_shard = max(counts, default=0)
    self._is_sound = np.full(len(self._shards) * self._blocks_per_shard, not self._has_blocks)

  def _check_rows(self, shard_of: np.ndarray, row_of: np.ndarray) -> None:
    start = self._headers[shard_of] + row_of * self._row_bytes
    blocks = np.concatenate([start, start + self._row_bytes - 1]) // writing.CHECK_BYTES
    blocks += np.tile(shard_of * self._blocks_per_shard, 2)
    for block in np.unique(blocks[~self._is_sound[blocks]]).tolist():
      self._check_block(*divmod(block, self._blocks_per_shard))

  def _check_block(self, number: int, block: int) -> None:
    shard = self._shards[number]
    try:
      with open(shard["path"], "rb") as file:
        file.seek(block * writing.CHECK_BYTES)
        crc = zlib.crc32(file.read(writing.CHECK_BYTES))
    except OSError as error:
      raise _damaged(shard, error.strerror) from error
    if crc != shard["block_crc32"][block]:
      raise _damaged(shard, f"CRC-32 {crc:08x} of block {block}, {MANIFEST} says {shard['block_crc32'][block]:08x}")
    self._is_sound[number * self._blocks_per_shard + block] = True

  def __len__(self) -> int:
    return self._length

  def read(self, example_ids: Int64[np.ndarray, "batch"]) -> tuple[
      Int32[np.ndarray, "batch length"], Int32[np.ndarray, "batch"], Int32[np.ndarray, "batch"]]:
    """(input_ids, num_tokens, second_segment_start) of examples, in the order asked for.

    Raises:
      IndexError: an id is negative or not below len(self).
      UserError: a part of a shard that is touched for the first time is damaged.
    """
    rows = self._read_rows(example_ids, slice(None))
    header = rows[:, :self._columns].astype(np.int32)
    return rows[:, self._columns:].astype(np.int32), header[:, 0], header[:, 1]

  def nsp_labels(self, example_ids: Int64[np.ndarray, "batch"]) -> Int32[np.ndarray, "batch"]:
    """0 where segment B follows A in the text, 1 where it is another document's; -1 for formats without NSP.

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
    if self._lengths:
      _check_size(self._lengths)
      _check_crc(self._lengths)
      return np.asarray(np.load(self._lengths["path"], mmap_mode="r" if self._length else None))
    columns = [self._shard(number)[:, 0] for number in range(len(self._shards))]  # shards from before that file
    return np.concatenate(columns).astype(np.int32) if columns else np.zeros(0, np.int32)

  def _read_rows(self, example_ids: np.ndarray, columns: slice) -> np.ndarray:
    if len(example_ids) and not 0 <= example_ids.min() <= example_ids.max() < self._length:
      raise IndexError(f"example ids must lie in [0, {self._length})")
    width = len(range(self._columns + self.sequence_length)[columns])
    rows = np.empty((len(example_ids), width), self._dtype)
    shard_of, row_of = np.divmod(example_ids, self._shard_examples)
    if self._has_blocks and len(example_ids):
      self._check_rows(shard_of, row_of)
    by_shard = np.argsort(shard_of, kind="stable")
    starts = np.flatnonzero(np.diff(shard_of[by_shard], prepend=-1))
    for group in np.split(by_shard, starts[1:]) if len(by_shard) else ():
      rows[group] = self._shard(int(shard_of[group[0]]))[row_of[group], columns]
    return rows

  def token_counts(self, vocab_size: int) -> Int64[np.ndarray, "vocab"]:
    """How often each id stands at a position that is neither special nor padding."""
    counts = np.zeros(vocab_size, np.int64)
    for number in range(len(self._shards)):
      if self._has_blocks:
        _check_crc(self._shards[number])
      ids = self._shard(number)[:, self._columns:]
      counts += np.bincount(ids.ravel(), minlength=vocab_size)
    counts[self._special_ids] = 0
    return counts

  def _shard(self, number: int) -> np.ndarray:
    rows = self._rows[number]
    if rows is None:
      with self._lock:
        rows = self._rows[number]
        if rows is None:
          if self._has_blocks:
            self._check_block(number, 0)  # the header
          else:
            _check_crc(self._shards[number])
          # A plain array over the map: memmap's own indexing is several times slower.
          rows = self._rows[number] = np.asarray(np.load(self._shards[number]["path"], mmap_mode="r"))
    return rows


def _check_size(shard: dict) -> None:
  try:
    size = os.path.getsize(shard["path"])
  except OSError as error:
    raise _damaged(shard, error.strerror) from error
  if size != shard["bytes"]:
    raise _damaged(shard, f"{size:,} bytes, {MANIFEST} says {shard['bytes']:,}")


def _check_crc(shard: dict) -> None:
  crc = 0
  try:
    with open(shard["path"], "rb") as file:
      while data := file.read(CHECK_BYTES):
        crc = zlib.crc32(data, crc)
  except OSError as error:
    raise _damaged(shard, error.strerror) from error
  if crc != shard["crc32"]:
    raise _damaged(shard, f"CRC-32 {crc:08x}, {MANIFEST} says {shard['crc32']:08x}")


def _damaged(shard: dict, got: object) -> UserError:
  return UserError("A shard is damaged", got=f"{shard['path']}: {got}", allowed=f"the file that {MANIFEST} describes",
                   fix=f"copy the folder again, check its disk, or {REBUILD}")


def _allow_open_files(number: int) -> None:
  """Raises the soft limit of open files where many shards need it: each memory map holds one."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  needed = number + 512  # the rest of the program opens files too
  if soft != resource.RLIM_INFINITY and soft < needed:
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
