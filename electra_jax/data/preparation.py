"""How does a corpus become packed rows in parallel? Split, group, tokenise and pack, with the same result for any
number of worker processes.

The parent reads documents, sends each to its split and groups them to chunks; workers encode and pack a chunk; the
rows come back in order. Only a few chunks per worker exist at a time, so memory does not grow with the corpus.
"""

import collections
import multiprocessing
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from electra_jax.data import documents as documents_lib
from electra_jax.data import packing as packing_lib
from electra_jax.errors import UserError

# Documents are packed in chunks of about this much text (UTF-8 characters): large enough that the one partly filled
# FULL-SENTENCES example at the end of each does not matter, small enough to keep many workers busy.
CHUNK_CHARACTERS = 1 << 20
CHUNKS_PER_WORKER = 3  # encoded ahead of the writer: one in work, one waiting, one done

HEADER_COLUMNS = 2  # of a row: num_tokens, second_segment_start; the ids follow


class Chunk(NamedTuple):
  """Consecutive documents of one split."""

  split: str  # train | heldout
  first_document: int  # number of the first one within its split
  documents: list[list[str]]


class Packed(NamedTuple):
  """A chunk as rows."""

  split: str
  rows: Int32[np.ndarray, "examples columns"]
  counts: collections.Counter  # documents, paragraphs, text_bytes, tokens, unknown_tokens, dropped_tokens, ...


class Job(NamedTuple):
  """What a worker needs to turn a chunk into rows."""

  tokenizer: object
  format: str
  packing: packing_lib.Packing


def make_job(config_data, tokenizer, seed: int) -> Job:
  """The job of a `config.data` branch and its tokenizer."""
  packing = packing_lib.Packing(
    sequence_length=config_data.sequence_length, cls_id=tokenizer.cls_id, sep_id=tokenizer.sep_id,
    single_segment_share=config_data.single_segment_share, short_sequence_share=config_data.short_sequence_share,
    seed=seed)
  return Job(tokenizer, config_data.format, packing)


def split_documents(documents: Iterable[list[str]], heldout_share: float) -> Iterator[tuple[str, list[str]]]:
  """(split, document): held out where the hash of the text says so.

  Neither split stays empty by chance: if all of two or more documents fall into one, the last goes to the other. A
  single document is for training, and a share of 0 holds nothing out.

  >>> [split for split, _ in split_documents([["a"], ["b"], ["c"]], heldout_share=1e-9)]
  ['train', 'train', 'heldout']
  """
  seen, last = set(), None
  for document in documents:
    if last is not None:
      seen.add(last[0])
      yield last
    last = ("heldout" if documents_lib.is_heldout(document, heldout_share) else "train", document)
  if last is not None:
    missing = {"train", "heldout"} - seen - {last[0]}
    if missing == {"train"} or (missing == {"heldout"} and seen and heldout_share > 0):
      last = (missing.pop(), last[1])
    yield last


def make_chunks(split_and_document: Iterable[tuple[str, list[str]]]) -> Iterator[Chunk]:
  """Groups the documents of each split; the grouping depends on the text alone."""
  waiting = {"train": [], "heldout": []}
  size = collections.Counter()
  first = collections.Counter()
  for split, document in split_and_document:
    waiting[split].append(document)
    size[split] += sum(map(len, document))
    if size[split] >= CHUNK_CHARACTERS:
      yield Chunk(split, first[split], waiting[split])
      first[split] += len(waiting[split])
      waiting[split], size[split] = [], 0
  for split, rest in waiting.items():
    if rest:
      yield Chunk(split, first[split], rest)


def pack_chunk(job: Job, chunk: Chunk) -> Packed:
  """Encodes and packs the documents of one chunk."""
  tokenizer, length = job.tokenizer, job.packing.sequence_length
  texts = [paragraph for document in chunk.documents for paragraph in document]
  encoded = iter(tokenizer.encode_batch(texts))
  documents = [[next(encoded) for _ in document] for document in chunk.documents]
  packing = job.packing._replace(first_document=chunk.first_document)
  examples = list(packing_lib.FORMATS[job.format](documents, packing))
  rows = np.full((len(examples), HEADER_COLUMNS + length), tokenizer.pad_id, np.int32)
  for row, (ids, second_segment_start) in zip(rows, examples):
    row[:HEADER_COLUMNS] = len(ids), second_segment_start
    row[HEADER_COLUMNS:HEADER_COLUMNS + len(ids)] = ids
  counts = collections.Counter(
    documents=len(documents), paragraphs=len(texts), text_bytes=sum(len(text.encode()) for text in texts),
    tokens=sum(len(ids) for document in documents for ids in document),
    unknown_tokens=sum(ids.count(tokenizer.unk_id) for document in documents for ids in document),
    examples=len(examples), filled_positions=int(rows[:, 0].sum()))
  packed_tokens = sum(len(ids) - ids.count(tokenizer.cls_id) - ids.count(tokenizer.sep_id) for ids, _ in examples)
  counts["dropped_tokens"] = counts["tokens"] - packed_tokens
  return Packed(chunk.split, rows, counts)


def pack_corpus(chunks: Iterable[Chunk], job: Job, num_workers: int) -> Iterator[Packed]:
  """`pack_chunk` of every chunk, in order, in `num_workers` processes (in this one if there is only one).

  Raises:
    UserError: a worker was killed from outside, which is nearly always for want of memory.
  """
  if num_workers == 1:
    yield from (pack_chunk(job, chunk) for chunk in chunks)
    return
  # "spawn": a fork of a process that runs threads (jax, TensorFlow) may hang.
  pool = ProcessPoolExecutor(num_workers, multiprocessing.get_context("spawn"), _start_worker, (job,))
  try:
    running = collections.deque()
    for chunk in chunks:
      running.append(pool.submit(_work, chunk))
      if len(running) >= CHUNKS_PER_WORKER * num_workers:
        yield running.popleft().result()
    while running:
      yield running.popleft().result()
  except BrokenProcessPool as error:
    raise UserError("A process that tokenizes was killed", got=f"{num_workers} processes; {error}",
                    allowed="enough memory for each: about 300 MB",
                    fix="ask for fewer with --config.data.num_workers=1") from error
  finally:
    pool.shutdown(wait=True, cancel_futures=True)


_job: Job | None = None  # of a worker process, set once when it starts


def _start_worker(job: Job) -> None:
  global _job
  threading.Thread(target=_end_with_parent, daemon=True).start()
  os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
  _job = job


def _end_with_parent() -> None:
  """Ends this worker when the parent is killed; it would wait for work for ever."""
  multiprocessing.parent_process().join()
  os._exit(1)


def _work(chunk: Chunk) -> Packed:
  return pack_chunk(_job, chunk)
