"""How do packed examples live on disk, and how is one read? Checksummed, memory-mapped shards with a manifest.

A directory holds `manifest.json` and, for each split, `train/00000.npy ...`: integer arrays [examples, 2 + length]
with the columns num_tokens, second_segment_start, ids. All shards of a split but the last have the same size, so an
example id gives file and row at once. A directory appears complete or not at all.
"""

import json
import os
import resource
import shutil
import threading
import time
import zlib
from collections import Counter

import numpy as np
from jaxtyping import Int32, Int64
from tqdm import tqdm

from electra_jax.data import documents, preparation, shard_files
from electra_jax.data.shard_files import MANIFEST
from electra_jax.errors import UserError

VERSION = 1  # of the layout; a reader refuses any other
SPLITS = ("train", "heldout")
# The keys of config.data that decide what the rows hold, by format.
PACKING_KEYS = {
  "ELECTRA": ("format", "sequence_length", "single_segment_share", "short_sequence_share", "heldout_share"),
  "FULL-SENTENCES": ("format", "sequence_length", "heldout_share"),
}
REBUILD = "rebuild them with `python -m electra_jax.tools.prepare_data`"
CHECK_BYTES = 1 << 20  # of a shard that are read at once for its checksum


# ---- writing ----


def prepare(config_data, tokenizer, directory: str, seed: int, progress: bool = True) -> dict:
  """Reads `config_data.path`, tokenizes, packs and writes both splits; returns the manifest.

  The files depend on text, tokenizer, packing keys and seed, not on `num_workers`. They are written beside the
  directory and moved into place at the end; shards that were there before are replaced only then.

  Args:
    config_data: the config.data branch.
    tokenizer: must survive pickling when `num_workers` is above 1: it travels to the worker processes.
    seed: of the draws of the ELECTRA format.

  Raises:
    UserError: the corpus is unreadable or has no token, the disk is full or not writable, or `directory` holds
      something else than shards.
  """
  directory = os.path.abspath(directory)
  shard_files.check_replaceable(directory)
  started = time.monotonic()
  corpus = documents.read_documents(config_data.path, config_data.text_field, config_data.max_documents)
  chunks = preparation.make_chunks(preparation.split_documents(corpus, config_data.heldout_share))
  job = preparation.make_job(config_data, tokenizer, seed)
  partial = shard_files.make_partial_directory(directory)
  try:
    dtype = _row_dtype(tokenizer.vocab_size, config_data.sequence_length)
    writers = {split: shard_files.SplitWriter(os.path.join(partial, split), config_data.shard_examples, dtype)
               for split in SPLITS}
    counts = {split: Counter() for split in SPLITS}
    with tqdm(desc="preparing shards", unit="B", unit_scale=True, total=_corpus_bytes(config_data.path),
              disable=not progress, mininterval=0.5) as bar:
      for packed in preparation.pack_corpus(chunks, job, config_data.num_workers):
        writers[packed.split].add(packed.rows)
        counts[packed.split].update(packed.counts)
        _advance(bar, packed.counts["text_bytes"], counts, started)
    files = {split: writer.finish() for split, writer in writers.items()}
    if not counts["train"]["examples"]:
      raise UserError("The corpus is too small for a single training example",
                      got=f"{config_data.path}: {counts['train']['documents']} documents without a token",
                      allowed="text with at least one token", fix="check --config.data.path and the tokenizer")
    manifest = _manifest(config_data, tokenizer, seed, files, counts, time.monotonic() - started)
    path = os.path.join(partial, MANIFEST)
    with shard_files.disk_errors(path), open(path, "w", encoding="utf-8") as file:
      json.dump(manifest, file, indent=2)
    shard_files.move_into_place(partial, directory)
  finally:
    shutil.rmtree(partial, ignore_errors=True)
  return manifest


def _row_dtype(vocab_size: int, sequence_length: int) -> type:
  return np.uint16 if max(vocab_size - 1, sequence_length) < 1 << 16 else np.int32


def _corpus_bytes(path: str) -> int | None:
  """Bytes to read, for the progress bar's ETA; unknown for the embedded corpus and for compressed files."""
  if path.startswith(tuple(documents.SOURCES)):
    return None
  files = documents.find_files(path)
  compressed = any(file.endswith(tuple(documents.COMPRESSIONS)) for file in files)
  return None if compressed else sum(map(os.path.getsize, files))


