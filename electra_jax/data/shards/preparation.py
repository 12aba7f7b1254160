"""Parallel preparation of packed rows: split, group, tokenise and pack, with one result for any number of processes.

The parent reads documents, sends each to its split and groups them into chunks; workers encode and pack a chunk; the
rows come back in order. Only a few chunks per worker exist at a time, so memory does not grow with the corpus. The
random segments of NSP come from documents of the same chunk or from the two before it.
"""

import collections
import itertools
import multiprocessing
import os
import signal
import threading
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32
from ml_collections import ConfigDict

from electra_jax.data import packing as packing_lib
from electra_jax.data.examples import IS_RANDOM, Example
from electra_jax.data.sources import sentence_splitting
from electra_jax.data.sources.documents import Document
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError

SINGLE_SEGMENT_SHARE = 0.1  # of ELECTRA's examples, which get only one segment (the released code)
# Documents are packed in chunks of about this much text: large enough that the one partly filled FULL-SENTENCES example
# at the end of each does not matter, small enough to keep many workers busy.
CHUNK_CHARACTERS = 1 << 20
CHUNKS_PER_WORKER = 3  # ahead of the writer: one being encoded, one waiting, one done
UNKNOWN_SENTENCES = 1000  # of a chunk, in which unknown words are looked for
MAX_UNKNOWN_WORDS = 1000  # whose counts are kept
LENDER_CHARACTERS = 1 << 16  # of each of the two documents that a chunk of NSP pairs may borrow from besides its own
HEADER_COLUMNS = 2  # of a row: num_tokens, second_segment_start; with NSP also nsp_label; then the ids


class Chunk(NamedTuple):
  """Consecutive documents of one split."""

  split: str  # train | heldout
  first_document: int  # number of the first one within its split
  documents: list[list[str]]
  lenders: list[list[str]]  # for NSP: the beginnings of the two documents before these


class Packed(NamedTuple):
  """A chunk as rows."""

  split: str
  rows: Int32[np.ndarray, "examples columns"]
  counts: collections.Counter  # documents, sentences, text_bytes, tokens, unknown_tokens, dropped_tokens, ...
  checksum: int  # of the chunk's text
  unknown_words: collections.Counter  # the most frequent ones in a part of the chunk


class Job(NamedTuple):
  """What a worker needs to turn a chunk into rows."""

  tokenizer: Tokenizer
  format: str
  packing: packing_lib.Packing
  sentences: str  # data.sentences


def make_job(config_data: ConfigDict, tokenizer: Tokenizer, seed: int) -> Job:
  """The job of a `config.data` branch and its tokenizer."""
  packing = packing_lib.Packing(
    sequence_length=config_data.sequence_length, cls_id=tokenizer.cls_id, sep_id=tokenizer.sep_id,
    single_segment_share=SINGLE_SEGMENT_SHARE, short_sequence_share=config_data.short_sequence_share, seed=seed)
  return Job(tokenizer, config_data.format, packing, config_data.sentences)


def make_chunks(split_and_document: Iterable[tuple[str, Document]], for_nsp: bool = False) -> Iterator[Chunk]:
  """Groups the documents of each split; the grouping depends on the text alone.

  Args:
    split_and_document: from `documents.read_splits`.
    for_nsp: each chunk holds or borrows at least two documents, if the split has them.
  """
  waiting: dict[str, list[Document]] = {"train": [], "heldout": []}
  lenders: dict[str, list[Document]] = {"train": [], "heldout": []}
  size = collections.Counter()
  first = collections.Counter()
  for split, document in split_and_document:
    waiting[split].append(document)
    size[split] += sum(map(len, document))
    if size[split] < CHUNK_CHARACTERS:
      continue
    candidates = lenders[split] + waiting[split]
    if for_nsp and len(candidates) < 2:
      continue
    yield Chunk(split, first[split], waiting[split], lenders[split])
    if for_nsp:
      lenders[split] = [_beginning(document) for document in candidates[-2:]]
    first[split] += len(waiting[split])
    waiting[split], size[split] = [], 0
  for split, rest in waiting.items():
    if rest:
      yield Chunk(split, first[split], rest, lenders[split])


def _beginning(document: Document) -> Document:
  sizes = itertools.accumulate(map(len, document), initial=0)
  return [paragraph for paragraph, before in zip(document, sizes) if before < LENDER_CHARACTERS]


