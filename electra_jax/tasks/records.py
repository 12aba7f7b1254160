"""How does a data set's file become records? TSV, CSV and JSONL line by line, and TFDS; each record knows its place."""

import csv
import json
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from electra_jax.data.lines import read_lines
from electra_jax.errors import UserError, named


class Record(NamedTuple):
  """The columns of one line under their names, and "file:line"."""

  values: dict
  where: str

  def get(self, column: str):
    """The column's value.

    Raises:
      UserError: there is no such column; file and line are named.
    """
    if column not in self.values:
      raise UserError(f"The column {column!r} is missing", got=f"{self.where}: {named(self.values)}",
                      allowed="every column that the task reads, in each line",
                      fix="correct the line or the header, or name the columns with --config.task.text_fields and "
                      "--config.task.label_field")
    return self.values[column]


def read_records(path: str, header: Sequence[str] | None = None) -> list[Record]:
  """All records of a .tsv, .csv or .jsonl file, which may be packed (.gz, .zst).

  TSV as GLUE's: quotes mean nothing. CSV: quotes as in RFC 4180. Blank lines are passed over.

  Args:
    header: column names of a file without a header line.

  Raises:
    UserError: there is no such file or record, or a line is broken; file and line are named.
  """
  name = path.removesuffix(".gz").removesuffix(".zst")
  kind = os.path.splitext(name)[1]
  if kind not in READERS:
    raise UserError("The kind of a data file is unknown", got=path, allowed=", ".join(READERS) + ", also .gz, .zst",
                    fix="rename or convert the file")
  if not os.path.exists(path):
    raise UserError("A data file does not exist", got=path, allowed="a readable file",
                    fix="check --config.task.data_dir, train_path, dev_path and test_path")
  records = list(READERS[kind](path, header))
  if not records:
    raise UserError("A data file has no example", got=f"{path}:1: empty behind the header",
                    allowed="at least one example", fix="check the file; it may have been cut off")
  return records


def _tsv(path: str, header: Sequence[str] | None) -> Iterator[Record]:
  for number, line in read_lines(path):
    if not line.strip():
      continue
    values = line.split("\t")
    if header is None:
      header = values
      continue
    if len(values) < len(header):
      raise _ragged(f"{path}:{number}", len(values), header)
    yield Record(dict(zip(header, values)), f"{path}:{number}")


def _csv(path: str, header: Sequence[str] | None) -> Iterator[Record]:
  numbered = {"line": 0}

  def lines() -> Iterator[str]:
    for number, line in read_lines(path):
      numbered["line"] = number
      yield line + "\n"

  for values in csv.reader(lines()):
    where = f"{path}:{numbered['line']}"
    if not values:
      continue
    if header is None:
      header = values
      continue
    if len(values) < len(header):
      raise _ragged(where, len(values), header)
    yield Record(dict(zip(header, values)), where)


def _jsonl(path: str, header: Sequence[str] | None) -> Iterator[Record]:
  del header
  for number, line in read_lines(path):
    if not line.strip():
      continue
    try:
      values = json.loads(line)
    except ValueError as error:
      values = str(error)
    if not isinstance(values, dict):
      raise UserError("A line is no JSON object", got=f"{path}:{number}: {str(values)[:80]}",
                      allowed='one object a line: {"text": "...", "label": "..."}', fix="correct the line")
    yield Record(values, f"{path}:{number}")


READERS = {".tsv": _tsv, ".csv": _csv, ".jsonl": _jsonl}


def _ragged(where: str, found: int, header: Sequence[str]) -> UserError:
  missing = named(header[found:])
  return UserError("A line has too few columns", got=f"{where}: {found} of {len(header)}, without {missing}",
                   allowed="as many as the header", fix="correct the line, or fetch the file again")


def read_tfds(name: str, split: str, data_dir: str = "") -> list[Record]:
  """The records of a TFDS split, texts as str and class labels by their names; a hidden label (-1) as None.

  Args:
    name: for example "glue/rte".
    data_dir: where TFDS keeps its data; "" = its default.

  Raises:
    UserError: there is no such data set, or it cannot be fetched.
  """
  try:
    import tensorflow_datasets as tfds
    builder = tfds.builder(name, data_dir=data_dir or None)
    builder.download_and_prepare()
    features = builder.info.features
    rows = list(tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False)))
  except Exception as error:  # TFDS raises many types: unknown name, no network, no space
    raise UserError(f"tfds:{name} cannot be read", got=f"{type(error).__name__}: {str(error)[:300]}",
                    allowed="an installed tensorflow-datasets, a data set and split of its catalogue, and a network",
                    fix="check --config.task.data_dir (tfds:glue, or a folder with GLUE's files)") from error

  def value(column, raw):
    if isinstance(raw, bytes):
      return raw.decode("utf-8")
    if hasattr(features[column], "names"):
      return features[column].int2str(int(raw)) if raw >= 0 else None
    return raw.item() if hasattr(raw, "item") else raw

  return [Record({column: value(column, raw) for column, raw in row.items()}, f"tfds:{name}:{split}:{number}")
          for number, row in enumerate(rows)]
