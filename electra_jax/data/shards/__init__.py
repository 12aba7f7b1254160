"""Packed examples on disk: checksummed, memory-mapped shards with a manifest.

A directory holds `manifest.json` and, for each split, `train/00000.npy ...`: integer arrays [examples, 2 + length]
with the columns num_tokens, second_segment_start, (for formats with NSP: nsp_label,) ids; and `train/lengths.npy`, the
first column alone. All shards of a split but the last have the same size, so an example id gives file and row at once.
A directory appears complete or not at all.
"""

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator

from ml_collections import ConfigDict
from tqdm import tqdm

from electra_jax.data.packing import NSP_FORMATS
from electra_jax.data.shards import journal, preparation, writing
from electra_jax.data.shards import manifest as manifest_lib
from electra_jax.data.shards.manifest import SPLITS, exist, read_manifest
from electra_jax.data.shards.reading import ShardedExamples, open_shards
from electra_jax.data.shards.writing import MANIFEST
from electra_jax.data.sources import documents, provenance
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError, listed

__all__ = ["SPLITS", "ShardedExamples", "exist", "open_shards", "prepare", "read_manifest"]


def prepare(config_data: ConfigDict, tokenizer: Tokenizer, directory: str, seed: int) -> dict:
  """Reads `config_data.path`, tokenizes, packs and writes both splits; returns the manifest.

  The files depend on text, tokenizer, packing keys and seed, not on `num_workers`. They are written next to the
  directory and moved into place at the end; only then are earlier shards replaced. After a kill, an interrupt or an
  error the same call resumes after the last finished shard (`journal`); only if the disk refuses is everything
  unfinished deleted at once.

  Args:
    config_data: the config.data branch.
    tokenizer: must survive pickling when `num_workers` is above 1: it travels to the worker processes.
    seed: of the formats' draws.

  Raises:
    UserError: the corpus is unreadable, has no token or, for NSP, no second document; the disk is full or not
      writable; or `directory` holds anything but shards.
  """
  directory = os.path.realpath(directory)  # a link stays: the shards are made where it leads
  writing.check_replaceable(directory)
  job = journal.describe(config_data, tokenizer, seed)
  source = provenance.describe(config_data)
  if source["left_out"]:
    print(f"Hidden files and folders are left out: {listed(source['left_out'], most=5)}", flush=True)
  with writing.partial_folder(directory) as partial:
    try:
      manifest = _write_splits(config_data, tokenizer, partial, seed, job, source)
      path = os.path.join(partial, MANIFEST)
      with writing.disk_errors(path), open(path, "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=2)
      journal.remove(partial)
      writing.move_into_place(partial, directory)
    except BaseException as error:
      if isinstance(error, writing.DiskError) or not os.path.exists(journal.path_in(partial)):
        shutil.rmtree(partial, ignore_errors=True)  # else the same command resumes from there
      raise
  if warning := manifest_lib.unknown_warning(manifest):
    print(warning, flush=True)
  return manifest


def _write_splits(config_data: ConfigDict, tokenizer: Tokenizer, partial: str, seed: int, job: dict, source: dict
                  ) -> dict:
  """Writes the shards of both splits, or the rest of them, and returns the manifest."""
  skipped, packing_job = Counter(), preparation.make_job(config_data, tokenizer, seed)
  dtype = manifest_lib.row_dtype(tokenizer.vocab_size, config_data.sequence_length)

  def read_chunks() -> Iterator[preparation.Chunk]:
    skipped.clear()
    return preparation.make_chunks(documents.read_splits(config_data, skipped),
                                   for_nsp=config_data.format in NSP_FORMATS)

  log = journal.Journal(partial, job, config_data.shard_examples, dtype)
  chunks = log.skip_done(read_chunks)
  before = log.total("tokens")
  with tqdm(desc="preparing shards", unit="B", unit_scale=True, total=documents.corpus_bytes(config_data.path),
            disable=None, mininterval=0.5, initial=log.total("text_bytes"),  # None: not shown unless on a terminal
            bar_format="{desc}: {n_fmt}/{total_fmt} [{elapsed}<{remaining}]{postfix}") as bar:  # in 80 columns
    for packed in preparation.pack_corpus(chunks, packing_job, config_data.num_workers):
      log.write(packed)
      speed = (log.total("tokens") - before) / max(time.monotonic() - log.started, 1e-9)
      documents_done, speed = map(tqdm.format_sizeof, (log.total("documents"), speed))
      bar.set_postfix_str(f"{documents_done} documents, {speed} tokens/s", refresh=False)
      bar.update(packed.counts["text_bytes"])
  done = log.progress
  if not done.counts["train"]["examples"]:
    raise UserError("The corpus is too small for a single training example",
                    got=f"{config_data.path}: {done.counts['train']['documents']} documents without a token",
                    allowed="text with at least one token", fix="check --config.data.path and the tokenizer")
  splits = {split: writer.finish() for split, writer in log.writers.items()}
  return manifest_lib.make(config_data, tokenizer, seed, splits, done.counts, skipped, log.seconds(),
                           done.unknown_words, source | {"checksum": f"{done.checksum:016x}"})
