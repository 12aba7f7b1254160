"""How does a record become a document? JSONL and Parquet, and what happens to records that hold no text.

A record holds one document in its text field, a paragraph on each line.
"""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator

from electra_jax.data.bucket_cache import NO_CACHE, BucketCache
from electra_jax.data.lines import read_lines, universal_split
from electra_jax.errors import UserError

PARQUET_ROWS = 256  # that are unpacked at once

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclasses.dataclass(frozen=True)
class Reading:
  """What a source must know besides its path: keys of config.data, and a place for counts."""

  text_field: str = "text"
  on_bad_record: str = "error"  # error | skip
  tfds_dir: str = ""
  cache: BucketCache = NO_CACHE  # opens the files
  skipped: Counter[str] = dataclasses.field(default_factory=Counter)  # why -> how many records

  def skip(self, error: UserError) -> None:
    """Counts a record that is passed over, by the reason; raises it where `on_bad_record` is "error"."""
    if self.on_bad_record == "error":
      raise error
    self.skipped[error.what] += 1

  def text_of(self, record: object, place: str) -> str | None:
    """The text of a record; None for one that is passed over.

    Args:
      record: a dict, or what stands in place of one.
      place: how an error calls it: "corpus.jsonl:12".
    """
    field = self.text_field
    if not isinstance(record, dict):
      got, what = f"a {type(record).__name__}", "A record is no object"
      fix = 'write lines like {"text": "..."}'
    elif field not in record:
      got, what = f"fields: {', '.join(map(repr, record)) or 'none'}", f'A record has no field "{field}"'
      fix = "name the field that holds the text: --config.data.text_field=..."
    elif not isinstance(record[field], str):
      got, what = f"a {type(record[field]).__name__}", f'The field "{field}" of a record is no text'
      fix = "choose the field that holds the text with --config.data.text_field, or repair the record"
    else:
      return record[field]
    self.skip(UserError(what, got=f"{place}: {got}", allowed=f'records with a string under "{field}"',
                        fix=f"{fix}; --config.data.on_bad_record=skip passes over such records and counts them"))
    return None


def paragraphs(text: str) -> list[str]:
  r"""The lines of a record's text, stripped, without empty ones, NUL and lone surrogates.

  >>> paragraphs("One.\r\n\n Two\u2028still two. ")
  ['One.', 'Two\u2028still two.']
  """
  text = _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text).replace("\0", "")  # JSON can escape what UTF-8 cannot say
  return [line.strip() for line in universal_split(text) if line.strip()]


def read_jsonl(path: str, reading: Reading) -> Iterator[list[str]]:
  """One document a line, from the field `reading.text_field` of its JSON object.

  Raises:
    UserError: a broken record (unless those are skipped), with file and line; a file that is no text.
  """
  for number, line in read_lines(path, reading.cache.open):
    if not line.strip():
      continue
    place = f"{path}:{number}"
    try:
      record = json.loads(line)
    except (ValueError, RecursionError) as error:
      reading.skip(UserError("A JSONL record is broken", got=f"{place}: {error}", allowed="one JSON object per line",
                             fix="repair or remove the line; if the file was cut off, copy it again; --config.data."
                                 "on_bad_record=skip passes over such lines and counts them"))
      continue
    text = reading.text_of(record, place)
    if document := paragraphs(text or ""):
      yield document


def read_parquet(path: str, reading: Reading) -> Iterator[list[str]]:
  """One document a row, from the column `reading.text_field`; a part of a row group is in memory at a time.

  Raises:
    UserError: pyarrow is missing, the file is damaged, or it has no such column; a row without text (unless those are
      skipped), with file and row.
  """
  try:
    import pyarrow
    from pyarrow import parquet
  except ImportError as error:
    raise UserError("Reading Parquet needs a package that is not installed", got=path, allowed="pyarrow",
                    fix="pip install pyarrow, or write the corpus as JSONL") from error
  try:
    with reading.cache.open(path) as opened, parquet.ParquetFile(opened) as file:
      names = file.schema_arrow.names
      if reading.text_field not in names:
        raise UserError(f'A Parquet file has no column "{reading.text_field}"',
                        got=f"{path}: columns {', '.join(names) or 'none'}", allowed="a column of strings",
                        fix="name the column that holds the text: --config.data.text_field=...")
      row = 0
      for batch in file.iter_batches(PARQUET_ROWS, columns=[reading.text_field]):
        for text in batch.column(0).to_pylist():
          row += 1
          text = reading.text_of({reading.text_field: text}, f"{path}: row {row}")
          if document := paragraphs(text or ""):
            yield document
  except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
    raise UserError("A Parquet file is damaged", got=f"{path}: {error}", allowed="a complete .parquet file",
                    fix="copy or write it again") from error
