"""Where do documents come from? Text, JSONL (plain, .gz, .zst), directories, globs, or Python's own documentation.

A document is a list of paragraphs. Packing never joins paragraphs of two documents without a separator, and the
held-out split is taken by whole documents (RoBERTa section 4.2; ELECTRA's data builder reads the same form).

Everything streams: one chunk, one line and one document of at most `MAX_DOCUMENT_CHARACTERS` are in memory.
"""

import glob
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator

from electra_jax.data import pydoc_corpus
from electra_jax.data.lines import COMPRESSIONS, read_lines, universal_split
from electra_jax.errors import UserError

Document = list[str]  # paragraphs, stripped, none empty

# A longer text document goes on as a new one, so that memory is bounded for a file without blank lines.
MAX_DOCUMENT_CHARACTERS = 1 << 20

_SURROGATE = re.compile("[\ud800-\udfff]")


def read_documents(path: str, text_field: str = "text", max_documents: int = 0) -> Iterator[Document]:
  """The documents of a corpus, in an order that does not depend on the file system.

  A path is a file, a directory (read recursively, in sorted order), a glob, or `pydoc:` (the embedded corpus).
  `*.jsonl` and `*.ndjson` hold one document per record; every other name is read as text, in which a blank line
  starts a new document and each other line is a paragraph. `.gz` and `.zst` are unpacked on the way. Hidden files
  (".name") in directories are left out; a binary file among the texts is an error rather than silently skipped.

  Args:
    path: `config.data.path`.
    text_field: the field of a JSONL record that holds the document.
    max_documents: stop after so many; 0 = all.

  Raises:
    UserError: at once for a path that leads nowhere; while reading, with file and line or byte offset, for input
      that is not UTF-8 text, broken JSONL, a truncated archive, or a corpus without a single document.
  """
  read = next((source for prefix, source in SOURCES.items() if path.startswith(prefix)), _read_files)
  return _counted(read(path, text_field), path, max_documents)


def is_heldout(document: Document, heldout_share: float) -> bool:
  """Whether a document is kept for evaluation: a keyed hash of its text, so reading order does not matter.

  >>> is_heldout(["Any text."], 0.0), is_heldout(["Any text."], 1.0)
  (False, True)
  """
  digest = hashlib.blake2b(key=b"electra_jax held-out split", digest_size=8)
  for paragraph in document:
    digest.update(paragraph.encode("utf-8") + b"\n")
  return int.from_bytes(digest.digest(), "big") < heldout_share * 2**64


def training_texts(config_data) -> Iterator[str]:
  """The paragraphs of all documents that are not held out: what a new vocabulary is learnt from."""
  for document in read_documents(config_data.path, config_data.text_field, config_data.max_documents):
    if not is_heldout(document, config_data.heldout_share):
      yield from document


def _counted(documents: Iterator[Document], path: str, max_documents: int) -> Iterator[Document]:
  count = 0
  for count, document in enumerate(documents, 1):
    yield document
    if count == max_documents:
      return
  if not count:
    raise UserError("The corpus holds no document", got=f"data.path {path!r}: every file is empty or blank",
                    allowed="text with at least one non-blank line", fix="check the files under this path")


# ---- files ----


def _read_files(path: str, text_field: str) -> Iterator[Document]:
  files = find_files(path)
  return (document for file in files for document in _read_file(file, text_field))


def find_files(path: str) -> list[str]:
  """The files behind a file name, directory or glob, sorted, each once.

  Raises:
    UserError: the path is empty, missing, matches nothing, or is no regular file.
  """
  if not path.strip():
    raise UserError("data.path is not set, so there is no text to learn from", got=repr(path),
                    allowed="a text file, .jsonl, .gz or .zst of these, a directory, a glob, or pydoc:",
                    fix="set --config.data.path=/path/to/text, or try the embedded corpus (English that the "
                        "installed Python carries) with --config.data.path=pydoc:")
  expanded = os.path.expanduser(path)
  if os.path.lexists(expanded):
    roots = [expanded]
  elif glob.has_magic(expanded):
    roots = glob.glob(expanded, recursive=True)
  else:
    raise UserError("The corpus does not exist", got=f"data.path {path!r} (working directory {os.getcwd()})",
                    allowed="an existing file or directory, a glob, or pydoc:",
                    fix="check the spelling; relative paths count from the working directory")
  files = sorted({os.path.normpath(file) for root in roots for file in _walk(root)})
  if not files:
    raise UserError("No file was found", got=f"data.path {path!r}",
                    allowed="a directory or glob with at least one file that is not hidden",
                    fix="check the folder, or quote a glob so that the shell leaves it alone: 'corpus/**/*.txt'")
  return files


def _walk(root: str) -> Iterator[str]:
  if not os.path.isdir(root):
    if not os.path.isfile(root):
      raise UserError("The corpus is no regular file", got=root, allowed="files and directories: a corpus is read "
                      "more than once, so pipes, devices and dangling links will not do", fix="write it to a file")
    yield root
  for folder, subfolders, names in os.walk(root):
    subfolders[:] = [name for name in subfolders if not name.startswith(".")]
    yield from (os.path.join(folder, name) for name in names if not name.startswith("."))


def _read_file(path: str, text_field: str) -> Iterator[Document]:
  stem, suffix = os.path.splitext(path)
  if suffix in COMPRESSIONS:
    suffix = os.path.splitext(stem)[1]
  return FORMATS.get(suffix, _read_text)(path, text_field)


def _read_text(path: str, text_field: str) -> Iterator[Document]:
  del text_field
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


def _read_jsonl(path: str, text_field: str) -> Iterator[Document]:
  for number, line in read_lines(path):
    if not line.strip():
      continue
    text = _record_text(line, f"{path}:{number}", text_field)
    text = _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text).replace("\0", "")  # JSON can escape what UTF-8 cannot say
    document = [line.strip() for line in universal_split(text) if line.strip()]
    if document:
      yield document


def _record_text(line: str, place: str, text_field: str) -> str:
  def fault(what, got, fix):
    return UserError(what, got=f"{place}: {got}", fix=fix,
                     allowed=f'one JSON object per line with a string under "{text_field}"')

  try:
    record = json.loads(line)
  except (ValueError, RecursionError) as error:
    raise fault("A JSONL record is broken", error,
                "repair or remove the line; if the file was cut off, copy it again") from error
  if not isinstance(record, dict):
    raise fault("A JSONL record is no object", f"a {type(record).__name__}", 'write lines like {"text": "..."}')
  if text_field not in record:
    raise fault(f'A JSONL record has no field "{text_field}"', f"fields: {', '.join(map(repr, record)) or 'none'}",
                "name the field that holds the text: --config.data.text_field=...")
  if not isinstance(record[text_field], str):
    raise fault(f'The field "{text_field}" of a JSONL record is no text', f"a {type(record[text_field]).__name__}",
                "choose the field that holds the text with --config.data.text_field, or repair the line")
  return record[text_field]


# path prefix -> (path, text_field) -> documents. Every other path names files.
SOURCES: dict[str, Callable[[str, str], Iterator[Document]]] = {"pydoc:": pydoc_corpus.read}

# file name's suffix (without compression) -> (path, text_field) -> documents. Every other file is text.
FORMATS: dict[str, Callable[[str, str], Iterator[Document]]] = {".jsonl": _read_jsonl, ".ndjson": _read_jsonl}