def pack_chunk(job: Job, chunk: Chunk) -> Packed:
  """Splits the documents of one chunk into sentences, encodes and packs them.

  Raises:
    UserError: a format with NSP finds no second document; the package that splits sentences is missing.
  """
  tokenizer = job.tokenizer
  texts = [[sentence for paragraph in document for sentence in sentence_splitting.split(paragraph, job.sentences)]
           for document in chunk.lenders + chunk.documents]
  encoded = iter(tokenizer.encode_batch(list(itertools.chain.from_iterable(texts))))
  ids_of = [[next(encoded) for _ in document] for document in texts]
  lenders, documents = ids_of[:len(chunk.lenders)], ids_of[len(chunk.lenders):]
  packing = job.packing._replace(first_document=chunk.first_document, num_lenders=len(lenders))
  examples = list(packing_lib.FORMATS[job.format](lenders + documents, packing))
  rows = _make_rows(examples, job)
  counts = collections.Counter(
    documents=len(documents), documents_without_token=sum(not any(document) for document in documents),
    paragraphs=sum(map(len, chunk.documents)), sentences=sum(map(len, documents)),
    text_bytes=sum(len(text.encode()) for document in chunk.documents for text in document),
    tokens=sum(len(ids) for document in documents for ids in document),
    unknown_tokens=sum(ids.count(tokenizer.unk_id) for document in documents for ids in document),
    examples=len(examples), filled_positions=int(rows[:, 0].sum()))
  random = [example for example in examples if example.nsp_label == IS_RANDOM]
  counts["random_pairs"] = len(random)
  counts["borrowed_tokens"] = sum(len(ids) - start - 1 for ids, start, _ in random)
  counts["packed_tokens"] = sum(len(ids) - ids.count(tokenizer.cls_id) - ids.count(tokenizer.sep_id)
                                for ids, _, _ in examples)
  counts["dropped_tokens"] = counts["tokens"] + counts["borrowed_tokens"] - counts["packed_tokens"]
  assert counts["dropped_tokens"] >= 0, f"{job.format} made {-counts['dropped_tokens']} tokens out of nothing"
  return Packed(chunk.split, rows, counts, text_checksum(chunk),
                _unknown_words(texts[len(lenders):], documents, tokenizer))


def _unknown_words(texts: list[list[str]], ids: list[list[list[int]]], tokenizer: Tokenizer) -> collections.Counter:
  """The words behind the unknown tokens of the first UNKNOWN_SENTENCES that have any, at most MAX_UNKNOWN_WORDS."""
  sentences = (sentence for document, document_ids in zip(texts, ids)
               for sentence, sentence_ids in zip(document, document_ids) if tokenizer.unk_id in sentence_ids)
  words = collections.Counter()
  for sentence in itertools.islice(sentences, UNKNOWN_SENTENCES):
    words.update(sentence[start:end] for i, (start, end) in zip(*tokenizer.encode_words(sentence))
                 if i == tokenizer.unk_id)
  return collections.Counter(dict(words.most_common(MAX_UNKNOWN_WORDS)))


def text_checksum(chunk: Chunk) -> int:
  """CRC-32 of a chunk's text and of where it is divided."""
  checksum = zlib.crc32(chunk.split.encode())
  for document in chunk.documents:
    checksum = zlib.crc32("\n".join([*document, ""]).encode() + b"\n", checksum)
  return checksum


def _make_rows(examples: list[Example], job: Job) -> Int32[np.ndarray, "examples columns"]:
  columns = HEADER_COLUMNS + (job.format in packing_lib.NSP_FORMATS)
  rows = np.full((len(examples), columns + job.packing.sequence_length), job.tokenizer.pad_id, np.int32)
  for row, (ids, second_segment_start, nsp_label) in zip(rows, examples):
    row[:columns] = (len(ids), second_segment_start, nsp_label)[:columns]
    row[columns:columns + len(ids)] = ids
  return rows


def pack_corpus(chunks: Iterable[Chunk], job: Job, num_workers: int) -> Iterator[Packed]:
  """`pack_chunk` of every chunk, in order, in `num_workers` processes (in this one if there is only one).

  Raises:
    UserError: a worker was killed from outside, nearly always for lack of memory.
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


_job: Job  # of a worker process, set once when it starts


def _start_worker(job: Job) -> None:
  global _job
  threading.Thread(target=_end_with_parent, daemon=True).start()
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the workers too, and the parent ends them
  os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
  _job = job


def _end_with_parent() -> None:
  """Ends this worker when the parent is killed; else it would wait for work for ever."""
  if parent := multiprocessing.parent_process():
    parent.join()
  os._exit(1)


def _work(chunk: Chunk) -> Packed:
  return pack_chunk(_job, chunk)
