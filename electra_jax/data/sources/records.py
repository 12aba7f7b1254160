"""Records that hold documents (JSON lines, JSON arrays, CSV, TSV and Parquet), and how those without text are handled.

A record holds one document in its text field, a paragraph on each line.
"""

import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from electra_jax.data.sources import tables
from electra_jax.data.sources.files import open_file, reading_errors
from electra_jax.data.sources.lines import read_lines, read_text
from electra_jax.errors import UserError, named

PARQUET_ROWS = 256  # unpacked at once

_VALUE = re.compile(r"[^\s,]")  # where a value of JSON begins
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclasses.dataclass(frozen=True)
class Reading:
  """What a source needs besides its path: keys of config.data, and counts of skipped records."""

  text_field: str = "text"
  text_format: str = "auto"  # of every file: a row of documents.FORMATS; auto: by name and content
  on_bad_record: str = "error"  # error | skip
  skipped: Counter[str] = dataclasses.field(default_factory=Counter)  # why -> how many records

  def skip(self, error: UserError) -> None:
    """Counts a skipped record by its reason; raises the error if `on_bad_record` is "error"."""
    if self.on_bad_record == "error":
      raise error
    self.skipped[error.what] += 1

  def text_of(self, record: object, place: str) -> str | None:
    """The text of a record; None for one that is skipped.

    Args:
      record: a dict, unless the record is bad.
      place: its name in an error, such as "corpus.jsonl:12".
    """
    field = self.text_field
    if not isinstance(record, dict):
      got, what = f"a {type(record).__name__}", "A record is no object"
      fix = 'write lines like {"text": "..."}'
    elif field not in record:
      got, what = f"fields: {named(map(repr, record))}", f'A record has no field "{field}"'
      fix = "name the field that holds the text: --config.data.text_field=..."
    elif not isinstance(record[field], str):
      got, what = f"a {type(record[field]).__name__}", f'The field "{field}" of a record is no text'
      fix = "name the field that holds the text with --config.data.text_field, or repair the record"
    else:
      return record[field]
    self.skip(UserError(what, got=f"{place}: {got}", allowed=f'records with a string under "{field}"',
                        fix=f"{fix}; --config.data.on_bad_record=skip skips and counts such records"))
    return None

  def documents(self, records: Iterable[tuple[str, object]]) -> Iterator[list[str]]:
    """The documents of (place, record) pairs, as `text_of` takes them; blank texts give none."""
    for place, record in records:
      if document := paragraphs(self.text_of(record, place) or ""):
        yield document


def paragraphs(text: str) -> list[str]:
  r"""The lines of a record's text, stripped, without empty ones, NUL and lone surrogates.

  >>> paragraphs("One.\r\n\n Two\u2028still two. ")
  ['One.', 'Two\u2028still two.']
  """
  text = _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text).replace("\0", "")  # JSON can escape what UTF-8 cannot say
  return [line.strip() for line in text.replace("\r", "\n").split("\n") if line.strip()]


def read_jsonl(path: str, reading: Reading) -> Iterator[list[str]]:
  """One document a line, from the field `reading.text_field` of its JSON object.

  Raises:
    UserError: a line that is no object with text (unless those are skipped), with file and line.
  """
  def records() -> Iterator[tuple[str, object]]:
    for number, line in read_lines(path):
      try:
        if line.strip():
          yield f"{path}:{number}", json.loads(line)
      except (ValueError, RecursionError) as error:
        reading.skip(UserError(
          "A JSONL record is broken", got=f"{path}:{number}: {error}", allowed="one JSON object per line",
          fix="repair or remove the line; if the file was cut off, copy it again; --config.data.on_bad_record=skip "
          "skips and counts such lines; text that only looks like JSON is read with --config.data."
          "text_format=text"))

  return reading.documents(records())


def read_json(path: str, reading: Reading) -> Iterator[list[str]]:
  """One document a record of an array, or of objects that are written over several lines; the file is in memory.

  Raises:
    UserError: a record without text (unless those are skipped), with file and number; a file that is not JSON.
  """
  records = enumerate(_json_records(read_text(path), path), 1)
  return reading.documents((f"{path}: record {number}", record) for number, record in records)


def _json_records(text: str, path: str) -> Iterator[object]:
  """The items of arrays, and the values outside of them."""
  decode, start = json.JSONDecoder().raw_decode, 0
  try:
    while value := _VALUE.search(text, start):
      record, start = decode(text, value.start())
      yield from record if isinstance(record, list) else [record]
  except (ValueError, RecursionError) as error:
    raise UserError("A JSON file is broken", got=f"{path}: {error}", allowed="an array of objects, or objects",
                    fix="repair it or write it as JSON lines; if it was cut off, copy it again; text that only looks "
                    "like JSON is read with --config.data.text_format=text") from error


def read_table(path: str, reading: Reading, kind: str) -> Iterator[list[str]]:
  """One document a row of a file with a header, from its column `reading.text_field`.

  Args:
    kind: csv | tsv.

  Raises:
    UserError: there is no such column; a row does not fit the header (unless short ones are skipped), with its line.
  """
  field, left_out = reading.text_field, None if reading.on_bad_record == "error" else {}
  columns = tables.columns(path, kind)
  if columns and field not in columns:
    raise UserError(f'A table has no column "{field}"',
                    got=f"{path}, which looks like {kind.upper()}: columns {named(map(repr, columns))}",
                    allowed="a header line with a column of text", fix="name the column that holds the text: --config."
                    "data.text_field=...; leave the file out with --config.data.path='DIR/**/*.txt'; or have every "
                    "file read as text, as it stands, with --config.data.text_format=text")
  for _, record in tables.read(path, kind=kind, left_out=left_out):
    if document := paragraphs(record[field]):
      yield document
  if left_out:
    reading.skipped["A row has too few columns"] += len(left_out)


def read_parquet(path: str, reading: Reading) -> Iterator[list[str]]:
  """One document a row, from the column `reading.text_field`; a part of a row group is in memory at a time.

  Raises:
    UserError: the file is damaged, cannot be read or has no such column; a row without text (unless those are skipped),
      with file and row.
  """
  import pyarrow  # takes a while
  from pyarrow import parquet

  damage = (pyarrow.ArrowException, UnicodeDecodeError)
  with reading_errors(path, "Parquet", damage), open_file(path) as opened, parquet.ParquetFile(opened) as file:
    columns = file.schema_arrow.names
    if reading.text_field not in columns:
      raise UserError(f'A Parquet file has no column "{reading.text_field}"',
                      got=f"{path}: columns {named(columns)}", allowed="a column of strings",
                      fix="name the column that holds the text: --config.data.text_field=...")
    batches = file.iter_batches(PARQUET_ROWS, columns=[reading.text_field])
    rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
    yield from reading.documents((f"{path}: row {number}", row) for number, row in enumerate(rows, 1))