def _advance(bar: tqdm, text_bytes: int, counts: dict[str, Counter], started: float) -> None:
  total = counts["train"] + counts["heldout"]
  speed = total["tokens"] / max(time.monotonic() - started, 1e-9)
  bar.set_postfix_str(f"{total['documents']:,} documents, {speed:,.0f} tokens/s", refresh=False)
  bar.update(text_bytes)


def _manifest(config_data, tokenizer, seed, files, counts, seconds) -> dict:
  """Everything that a reader checks, and the statistics of each split."""
  splits, statistics = {}, {"seconds": round(seconds, 3)}
  for split in SPLITS:
    splits[split] = {"examples": counts[split]["examples"], "shards": files[split]}
    numbers = {name: counts[split][name] for name in
               ("documents", "paragraphs", "text_bytes", "tokens", "unknown_tokens", "dropped_tokens", "examples")}
    positions = counts[split]["examples"] * config_data.sequence_length
    numbers["padding_share"] = round(1 - counts[split]["filled_positions"] / positions, 6) if positions else 0.0
    statistics[split] = numbers
  return {
    "version": VERSION, "packing": {key: config_data[key] for key in PACKING_KEYS[config_data.format]},
    "seed": seed, "source": config_data.path, "shard_examples": config_data.shard_examples,
    "tokenizer": {"kind": tokenizer.kind, "fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size,
                  "pad_id": tokenizer.pad_id, "special_ids": sorted(tokenizer.special_ids)},
    "splits": splits, "statistics": statistics,
  }


# ---- reading ----


def exist(directory: str) -> bool:
  """Whether a complete set of shards stands there (a set appears complete or not at all)."""
  return os.path.isfile(os.path.join(directory, MANIFEST))


def read_manifest(directory: str) -> dict:
  """The manifest of a directory of shards.

  Raises:
    UserError: it is missing, broken, or of another version.
  """
  path = os.path.join(directory, MANIFEST)

  def fault(what, got):
    return UserError(what, got=got, allowed=f"a folder of shards with a {MANIFEST} of version {VERSION}",
                     fix=f"check --config.data.shards_path, or {REBUILD}")

  try:
    with open(path, encoding="utf-8") as file:
      manifest = json.load(file)
  except OSError as error:
    raise fault("There are no shards", f"{path}: {error.strerror or error}") from error
  except ValueError as error:
    raise fault("The shards' manifest is damaged", f"{path}: {error}") from error
  version = manifest.get("version") if isinstance(manifest, dict) else None
  if version != VERSION:
    raise fault("The shards' manifest has another version", f"{path}: version {version!r}")
  try:
    _check_fields(manifest)
  except (KeyError, TypeError, ValueError) as error:
    raise fault("The shards' manifest is damaged", f"{path}: {error!r}") from error
  return manifest


def _check_fields(manifest: dict) -> None:
  """Touches every field that reading relies on; a KeyError, TypeError or ValueError tells which one is broken."""
  packing, tokenizer = manifest["packing"], manifest["tokenizer"]
  _row_dtype(tokenizer["vocab_size"], packing["sequence_length"])
  np.array([tokenizer["pad_id"], *tokenizer["special_ids"]], np.int64)
  for name, value in (("format", packing["format"]), ("fingerprint", tokenizer["fingerprint"])):
    if not isinstance(value, str):
      raise ValueError(f"{name} is {value!r}")
  for split in SPLITS:
    shards = manifest["splits"][split]["shards"]
    sizes = [shard["examples"] for shard in shards]
    if sum(sizes) != manifest["splits"][split]["examples"] or set(sizes[:-1]) - {manifest["shard_examples"]}:
      raise ValueError(f"the shards of {split} have {sizes} examples")
    for shard in shards:
      os.path.join(shard["file"], f"{shard['bytes']:d} {shard['crc32']:d}")


def open_shards(directory: str, split: str, config_data=None, tokenizer=None) -> "ShardedExamples":
  """Opens one split ("train" or "heldout") for random access; checks that it fits config and tokenizer, if given.

  File sizes are checked at once, each file's checksum when it is first read from.

  Raises:
    UserError: missing, damaged or truncated shards, or shards that were made for another config or tokenizer.
  """
  manifest = read_manifest(directory)
  if config_data is not None:
    _check_packing(manifest["packing"], config_data, directory)
  if tokenizer is not None and manifest["tokenizer"]["fingerprint"] != tokenizer.fingerprint:
    raise UserError("The shards were made with another tokenizer",
                    got=f"fingerprint {tokenizer.fingerprint[:12]} of the tokenizer, "
                        f"{manifest['tokenizer']['fingerprint'][:12]} in {os.path.join(directory, MANIFEST)}",
                    allowed="the tokenizer that the shards were made with",
                    fix=f"set --config.data.tokenizer.path to it, or {REBUILD}")
  return ShardedExamples(directory, manifest, split)


