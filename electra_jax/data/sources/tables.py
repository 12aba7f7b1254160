"""Tables of text: the records of CSV, TSV and JSON-lines files, each with its line, read strictly.

A record whose fields are not certain ends the reading with file and line: columns missing or left over, a quote that
is not closed, a JSON value that is not an object or names a field twice. Lines and fields may have any length.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from electra_jax.data.sources.forms import BY_NAME, name_suffix
from electra_jax.data.sources.lines import read_lines
from electra_jax.errors import UserError, named

# Suffix of a name, without compression, in lower case -> kind.
KINDS = {suffix: "jsonl" if form == "json" else form for suffix, form in BY_NAME.items() if form != "parquet"}
csv.field_size_limit(2**31 - 1)  # 128 KiB by default

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
Row = tuple[int, list[str]]  # line number from 1, fields


def kind_of(path: str) -> str | None:
  """csv, tsv or jsonl by the file's name; None for another.

  >>> kind_of("labels.CSV.gz"), kind_of("labels.txt")
  ('csv', None)
  """
  return KINDS.get(name_suffix(path))


def read(path: str, header: Sequence[str] | None = None, kind: str | None = None,
         left_out: dict[str, str] | None = None) -> Iterator[tuple[int, dict]]:
  """(line number from 1, {field: value}) of each record; blank lines and rows of empty fields are skipped.

  TSV is read as GLUE's: quotes mean nothing. In CSV quotes are those of RFC 4180; a record has its first line's number.

  Args:
    header: column names of a file without a header line.
    kind: a value of `KINDS`; None = by the file's name.
    left_out: if given, rows with too few columns are left out and recorded here: "file:line" -> why.

  Raises:
    UserError: the file or a record is broken; file and line are named.
  """
  kind = kind or kind_of(path)
  if kind == "jsonl":
    return ((number, parse_object(line, f"{path}:{number}"))
            for number, line in read_lines(path, any_length=True) if line.strip())
  return _records(path, (_csv_rows if kind == "csv" else _tsv_rows)(path), header, left_out)


def columns(path: str, kind: str) -> list[str]:
  """The fields in the header of a CSV or TSV file; [] if every line is blank."""
  rows = (_csv_rows if kind == "csv" else _tsv_rows)(path)
  return next((values for _, values in rows if any(value.strip() for value in values)), [])


def parse_object(line: str, where: str) -> dict:
  """The JSON object of a line.

  Raises:
    UserError: it is not one, or it names a field twice.
  """
  try:
    value = parse_json(line)
  except (ValueError, RecursionError) as error:
    got = str(error)
  else:
    if isinstance(value, dict):
      return value
    got = f"of type {type(value).__name__}"
  raise UserError("A line is no JSON object", got=f"{where}: {got}", allowed='one object a line, for example {"text": '
                  '"...", "label": "..."}', fix="correct the line; `jq -c '.[]' FILE` makes lines of one JSON list")


def parse_json(text: str) -> Any:
  """The value of a JSON text.

  Raises:
    ValueError: it is broken, names a field twice, or has half of a surrogate pair, which is not a character.
    RecursionError: it is nested too deeply.
  """
  value = json.loads(text, object_pairs_hook=_unique)
  if _SURROGATE.search(text):
    json.dumps(value, ensure_ascii=False).encode()
  return value


def _unique(pairs: list[tuple]) -> dict:
  values = dict(pairs)
  if len(values) < len(pairs):
    twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    raise ValueError(f"the field {twice!r} occurs twice")
  return values


def _tsv_rows(path: str) -> Iterator[Row]:
  return ((number, line.split("\t")) for number, line in read_lines(path, any_length=True))


def _csv_rows(path: str) -> Iterator[Row]:
  rows = csv.reader((line + "\n" for _, line in read_lines(path, any_length=True)), strict=True)
  while True:
    number = rows.line_num + 1
    try:
      yield number, next(rows)
    except StopIteration:
      return
    except csv.Error as error:
      is_open = "end of data" in str(error)
      raise UserError("A quote is not closed" if is_open else "A quoted field is broken",
                      got=f"{path}:{number}: " + ("the quote that begins in this record has no end" if is_open else
                                                  f"{error}, near line {rows.line_num}"),
                      allowed='fields in double quotes, with "" for a quote inside',
                      fix="correct the line, or write the file as .tsv or .jsonl") from error


def _records(path: str, rows: Iterator[Row], header: Sequence[str] | None, left_out: dict[str, str] | None
             ) -> Iterator[tuple[int, dict]]:
  for number, values in rows:
    where = f"{path}:{number}"
    if not any(value.strip() for value in values):
      continue
    if header is None:
      header = values
      _check_header(header, where)
    elif [value.strip("\ufeff") for value in values] == [*header]:
      raise UserError("The header occurs again", got=f"{where}: {named(values)}", allowed="a header in the first line",
                      fix="leave the line out; were two files put together?")
    elif len(values) == len(header):
      yield number, dict(zip(header, values))
    elif len(values) < len(header) and left_out is not None:
      left_out[where] = f"{len(values)} of {len(header)} columns"
    else:
      few = len(values) < len(header)
      rest = f"without {named(header[len(values):])}" if few else f"left over: {named(values[len(header):])}"
      raise UserError(f"A line has too {'few' if few else 'many'} columns",
                      got=f"{where}: {len(values)} fields, the header has {len(header)}; {rest}",
                      allowed="as many as the header", fix="correct the line; in CSV a text with commas or line breaks "
                      "stands in double quotes")


def _check_header(header: Sequence[str], where: str) -> None:
  faults = {
    "A column's name begins or ends with a blank or an invisible character": [
      name for name in header if name and is_padded(name)],
    "The header has a column twice": [name for name, count in Counter(filter(None, header)).items() if count > 1],
    "The header is one column with a separator in its name": [
      name for name in header if len(header) == 1 and re.search(r"[\t;,|]", name)],
  }
  for what, names in faults.items():
    if names:
      raise UserError(what, got=f"{where}: {names[0]!r}", allowed="names that differ, with commas between them in .csv "
                      "and tabs in .tsv", fix="correct the header, or give the file the ending of its separator")


def is_padded(name: str) -> bool:
  """Whether a name begins or ends with a blank or an invisible character, such as a byte order mark.

  >>> is_padded(" pos"), is_padded("\\ufeffpos"), is_padded("very good")
  (True, True, False)
  """
  return name != name.strip() or not (name[0] + name[-1]).isprintable()
