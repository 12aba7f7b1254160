"""Sources of documents: text, JSON lines, CSV, TSV, Parquet, directories, globs, TFDS, Python's own documentation.

A document is a list of paragraphs. Packing never joins paragraphs of two documents without a separator, and the
held-out split takes whole documents (RoBERTa section 4.2; ELECTRA's data builder reads the same form).

Everything but JSON arrays streams: one chunk, one line and one document (of text at most `MAX_DOCUMENT_CHARACTERS`) are
in memory.
"""

import functools
import hashlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from ml_collections import ConfigDict

from electra_jax.data.packing import NSP_FORMATS
from electra_jax.data.sources import forms, hf_datasets, pydoc_corpus, tfds
from electra_jax.data.sources.files import REMOTE_PREFIXES, find_files
from electra_jax.data.sources.lines import COMPRESSIONS, read_lines
from electra_jax.data.sources.records import Reading, read_json, read_jsonl, read_parquet, read_table
from electra_jax.errors import UserError

Document = list[str]  # paragraphs, stripped, none empty

# A longer text continues as a new document, so that memory is bounded in files without blank lines.
MAX_DOCUMENT_CHARACTERS = 1 << 20

# "path*3", "path * 0.5": how often each document of a source is read.
_WEIGHTED = re.compile(r"(?P<path>.*[^*/\s])\s*\*\s*(?P<weight>\d+(\.\d+)?)")

_COMMA = re.compile(r",(?![^\[\]]*\])")  # between sources, not within the brackets of a glob


def read_documents(path: str, text_field: str = "text", max_documents: int = 0, *, text_format: str = "auto",
                   on_bad_record: str = "error", skipped: Counter[str] | None = None) -> Iterator[Document]:
  """The documents of a corpus, in an order that does not depend on the file system.

  docs/data_formats.md says what a path may be, and how files of each form are read. The whole part of a source's weight
  is a number of passes; its fraction picks documents by a hash of their text, so the choice is always the same. Several
  sources take turns, document by document, until each has ended. Weights apply to both splits.

  Args:
    path: `config.data.path`.
    text_field: the field of a record that holds the document.
    text_format: "auto", or the form that every file is read as: a row of FORMATS.
    max_documents: stop after so many; 0 = all.
    on_bad_record: "error", or "skip" for records without text; broken files are always an error.
    skipped: counts the skipped records by reason.

  Raises:
    UserError: at once for a path that leads nowhere; while reading, with file and line or byte offset, for input
      that is not UTF-8 text, broken JSONL, a truncated archive, or a source without any document.
  """
  reading = Reading(text_field, text_format, on_bad_record, Counter() if skipped is None else skipped)
  streams = [_passes(source, weight, reading) for source, weight in parse_path(path)]
  turns = itertools.chain.from_iterable(itertools.zip_longest(*streams))
  return itertools.islice((document for document in turns if document), max_documents or None)


def read_corpus(config_data: ConfigDict, skipped: Counter[str] | None = None) -> Iterator[Document]:
  """`read_documents` as the config.data branch says."""
  return read_documents(config_data.path, config_data.text_field, config_data.max_documents, skipped=skipped,
                        text_format=config_data.text_format, on_bad_record=config_data.on_bad_record)


def parse_path(path: str) -> list[tuple[str, float]]:
  """(source, weight) of each part of `config.data.path`. A path that exists is taken as it stands.

  >>> parse_path("a.jsonl*2, b/**, c.txt * 0.5")
  [('a.jsonl', 2.0), ('b/**', 1.0), ('c.txt', 0.5)]

  Raises:
    UserError: a part is empty or its weight is 0.
  """
  folder = os.path.dirname(re.split(r"[*?\[]", path)[0])  # of a glob
  if os.path.lexists(os.path.expanduser(path)) or not path.strip() or ("," in folder and os.path.isdir(folder)):
    return [(path, 1.0)]
  sources = []
  for part in map(str.strip, _COMMA.split(path)):
    weighted = _WEIGHTED.fullmatch(part)
    source, weight = (weighted["path"], float(weighted["weight"])) if weighted else (part, 1.0)
    if os.path.lexists(os.path.expanduser(part)):
      source, weight = part, 1.0
    if not source or not weight:
      raise UserError("A part of data.path is empty or has the weight 0", got=f"{part!r} in {path!r}",
                      allowed="sources with a weight above 0, separated by commas: a.jsonl*2,b/**",
                      fix="leave that part out; a glob that ends in a star and a number is written *[2]")
    sources.append((source, weight))
  return sources


def corpus_bytes(path: str) -> int | None:
  """Bytes to read, for the progress bar; None if only reading tells: compressed files, Parquet, TFDS, pydoc."""
  total = 0.0
  for source, weight in parse_path(path):
    if source.startswith((*SOURCES, *REMOTE_PREFIXES)):
      return None
    files = find_files(source)
    if any(file.lower().endswith((".parquet", *COMPRESSIONS)) for file in files):
      return None
    total += weight * sum(map(os.path.getsize, files))
  return round(total)