def _check_packing(packed: dict, config_data, directory: str) -> None:
  differing = [key for key in PACKING_KEYS[config_data.format] if packed.get(key) != config_data[key]]
  if not differing:
    return
  lines = "; ".join(f"data.{key} is {config_data[key]!r} but the shards in {directory} were packed with "
                    f"{packed.get(key)!r}" for key in differing)
  flags = " ".join(f"--config.data.{key}={packed[key]}" for key in differing if key in packed)
  raise UserError("The shards were packed for another configuration", got=f"{lines} ({MANIFEST})",
                  allowed="the values that the shards were packed with",
                  fix=REBUILD + (f", or set {flags}" if flags else ""))


class ShardedExamples:
  """Random access to the examples of one split; safe to use from several threads.

  Attributes:
    sequence_length: tokens per row.
    pad_id: what fills a row behind its tokens.
  """

  def __init__(self, directory: str, manifest: dict, split: str):
    self.sequence_length: int = manifest["packing"]["sequence_length"]
    self.pad_id: int = manifest["tokenizer"]["pad_id"]
    self._special_ids = manifest["tokenizer"]["special_ids"]
    self._length: int = manifest["splits"][split]["examples"]
    self._shard_examples: int = manifest["shard_examples"]
    self._dtype = _row_dtype(manifest["tokenizer"]["vocab_size"], self.sequence_length)
    self._shards = [dict(shard, path=os.path.join(directory, shard["file"]))
                    for shard in manifest["splits"][split]["shards"]]
    self._rows: list[np.ndarray | None] = [None] * len(self._shards)
    self._lock = threading.Lock()
    for shard in self._shards:
      _check_size(shard)
    _allow_open_files(len(self._shards))

  def __len__(self) -> int:
    return self._length

  def read(self, example_ids: Int64[np.ndarray, "batch"]) -> tuple[
      Int32[np.ndarray, "batch length"], Int32[np.ndarray, "batch"], Int32[np.ndarray, "batch"]]:
    """(input_ids, num_tokens, second_segment_start) of examples, in the order asked for.

    Raises:
      IndexError: an id is negative or not below len(self).
      UserError: a shard that is touched for the first time is damaged.
    """
    if len(example_ids) and not 0 <= example_ids.min() <= example_ids.max() < self._length:
      raise IndexError(f"example ids must lie in [0, {self._length})")
    rows = np.empty((len(example_ids), preparation.HEADER_COLUMNS + self.sequence_length), self._dtype)
    shard_of, row_of = np.divmod(example_ids, self._shard_examples)
    by_shard = np.argsort(shard_of, kind="stable")
    starts = np.flatnonzero(np.diff(shard_of[by_shard], prepend=-1))
    for group in np.split(by_shard, starts[1:]) if len(by_shard) else ():
      rows[group] = self._shard(int(shard_of[group[0]]))[row_of[group]]
    header = rows[:, :preparation.HEADER_COLUMNS].astype(np.int32)
    return rows[:, preparation.HEADER_COLUMNS:].astype(np.int32), header[:, 0], header[:, 1]

  def token_counts(self, vocab_size: int) -> Int64[np.ndarray, "vocab"]:
    """How often each id stands at a position that is neither special nor padding."""
    counts = np.zeros(vocab_size, np.int64)
    for number in range(len(self._shards)):
      ids = self._shard(number)[:, preparation.HEADER_COLUMNS:]
      counts += np.bincount(ids.ravel(), minlength=vocab_size)
    counts[self._special_ids] = 0
    return counts

  def _shard(self, number: int) -> np.ndarray:
    rows = self._rows[number]
    if rows is None:
      with self._lock:
        if self._rows[number] is None:
          _check_crc(self._shards[number])
          # A plain array over the map: memmap's own indexing is several times slower.
          self._rows[number] = np.asarray(np.load(self._shards[number]["path"], mmap_mode="r"))
        rows = self._rows[number]
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


def _damaged(shard: dict, got: str) -> UserError:
  return UserError("A shard is damaged", got=f"{shard['path']}: {got}", allowed=f"the file that {MANIFEST} describes",
                   fix=f"copy the folder again, check its disk, or {REBUILD}")


def _allow_open_files(number: int) -> None:
  """Raises the soft limit of open files where many shards need it: each memory map holds one."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  needed = number + 512  # the rest of the program opens files too
  if soft != resource.RLIM_INFINITY and soft < needed:
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
