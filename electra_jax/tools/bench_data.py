"""Speed of preparation and reading on this machine, compared with the bare tokenizer library on the same text."""

import contextlib
import copy
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from electra_jax import config as config_lib
from electra_jax.data import pipeline, readers, shards
from electra_jax.data.shards import corpus
from electra_jax.data.sources import documents
from electra_jax.data.tokenizers import Tokenizer

LENGTHS = (128, 512)  # tokens of the rows that are read
BATCH_TEXTS = 1000  # given to the bare library at once


def time_data(config: ConfigDict, *, text_megabytes: float, seconds: float,
              peers: Mapping[str, Callable[[Tokenizer, str, str], None]] | None = None) -> dict[str, list[dict]]:
  """The figures of one recipe's data branch: {"preparation": rows, "reading": rows}.

  Everything runs in this process, so that its processor time is comparable even on a busy machine.

  Args:
    config: a recipe that is not resolved yet: its length becomes each of LENGTHS.
    text_megabytes: how much of the corpus is used.
    seconds: for each reading row.
    peers: name -> function(tokenizer, text file, folder for its files), other code that prepares the same text.

  Raises:
    UserError: the corpus or the vocabulary cannot be read.
  """
  os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core each
  preparation, reading = [], []
  with tempfile.TemporaryDirectory(prefix="bench_data_") as folder:
    configs = [_with_length(config, length) for length in LENGTHS]
    tokenizer = corpus.make_tokenizer(configs[0].data, folder, configs[0].seed)
    texts = os.path.join(folder, "text.txt")
    paragraphs = _write_text(configs[0].data, texts, int(text_megabytes * 1e6))
    size = sum(len(paragraph.encode()) for paragraph in paragraphs)
    preparation.append(_timed("library's encode_batch", size, _encode_raw, tokenizer, paragraphs))
    for config, length in zip(configs, LENGTHS):
      config.data.update(path=texts, num_workers=1)
      directory = os.path.join(folder, f"shards_{length}")
      preparation.append(_timed(f"prepare, length {length}", size, shards.prepare, config.data,
                                copy.deepcopy(tokenizer), directory, config.seed))  # no word known
      reading += _time_reading(config, tokenizer, directory, seconds)
    preparation += [_timed(name, size, prepare, tokenizer, texts, folder) for name, prepare in (peers or {}).items()]
  return {"preparation": preparation, "reading": reading}


def _with_length(config: ConfigDict, length: int) -> ConfigDict:
  config = copy.deepcopy(config)
  config.data.sequence_length = length
  config.model.max_position_embeddings = length + 16  # no model is made, but the rows must fit its table
  return ConfigDict(config_lib.resolve(config).to_dict())  # not frozen


def _write_text(config_data: ConfigDict, path: str, limit: int) -> list[str]:
  """Writes the beginning of the corpus as plain text; returns its paragraphs."""
  taken, size = [], 0
  with open(path, "w", encoding="utf-8") as file:
    for document in documents.read_corpus(config_data):
      file.write("\n".join(document) + "\n\n")
      taken += document
      size += sum(len(paragraph.encode()) + 1 for paragraph in document)
      if size >= limit:
        break
  return taken


def _timed(name: str, size: int, work: Callable, *args, **kwargs) -> dict:
  wall, processor = time.perf_counter(), time.process_time()
  work(*args, **kwargs)
  wall, processor = time.perf_counter() - wall, time.process_time() - processor
  return {"name": name, "megabytes_per_second": size / 1e6 / wall,
          "megabytes_per_processor_second": size / 1e6 / processor}


def _encode_raw(tokenizer: Any, paragraphs: list[str]) -> None:
  """The bare library on the same text, which only finds the ids."""
  library = tokenizer._library
  for start in range(0, len(paragraphs), BATCH_TEXTS):
    batch = paragraphs[start:start + BATCH_TEXTS]
    if tokenizer.kind.startswith("sentencepiece"):
      library.encode(batch, num_threads=1)
    else:
      library.encode_batch(batch, add_special_tokens=False)


def _time_reading(config: ConfigDict, tokenizer: Tokenizer, directory: str, seconds: float) -> Iterator[dict]:
  examples = shards.open_shards(directory, "train", config.data, tokenizer)
  batch_at = pipeline.make_batch_at(examples, config.data, tokenizer, batch_size=config.train.batch_size,
                                    seed=config.seed)
  for reader in ("tf", "threads"):
    batches = readers.read_batches(batch_at, 0, 1 << 40, reader)
    with contextlib.closing(batches):
      for _ in range(50):  # start-up, and every shard is checked
        next(batches)
      yield {"name": f"{reader}, length {config.data.sequence_length}", **_speed(batches, seconds)}


def _speed(batches: Iterator[readers.Batch], seconds: float) -> dict:
  count, sequences = 0, 0
  wall, processor = time.perf_counter(), time.process_time()
  while time.perf_counter() - wall < seconds:
    sequences += len(next(batches)["input_ids"])
    count += 1
  wall, processor = time.perf_counter() - wall, time.process_time() - processor
  return {"batches_per_second": count / wall, "sequences_per_second": sequences / wall,
          "sequences_per_processor_second": sequences / processor}


def table(figures: dict[str, list[dict]]) -> str:
  """The figures of `time_data` as a table, with ratios of the speeds.

  >>> speed = dict(megabytes_per_second=4.0, megabytes_per_processor_second=2.0)
  >>> reading = dict(name="tf, length 128", batches_per_second=9.0, sequences_per_second=1e5,
  ...                sequences_per_processor_second=7e4)
  >>> print(table({"preparation": [dict(name="prepare", **speed)], "reading": [reading]}))
  preparation                                   MB/s  MB/s of a core  times the first
  prepare                                       4.00            2.00             1.00
  reading, with masking                    batches/s     sequences/s      of a core
  tf, length 128                                   9         100,000         70,000
  """
  lines = [f"{'preparation':38}{'MB/s':>12}{'MB/s of a core':>16}{'times the first':>17}"]
  base = figures["preparation"][0]["megabytes_per_processor_second"]
  for row in figures["preparation"]:
    wall, core = row["megabytes_per_second"], row["megabytes_per_processor_second"]
    lines.append(f"{row['name']:38}{wall:12.2f}{core:16.2f}{core / base:17.2f}")
  lines.append(f"{'reading, with masking':38}{'batches/s':>12}{'sequences/s':>16}{'of a core':>15}")
  for row in figures["reading"]:
    lines.append(f"{row['name']:38}{row['batches_per_second']:12,.0f}{row['sequences_per_second']:16,.0f}"
                 f"{row['sequences_per_processor_second']:15,.0f}")
  return "\n".join(lines)
