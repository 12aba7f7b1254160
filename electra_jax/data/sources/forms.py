"""Forms of corpus files: what the name and the first bytes of a file say that it holds.

Files that hold neither text nor known records are refused with the form they look like: markup and archives would
otherwise be learnt from as they stand.
"""

import csv
import json
import os
import re

from electra_jax.data.sources.lines import COMPRESSIONS, read_head
from electra_jax.errors import UserError

# suffix of a name, without compression, in lower case -> form
BY_NAME = {".jsonl": "jsonl", ".ndjson": "jsonl", ".jl": "jsonl", ".jsonlines": "jsonl", ".json": "json",
           ".parquet": "parquet", ".csv": "csv", ".tsv": "tsv", ".tab": "tsv"}
REFUSED_BY_NAME = {".html": "HTML", ".htm": "HTML", ".xhtml": "HTML", ".xml": "XML"}

_JSON = re.compile(r'\{\s*("(\\.|[^"\\\n])*"\s*:|\}\s*(\n|$))|\[\s*\{\s*"|\[\s*"(\\.|[^"\\])*"\s*(,\s*["\n]|\]\s*$)')
_PYTHON = re.compile(r"(\[\s*)?\{\s*'[^'\n]*'\s*:")
_HTML = re.compile(r"<(!doctype|html|head|body|div|span|p|table|script)\b[^<]*>|<!--", re.IGNORECASE)
_XML = re.compile(r"<(\?xml|svg|mediawiki|page|rss|feed|tei|doc|add)\b[^<]*>", re.IGNORECASE)
_COLUMN = re.compile(r"[A-Za-z_][\w .-]{0,40}")  # a name in the header of a table
_VALUE = re.compile(r"[-+]?\d+([.,]\d+)?|https?://\S+|\d{4}-\d\d-\d\d.*|true|false|null", re.IGNORECASE)


def recognise(path: str) -> str:
  """"text", "jsonl" (an object a line), "json" (an array, or objects over several lines), "csv", "tsv" or "parquet".

  Raises:
    UserError: it looks like another form; names it.
  """
  suffix = name_suffix(path)
  form = BY_NAME.get(suffix)
  if form not in ("json", None):
    return form
  head, is_whole = read_head(path)
  head = head.decode("utf-8", "ignore").lstrip("\ufeff \t\r\n").replace("\r\n", "\n").replace("\r", "\n")
  if form == "json" or _JSON.match(head):
    first, line_end, _ = head.partition("\n")
    is_cut = not line_end and not is_whole and first.startswith("{")  # one object fills the head: JSON lines, too
    return "jsonl" if is_cut or _is_object(first) else "json"
  foreign = REFUSED_BY_NAME.get(suffix) or _foreign_form(head, is_whole)
  if foreign in ("csv", "tsv"):
    return foreign
  if foreign:
    raise UserError(f"A corpus file looks like {foreign}, not like text", got=f"{path}: it begins {head[:60]!r}",
                    allowed="text, JSON lines, JSON arrays, CSV, TSV or Parquet, plain, .gz or .zst",
                    fix="convert it to text or JSON lines; leave it out with --config.data.path='DIR/**/*.txt'; or "
                        "have every file read as text, as it stands, with --config.data.text_format=text")
  return "text"


def name_suffix(path: str) -> str:
  """The suffix of a file name in lower case, without that of a compression: ".json" of "A.JSON.GZ"."""
  stem, suffix = os.path.splitext(path.lower())
  return os.path.splitext(stem)[1] if suffix in COMPRESSIONS else suffix


def _is_object(line: str) -> bool:
  try:
    return isinstance(json.loads(line), dict)
  except (ValueError, RecursionError):
    return False


def _foreign_form(head: str, is_whole: bool) -> str | None:
  """The form of a file that is not text: "csv", "tsv", or the name of one that is not read; None for text.

  >>> _foreign_form("id,title\\n1,Rain\\n2,Snow\\n", True), _foreign_form("Rain, snow\\nSun, wind\\nFog, ice\\n", True)
  ('csv', None)
  """
  for pattern, form in ((_PYTHON, "printed Python dictionaries"), (_HTML, "HTML"), (_XML, "XML")):
    if pattern.match(head):
      return form
  for delimiter, form in {",": "csv", "\t": "tsv", ";": "CSV with semicolons", "|": "CSV with bars"}.items():
    if _is_table(head, delimiter, is_whole):
      return form
  return None


def _is_table(head: str, delimiter: str, is_whole: bool) -> bool:
  """Whether three rows or more have the fields of a first row of names, or equally many and a column of plain values.

  Prose has blanks after its commas; the first row of a table has none.
  """
  first = head.partition("\n")[0]
  if delimiter not in first or delimiter + " " in first:
    return False
  rows = [row for row in csv.reader(head.splitlines(keepends=True), delimiter=delimiter) if row]
  rows = rows if is_whole else rows[:-1]  # the last may be cut
  if len(rows) < 3:
    return False
  names, *others = rows
  if all(_COLUMN.fullmatch(name.strip()) for name in names):
    return len(set(names)) == len(names) and all(len(row) >= len(names) for row in others)
  return all(len(row) == len(names) for row in others) and any(
    all(_VALUE.fullmatch(value.strip()) for value in column) for column in zip(*rows))