def is_heldout(document: Document, heldout_share: float) -> bool:
  """Whether a document is kept for evaluation: a keyed hash of its text, so reading order does not matter.

  >>> is_heldout(["Any text."], 0.0), is_heldout(["Any text."], 1.0)
  (False, True)
  """
  return _is_chosen(document, heldout_share, b"electra_jax held-out split")


def _is_chosen(document: Document, share: float, key: bytes) -> bool:
  digest = hashlib.blake2b(key=key, digest_size=8)
  for paragraph in document:
    digest.update(paragraph.encode("utf-8") + b"\n")
  return int.from_bytes(digest.digest(), "big") < share * 2**64


def read_splits(config_data: ConfigDict, skipped: Counter[str] | None = None) -> Iterator[tuple[str, Document]]:
  """(split, document) of `read_corpus`; for NSP, whose random pairs need another document, at least two in a split."""
  least = 2 if config_data.format in NSP_FORMATS else 1
  return split_documents(read_corpus(config_data, skipped), config_data.heldout_share, least)


def split_documents(documents: Iterable[Document], heldout_share: float, least: int = 1
                    ) -> Iterator[tuple[str, Document]]:
  """(split, document): held out where the hash of the text says so, and neither split is too small by chance.

  Of 2 * `least` documents or more, a split with fewer than `least` different ones also gets the last of the other's. Of
  a single document the last paragraphs are held out. A share of 0, or one document of one paragraph, holds nothing out.

  >>> [split for split, _ in split_documents([["a"], ["b"], ["c"]], heldout_share=1e-9)]
  ['train', 'train', 'heldout']
  >>> list(split_documents([["a", "b", "c", "d"]], heldout_share=0.25))
  [('train', ['a', 'b', 'c']), ('heldout', ['d'])]
  """
  number, last = 0, []  # documents so far; those that may still change their split
  different: dict[str, set[int]] = {"train": set(), "heldout": set()}  # hashes of `least` documents
  for document in documents:
    number += 1
    split = "heldout" if is_heldout(document, heldout_share) else "train"
    if len(different[split]) < least:
      different[split].add(hash(tuple(document)))
    last.append((split, document))
    if len(last) > least:
      yield last.pop(0)
  if number == 1:
    document = last[0][1]
    paragraphs = min(max(1, round(heldout_share * len(document))), len(document) - 1) if heldout_share > 0 else 0
    last = [("train", document[:len(document) - paragraphs]), ("heldout", document[len(document) - paragraphs:])]
    last = last[:1 + (paragraphs > 0)]
  elif number >= 2 * least:
    for split in ("train", "heldout") if heldout_share > 0 else ():
      for i, (other, document) in reversed([*enumerate(last)]):
        if other != split and len(different[split]) < least:
          different[split].add(hash(tuple(document)))
          last[i] = split, document
  yield from last


def training_texts(config_data: ConfigDict) -> Iterator[str]:
  """The paragraphs that are not held out; a new vocabulary is learnt from them."""
  for split, document in read_splits(config_data):
    if split == "train":
      yield from document


def _passes(source: str, weight: float, reading: Reading) -> Iterator[Document]:
  """The documents of one source, as often as its weight says."""
  read = next((function for prefix, function in SOURCES.items() if source.startswith(prefix)), _read_files)
  whole, fraction = divmod(weight, 1)
  passes = [read(source, reading) for _ in range(int(whole))]
  if fraction:
    passes.append(document for document in read(source, reading)
                  if _is_chosen(document, fraction, b"electra_jax fraction of a source"))
  return _not_empty(itertools.chain.from_iterable(passes), source)


def _not_empty(documents: Iterator[Document], source: str) -> Iterator[Document]:
  first = next(documents, None)
  if first is None:
    raise UserError("The corpus holds no document", fix="check the files under this path",
                    got=f"data.path {source!r}: nothing but blank text, skipped records or documents that its weight "
                    "leaves out", allowed="text with at least one non-blank line")
  yield first
  yield from documents


def _read_files(path: str, reading: Reading) -> Iterator[Document]:
  files, form = find_files(path), reading.text_format
  return (document for file in files
          for document in FORMATS[forms.recognise(file) if form == "auto" else form](file, reading))


def _read_text(path: str, reading: Reading) -> Iterator[Document]:
  document, size = [], 0
  for _, line in read_lines(path):
    paragraph = line.strip()
    if document and (not paragraph or size + len(paragraph) > MAX_DOCUMENT_CHARACTERS):
      yield document
      document, size = [], 0
    if paragraph:
      document.append(paragraph)
      size += len(paragraph)
  if document:
    yield document


# path prefix -> (path, reading) -> documents. Every other path names files.
SOURCES: dict[str, Callable[[str, Reading], Iterator[Document]]] = {
  "pydoc:": pydoc_corpus.read, "tfds:": tfds.read, "hf:": hf_datasets.read}

# config.data.text_format, or what `forms.recognise` finds -> (path, reading) -> documents.
FORMATS: dict[str, Callable[[str, Reading], Iterator[Document]]] = {
  "text": _read_text, "jsonl": read_jsonl, "json": read_json, "parquet": read_parquet,
  "csv": functools.partial(read_table, kind="csv"), "tsv": functools.partial(read_table, kind="tsv")}
