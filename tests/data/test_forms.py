"""Forms of corpus files: what is read under any name, what is refused with its form, what stays text."""

import gzip
import io
import json
import tarfile
import zipfile
from collections import Counter

import pytest

from electra_jax.data.sources import forms, lines
from electra_jax.errors import UserError
from tests.data.test_documents import read, write

TEXTS = ["The river runs past the old mill.\nPeople walk there, slowly.", "Zwei alte Mühlen [dort] {hier}."]
DOCUMENTS = [text.split("\n") for text in TEXTS]
RECORDS = [{"text": text, "url": f"https://example.org/{i}"} for i, text in enumerate(TEXTS)]
JSONL = "".join(json.dumps(record) + "\n" for record in RECORDS)
ARRAY = json.dumps(RECORDS)
PRETTY = json.dumps(RECORDS, indent=2, ensure_ascii=False)
CSV = "id,text\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(TEXTS)) + "2,\n"
TSV = "text\tid\n" + "".join("{}\t{}\n".format(text.replace("\n", " "), i) for i, text in enumerate(TEXTS))
OBJECTS = "\n".join(json.dumps(record, indent=1) for record in RECORDS)

READ = {  # name -> content of which DOCUMENTS are read
  "c4-train.00000-of-00001.json.gz": gzip.compress(JSONL.encode()), "corpus.json": JSONL, "CORPUS.JSONL": JSONL,
  "a.jl": JSONL, "a.jsonlines": JSONL, "part-00000": JSONL, "dump.txt": JSONL,
  "A.JSON.GZ": gzip.compress(ARRAY.encode()),
  "array.json": ARRAY, "pretty.json": PRETTY, "array": PRETTY, "objects.json": OBJECTS, "objects": OBJECTS,
  "mark.json": b"\xef\xbb\xbf" + ARRAY.encode(), "blank.json": "\n\n  " + JSONL, "returns": JSONL.replace("\n", "\r\n"),
  "A.TXT": "\n\n".join(TEXTS),
  "reviews.csv": CSV, "REVIEWS.CSV.GZ": gzip.compress(CSV.encode()), "mark.csv": "\ufeff" + CSV, "table": CSV + "3,\n",
  "reviews.tsv": TSV, "rows.tab": TSV, "windows.csv": CSV.replace("\n", "\r\n")}


@pytest.mark.parametrize("name", READ)
def test_what_is_recognised(tmp_path, name):
  found = read(write(tmp_path / name, READ[name]))
  joined = [[" ".join(lines)] for lines in DOCUMENTS]  # TSV has no line breaks within a field
  assert found == (joined if name.endswith((".tsv", ".tab")) else DOCUMENTS)


def test_tables_name_their_column_and_skip_short_rows(tmp_path):
  path = write(tmp_path / "a.csv", "review,stars\nThe river runs.,5\nshort\nThe mill stands.,1\n")
  assert read(path, text_field="stars", on_bad_record="skip") == [["5"], ["1"]]
  with pytest.raises(UserError, match="too few columns") as caught:
    read(path, text_field="review")
  assert f"{path}:3" in caught.value.got
  skipped = Counter()
  assert read(path, text_field="review", on_bad_record="skip", skipped=skipped) == [["The river runs."],
                                                                                   ["The mill stands."]]
  assert skipped == {"A row has too few columns": 1}
  with pytest.raises(UserError, match='no column "text"') as caught:
    read(path)
  assert "columns 'review', 'stars'" in caught.value.got and "data.text_field" in caught.value.fix


@pytest.mark.parametrize("characters", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("content", [ARRAY, PRETTY, OBJECTS, JSONL])
def test_json_in_pieces(tmp_path, monkeypatch, content, characters):
  monkeypatch.setattr(lines, "CHUNK_BYTES", characters)
  assert read(write(tmp_path / "a", content), text_format="json") == DOCUMENTS


def test_json_lines_that_begin_with_a_long_record_are_streamed(tmp_path):
  record = json.dumps({"text": "The river runs. " * 5000})
  assert forms.recognise(str(write(tmp_path / "a.json", f"{record}\n{record}\n"))) == "jsonl"
  assert forms.recognise(str(write(tmp_path / "b.json", f"[{record}]"))) == "json"


def tar():
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode="w") as archive:
    archive.addfile(tarfile.TarInfo("a.txt"), io.BytesIO(b""))
  return buffer.getvalue()


def zipped():
  buffer = io.BytesIO()
  with zipfile.ZipFile(buffer, "w") as archive:
    archive.writestr("a.txt", "text")
  return buffer.getvalue()


