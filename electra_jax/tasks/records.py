"""Records of a data set: lines of TSV, CSV and JSON-lines files or rows of TFDS, each with its place for errors."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from electra_jax.data.sources import tables, tfds
from electra_jax.errors import UserError, named


class Record(NamedTuple):
  """The columns of one line by name, and "file:line"."""

  values: dict
  where: str

  def get(self, column: str) -> Any:
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


def read_records(path: str, header: Sequence[str] | None = None, left_out: dict[str, str] | None = None
                 ) -> list[Record]:
  """All records of a file; takes the arguments of `tables.read`.

  Raises:
    UserError: there is no such file or record, or a record is broken; file and line are named.
  """
  if not tables.kind_of(path):
    raise UserError("The kind of a data file is unknown", got=path,
                    allowed=", ".join(tables.KINDS) + ", also .gz, .zst", fix="rename or convert the file")
  check_exists(path)
  records = [Record(values, f"{path}:{number}")
             for number, values in tables.read(path, header, left_out=left_out)]
  if not records:
    raise UserError("A data file has no example", got=f"{path}:1: no usable line below the header",
                    allowed="at least one example", fix="check the file; it may have been cut off")
  return records


def find(*paths: str) -> str:
  """The first of these files that exists, as it is or compressed (.gz, .zst); if none does, the first path."""
  names = [path + compressed for path in paths for compressed in ("", ".gz", ".zst")]
  return next(filter(os.path.exists, names), names[0])


def check_exists(path: str) -> None:
  """Raises a UserError if a data file is missing."""
  if not os.path.exists(path):
    raise UserError("A data file does not exist", got=path, allowed="a readable file",
                    fix="check --config.task.data_dir, train_path, dev_path and test_path")


def read_tfds(name: str, split: str) -> list[Record]:
  """The records of a TFDS split: texts as str, class labels by name, a hidden label (-1) as None.

  Args:
    name: for example "glue/rte".

  Raises:
    UserError: there is no such data set, or it cannot be fetched.
  """
  features, rows = tfds.load(f"tfds:{name}:{split}", name, split,
                             fix="point --config.task.data_dir at a folder with GLUE's files")

  def value(column: str, raw):
    if isinstance(raw, bytes):
      return raw.decode("utf-8")
    if hasattr(features[column], "names"):
      return features[column].int2str(int(raw)) if raw >= 0 else None
    return raw.item() if hasattr(raw, "item") else raw

  return [Record({column: value(column, raw) for column, raw in row.items()}, f"tfds:{name}:{split}:{number}")
          for number, row in enumerate(rows)]
