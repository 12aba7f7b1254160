"""Tables read strictly: what every field says is certain, or file and line are named."""

import gzip
import json

import pytest

from electra_jax.data.sources import lines, tables
from electra_jax.errors import UserError

LONG = "a word " * 400_000  # 2.8 MB; csv's own limit is 128 KiB
GOOD = {  # file -> its bytes, the records
  "blank lines.csv": ("a,b\n\n1,2\n\n\n3,4", [(3, "1", "2"), (6, "3", "4")]),
  "a byte order mark.csv": ("\ufeffa,b\n1,2\n", [(2, "1", "2")]),
  "Windows lines.CSV": ("a,b\r\n1,2\r\n", [(2, "1", "2")]),
  "quoted line breaks.csv": ('a,b\n"1,\n\nx",2\n3,4\n', [(2, "1,\n\nx", "2"), (5, "3", "4")]),
  "doubled quotes.csv": ('a,b\n"say ""1""",2\n', [(2, 'say "1"', "2")]),
  "a quote inside of a field.csv": ('a,b\n5" wide,2\n', [(2, '5" wide', "2")]),
  "a long field.csv": (f'a,b\n"{LONG}",2\n', [(2, LONG, "2")]),
  "rows that a spreadsheet leaves.csv": ("a,b\n1,2\n,\n,\n", [(2, "1", "2")]),
  "an index without a name.csv": (",a,b\n0,1,2\n", [(2, "1", "2")]),
  "quotes in TSV are text.tsv": ('a\tb\n"1\t2\n', [(2, '"1', "2")]),
  "a long field.tsv": (f"a\tb\n{LONG}\t2\n", [(2, LONG, "2")]),
  "objects.jsonl": ('{"a": "1", "b": "2"}\n\n{"b": "4", "a": "3"}\n', [(1, "1", "2"), (3, "3", "4")]),
  "other names.JL.gz": ('{"a": "\\ud83d\\ude00", "b": "2"}\n', [(1, "😀", "2")]),
  "a long line.ndjson": (json.dumps({"a": LONG, "b": "2"}), [(1, LONG, "2")]),
}
BAD = {  # file -> its bytes, what the error names
  "a column too few.csv": ("a,b\n1,2\n3\n", ["too few columns", ":3: 1 fields, the header has 2; without b"]),
  "a comma that is not quoted.csv": ("a,b\n1,2\n3,4,5\n", ["too many columns", ":3: 3 fields, the header has 2", "5"]),
  "a tab too many.tsv": ("a\tb\n1\t2\t\n", ["too many columns", ":2: 3 fields"]),
  "a quote that is not closed.csv": ('a,b\n1,2\n3,"4\n5,6\n', ["quote is not closed", ":3:"]),
  "a quote that is closed by a later one.csv": ('a,b\n1,"2\n3,4\n5,"6"\n', ["quoted field is broken", ":2:", "line 4"]),
  "text behind a quote.csv": ('a,b\n"1"x,2\n', ["quoted field is broken", ":2:"]),
  "a blank before a quote.csv": ('a,b\n1, "2, 3"\n', ["too many columns", ":2:"]),
  "semicolons.csv": ("a;b\n1;2\n", ["one column with a separator", ":1: 'a;b'"]),
  "commas.tsv": ("a,b\n1,2\n", ["one column with a separator", ":1: 'a,b'"]),
  "a padded column.csv": ("a, b\n1,2\n", ["column's name begins or ends", ":1: ' b'"]),
  "two byte order marks.csv": ("\ufeff\ufeffa,b\n1,2\n", ["invisible character", "\\ufeff"]),
  "a column twice.csv": ("a,b,a\n1,2,3\n", ["a column twice", ":1: 'a'"]),
  "two files put together.csv": ("a,b\n1,2\na,b\n3,4\n", ["header occurs again", ":3: a, b"]),
  "the same with two marks.tsv": ("\ufeffa\tb\n1\t2\n\ufeffa\tb\n3\t4\n", ["header occurs again", ":3:"]),
  "a mark inside.jsonl": ('{"a": "1"}\n\ufeff{"a": "2"}\n', ["no JSON object", ":2: Unexpected UTF-8 BOM"]),
  "half an object.jsonl": ('{"a": "1"}\n{"a": \n', ["no JSON object", ":2: Expecting value"]),
  "a list of objects.json": ('[{"a": "1"}]', ["no JSON object", ":1: of type list", "jq -c"]),
  "a number.jsonl": ("3\n", ["no JSON object", ":1: of type int"]),
  "a field twice.jsonl": ('{"a": "1", "a": "2"}\n', ["no JSON object", ":1: the field 'a' occurs twice"]),
  "half a character.jsonl": ('{"a": "\\ud83d"}\n', ["no JSON object", ":1:", "surrogates not allowed"]),
  "deep.jsonl": ("[" * 100_000, ["no JSON object", ":1:"]),
  "UTF-16.csv": ("a,b\n1,2\n".encode("utf-16"), ["in UTF-16, not in UTF-8", "iconv -f UTF-16"]),
  "Latin-1.tsv": ("a\tb\ncafé\t2\n".encode("latin-1"), ["not UTF-8", "line 2"]),
}


def write(root, name, content):
  data = content if isinstance(content, bytes) else content.encode()
  path = root / name
  path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
  return str(path)


@pytest.mark.parametrize("name", GOOD)
def test_records_have_their_lines(name, tmp_path, monkeypatch):
  monkeypatch.setattr(lines, "MAX_LINE_CHARACTERS", 1 << 20)  # which holds for the lines of a corpus alone
  content, wanted = GOOD[name]
  assert [(number, row["a"], row["b"]) for number, row in tables.read(write(tmp_path, name, content))] == wanted


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_certain_is_refused_with_file_and_line(name, tmp_path):
  content, words = BAD[name]
  with pytest.raises(UserError) as caught:
    list(tables.read(write(tmp_path, name, content)))
  assert str(tmp_path) in caught.value.got and len(str(caught.value)) < 2_000
  assert all(word in str(caught.value) for word in words), str(caught.value)


def test_short_rows_are_left_out_and_put_down_where_asked(tmp_path):
  path, left_out = write(tmp_path, "a.tsv", "a\tb\tc\n1\t2\t3\n4\n5\t6\t7\n8\t9\n"), {}
  assert [number for number, _ in tables.read(path, left_out=left_out)] == [2, 4]
  assert left_out == {f"{path}:3": "1 of 3 columns", f"{path}:5": "2 of 3 columns"}
  with pytest.raises(UserError, match="too many"):  # those are never left out
    list(tables.read(write(tmp_path, "b.tsv", "a\tb\n1\t2\t3\n"), left_out={}))


def test_a_file_without_a_header_gets_its_names(tmp_path):
  assert list(tables.read(write(tmp_path, "a.tsv", "1\t2\n"), header=("a", "b"))) == [(1, {"a": "1", "b": "2"})]