REFUSED = {  # name -> (content, what the error says)
  "table.csv": ('id,body\n1,"The river, the mill"\n', "columns 'id', 'body'"),
  "one_column.CSV": ("The river\nThe mill\n", "looks like CSV: columns 'The river'"),
  "table": ('id,body,url\n1,"The river, the mill",x\n2,"a ""word"",\nand more",y\n', "looks like CSV"),
  "table.txt": ("Title,Body text\nrain,It rained a lot, too\nsnow,It snowed\n", "looks like CSV"),
  "numbers": ("1,rain,0.5\n2,snow,0.25\n3,fog,1\n", "looks like CSV"),
  "german": ("nummer;text\n1;Regen, viel\n2;Schnee\n", "CSV with semicolons"),
  "train.tsv": ("a river\t1\na mill\t0\n", "looks like TSV"),
  "train": ("The river runs.\t1\nThe mill stands.\t0\nIt rains.\t1\n", "looks like TSV"),
  "table.csv.gz": (gzip.compress(b"id,body\n1,a\n"), "columns 'id', 'body'"),
  "page.html": ("<p>The river</p>", "looks like HTML"),
  "page": ("\n<!DOCTYPE html>\n<html><body>The river</body></html>", "looks like HTML"),
  "comment": ("<!-- saved from -->\n<html>", "looks like HTML"),
  "dump.xml": ("<mediawiki>", "looks like XML"),
  "wiki_00": ('<doc id="12" url="https://example.org" title="Rain">\nRain\n\nRain falls.\n</doc>\n', "looks like XML"),
  "printed": ("{'text': 'The river'}\n{'text': 'The mill'}\n", "printed Python dictionaries"),
  "a.tar": (tar(), "tar archive"), "b.txt": (tar(), "tar archive"), "a.tar.gz": (gzip.compress(tar()), "tar archive"),
  "a.tgz": (gzip.compress(tar()), "tar archive"), "a.jsonl": (zipped(), "begins like zip"),
  "corpus": (zipped(), "begins like zip"), "c.rtf": ("{\\rtf1 The river}", "begins like RTF"),
  "d.db": (b"SQLite format 3\0" + bytes(100), "begins like SQLite"),
  "squad.json": ('{"version": "1.1", "data": []}', "'version', 'data'"),
  "strings.json": ('["The river", "The mill"]', "record 1: a str"),
  "strings": ('["The river", "The mill"]', "record 1"),
  "cut.json": (PRETTY[:-40], "A JSON file is broken"),
  "open.json": ('[{"text": "The river"}', "Expecting ',' delimiter"),
  "prose.json": ("The river", "A JSON file is broken"), "first.txt": ('{"text": "one"}\nThe river\n', "first.txt:2"),
  "latin.json": ('[{"text": "M\xfchle"}]'.encode("latin1"), "not UTF-8")}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(tmp_path, name):
  content, words = REFUSED[name]
  with pytest.raises(UserError) as caught:
    read(write(tmp_path / name, content))
  assert words in str(caught.value) and name in caught.value.got and len(str(caught.value)) < 1000
  assert "text_format=text" in caught.value.fix or "tar" in words or "begins" in words or "not UTF-8" in words \
    or "record" in caught.value.fix


TEXT = {  # name -> text that only resembles another form
  "poem.txt": "rain, snow\nsun, wind\nfog, frost\n",
  "verse": "春眠不觉晓,处处闻啼鸟\n夜来风雨声,花落知多少\n红豆生南国,春来发几枝\n",
  "wiki.txt": "[[File:Rain.jpg]] Rain\n\n[1] A note\n", "bracket": "[Music] The river\n", "brace": "{a, b} is a set\n",
  "quote": '["Rain," he said.]\nMore.\n', "readme.md": "# Rain\n\n| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n",
  "less": "<unk> rain <s>\n< 3 rivers\n", "code.py": "import os,sys\n\nprint(1)\nprint(2)\n",
  "set.tex": "{\\em rain}\n\\begin{a}\n", "indent": "\tThe river\n\tThe mill\n\tThe town\n",
  "list": "Rain\nSnow\nFog\n", "number": "1,000 rivers run\nand 2,000 mills stand\nfor 3,000 towns\n", "a.ndx": "rain",
  "csv words": "id,text\n", "lisp": "((rain) (snow))\n"}


@pytest.mark.parametrize("name", TEXT)
def test_what_stays_text(tmp_path, name):
  found = read(write(tmp_path / name, TEXT[name]))
  assert [line for document in found for line in document] == [
    line.strip() for line in TEXT[name].split("\n") if line.strip()]


@pytest.mark.parametrize("name", [name for name, (content, _) in REFUSED.items() if isinstance(content, str)
                                  and name != "c.rtf"])
def test_named_as_text(tmp_path, name):
  content = REFUSED[name][0]
  assert [line for document in read(write(tmp_path / name, content), text_format="text") for line in document] == [
    line.strip() for line in content.split("\n") if line.strip()]


def test_a_named_form_holds_for_every_file(tmp_path):
  write(tmp_path / "a.txt", JSONL)
  assert read(tmp_path, text_format="jsonl") == DOCUMENTS
  with pytest.raises(UserError, match="JSONL record is broken"):
    read(write(tmp_path / "b.txt", "The river"), text_format="jsonl")


def test_json_records_that_are_passed_over(tmp_path):
  path = write(tmp_path / "a.json", '[{"text": "one"}, 7, {"text": null}, {"body": "x"}, {"text": "two"}, 12]')
  assert read(path, on_bad_record="skip") == [["one"], ["two"]]
