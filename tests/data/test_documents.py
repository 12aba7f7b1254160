"""Every source gives the documents that were written, and every kind of bad input ends in a four-part error."""

import gzip
import random
import subprocess
import sys
import time

import pytest
import zstandard
from ml_collections import ConfigDict

from electra_jax.data.sources import documents, lines, pydoc_corpus
from electra_jax.data.sources.documents import is_heldout, read_documents
from electra_jax.errors import UserError
from tests.data.corpora import assert_four_parts

TEXT = "First paragraph.\nSecond one.\n\n\n  Another document. \n"
DOCUMENTS = [["First paragraph.", "Second one."], ["Another document."]]
JSONL = '{"text": "First paragraph.\\nSecond one."}\n\n{"text": " Another document. ", "id": 7}\n{"text": " \\n"}\n'


def read(path, **keys):
  return list(read_documents(str(path), **keys))


def write(path, content):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
  return path


# ---- what is read ----


@pytest.mark.parametrize("name, content", [("a.txt", TEXT), ("a", TEXT), ("a.md", TEXT), ("a.jsonl", JSONL),
                                           ("a.ndjson", JSONL)])
@pytest.mark.parametrize("suffix, pack", [("", lambda data: data), (".gz", gzip.compress),
                                          (".zst", lambda data: zstandard.ZstdCompressor().compress(data))])
def test_formats_and_compressions(tmp_path, name, content, suffix, pack):
  assert read(write(tmp_path / (name + suffix), pack(content.encode()))) == DOCUMENTS


def test_archives_joined_with_cat(tmp_path):
  for suffix, pack in ((".gz", gzip.compress), (".zst", zstandard.ZstdCompressor().compress)):
    assert read(write(tmp_path / f"a.txt{suffix}", pack(b"one\n\n") + pack(b"two\n"))) == [["one"], ["two"]]


@pytest.mark.parametrize("content, expected", [
  ("a\u2028b\nc\r\nd\re\x85f", [["a\u2028b", "c", "d", "e\x85f"]]),  # universal newlines only, none at the end
  ("a\r\n\r\nb\r\n", [["a"], ["b"]]),
  ("a\r\rb", [["a"], ["b"]]),
  ("\ufeffa\n", [["a"]]),  # byte order mark
  ("a\0b\n\0\nc", [["ab"], ["c"]]),  # NUL
  ("a\x0cb\x1cc\n", [["a\x0cb\x1cc"]]),  # str.splitlines would cut here
  ("\n\n a \n\t\nb\u00a0\n\n", [["a"], ["b"]]),
])
@pytest.mark.parametrize("chunk_bytes", [3, 4, 5, 1 << 20])
def test_lines(tmp_path, monkeypatch, content, expected, chunk_bytes):
  monkeypatch.setattr(lines, "CHUNK_BYTES", chunk_bytes)
  monkeypatch.setattr(lines, "HEAD_BYTES", chunk_bytes)
  assert read(write(tmp_path / "a.txt", content)) == expected


def test_jsonl_field_and_line_ends(tmp_path):
  path = write(tmp_path / "a.jsonl", '{"body": "a\\u2028b\\nc\\r\\nd\\re\\u0000\\ud800", "text": 1}')
  assert read(path, text_field="body") == [["a\u2028b", "c", "d", "e\N{REPLACEMENT CHARACTER}"]]


def test_directories_and_globs_are_sorted_and_skip_hidden_files(tmp_path):
  for name in ("b/2.txt", "b/1.txt", "a.txt", ".hidden.txt", ".git/c.txt", "b/empty.txt", "z/wiki_00"):
    write(tmp_path / name, "" if "empty" in name else f"text of {name}\n")
  everything = [[f"text of {name}"] for name in ("a.txt", "b/1.txt", "b/2.txt", "z/wiki_00")]
  assert read(tmp_path) == everything
  assert read(tmp_path / "**") == everything
  assert read(tmp_path / "**" / "*.txt") == everything[:3]
  assert read(f"{tmp_path}/b/") == everything[1:3]
  write(tmp_path / "odd[1].txt", "brackets")
  assert read(tmp_path / "odd[1].txt") == [["brackets"]]


def test_max_documents(tmp_path):
  path = write(tmp_path / "a.txt", "a\n\nb\n\nc\n")
  assert [len(read(path, max_documents=n)) for n in (0, 1, 2, 3, 9)] == [3, 1, 2, 3, 3]


def test_a_file_without_blank_lines_becomes_several_documents(tmp_path, monkeypatch):
  monkeypatch.setattr(documents, "MAX_DOCUMENT_CHARACTERS", 10)
  assert read(write(tmp_path / "a.txt", "12345\n12345\n12345\n1234567890123\n1\n")) == [
    ["12345", "12345"], ["12345"], ["1234567890123"], ["1"]]


def test_memory_does_not_grow_with_the_corpus(tmp_path):
  path = tmp_path / "a.txt.gz"
  with gzip.open(path, "wb", compresslevel=1) as file:
    for _ in range(60):
      file.write(b"A line of some words.\n" * 50_000)  # 66 MB
  program = ("import resource, sys; from electra_jax.data.sources import documents\n"
             "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
             "n = sum(len(d) for d in documents.read_documents(sys.argv[1]))\n"
             "print(n, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)")
  done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
  count, grown_kb = map(int, done.stdout.split())
  assert count == 3_000_000 and grown_kb < 40_000


# ---- held-out split ----


def test_heldout_share_and_independence_of_order():
  corpus = [[f"Document {i}.", "Same second paragraph."] for i in range(20_000)]
  chosen = {d[0] for d in corpus if is_heldout(d, 0.05)}
  assert abs(len(chosen) / len(corpus) - 0.05) < 0.005
  random.Random(0).shuffle(corpus)
  assert {d[0] for d in corpus if is_heldout(d, 0.05)} == chosen
  assert chosen < {d[0] for d in corpus if is_heldout(d, 0.1)}  # a larger share keeps the smaller one's documents
  assert not any(is_heldout(d, 0.0) for d in corpus) and all(is_heldout(d, 1.0) for d in corpus)


def test_training_texts_leave_out_heldout_documents(tmp_path):
  path = write(tmp_path / "a.txt", "\n\n".join(f"Document {i}.\nEnd {i}." for i in range(500)))
  config = ConfigDict(dict(path=str(path), text_field="text", max_documents=0, heldout_share=0.2, on_bad_record="error",
                           text_format="auto", format="ELECTRA"))
  kept = [d for d in read(path) if not is_heldout(d, 0.2)]
  assert list(documents.training_texts(config)) == [p for d in kept for p in d] and 350 < len(kept) < 450


# ---- bad input ----

NOISE = random.Random(0).randbytes(999).hex().encode()
GOOD_JSON = '{"text": "fine"}\n'
BAD = {
  "missing": (None, None, "does not exist"),
  "empty": ("a.txt", b"", "holds no document"),
  "blank": ("a.txt", b" \n\n \r\n", "holds no document"),
  "NULs": ("a.txt", b"good line\n" + b"\0\1\2\3" * 100, "a.txt: 100 NUL bytes in 410, the first at byte offset 10"),
  "zip": ("a.txt", b"PK\x03\x04....", "begins like zip (byte offset 0"),
  "UTF-16": ("a.txt", "text".encode("utf-16"), "begins like UTF-16"),
  "gzip without .gz": ("a.txt", gzip.compress(b"text"), "the name must end in .gz"),
  "Latin-1": ("a.txt", b"plain\ncaf\xe9 bar\n", "a.txt: byte 0xe9 at byte offset 9, line 2 "),
  "Latin-1 far behind": ("a.txt", b"plain\r\n" * 200_000 + b"\rcaf\xe9\n", "byte offset 1400004, line 200002 "),
  "cut character": ("a.txt", "plain\ncafé".encode()[:-1], "byte offset 9"),
  "Latin-1 after a BOM": ("a.txt", b"\xef\xbb\xbfab\n\xff\n", "byte offset 6"),
  "truncated gzip": ("a.txt.gz", gzip.compress(NOISE)[:-30], "truncated"),
  "no gzip": ("a.txt.gz", b"plain text", "gzip file is damaged"),
  "truncated zstd": ("a.txt.zst", zstandard.ZstdCompressor().compress(NOISE)[:-30],
                     "damaged or truncated"),
  "no zstd": ("a.txt.zst", b"plain text", "zstd file is damaged"),
  "broken JSON": ("a.jsonl", GOOD_JSON + '{"text": "cut', "a.jsonl:2: "),
  "deep JSON": ("a.jsonl", "[" * 100_000, "a.jsonl:1: "),
  "no object": ("a.jsonl", GOOD_JSON + "\n[1]\n", "a.jsonl:3: a list"),
  "no field": ("a.jsonl", GOOD_JSON + '{"body": "x", "id": 1}\n', "a.jsonl:2: fields: 'body', 'id'"),
  "no string": ("a.jsonl", GOOD_JSON + '{"text": ["x"]}\n', "a.jsonl:2: a list"),
}


@pytest.mark.parametrize("name, content, message", BAD.values(), ids=BAD)
def test_bad_input_names_the_place(tmp_path, name, content, message):
  path = tmp_path / "nowhere" if name is None else write(tmp_path / name, content)
  with pytest.raises(UserError) as caught:
    read(path)
  assert_four_parts(caught, message, str(path))


def test_no_path_says_what_to_set():
  with pytest.raises(UserError, match=r"--config\.data\.path=/path/to/text.*--config\.data\.path=pydoc:"):
    read_documents("")  # at once, before anything is read


@pytest.mark.parametrize("path", ["{}/*.nothing", "{}/empty"])
def test_nothing_found(tmp_path, path):
  (tmp_path / "empty").mkdir()
  with pytest.raises(UserError, match="No file was found"):
    read_documents(path.format(tmp_path))


def test_one_huge_line(tmp_path, monkeypatch):
  monkeypatch.setattr(lines, "CHUNK_BYTES", 64)
  monkeypatch.setattr(lines, "MAX_LINE_CHARACTERS", 1024)
  with pytest.raises(UserError, match=r"a.txt:2: more than 1,024 characters"):
    read(write(tmp_path / "a.txt", "first\n" + "x" * 5000))


def test_a_long_line_takes_time_in_proportion_to_its_length(tmp_path, monkeypatch):
  monkeypatch.setattr(lines, "CHUNK_BYTES", 64)
  path = write(tmp_path / "a.json", "x" * 2_000_000)
  started = time.process_time()
  assert len(lines.read_text(str(path))) == 2_000_000
  assert time.process_time() - started < 2


# ---- the embedded corpus ----


def test_pydoc_reads_like_english_and_is_deterministic():
  corpus = list(pydoc_corpus.make_documents(["json", "email"]))
  assert corpus == list(pydoc_corpus.make_documents(["email", "json"]))
  paragraphs = [p for document in corpus for p in document]
  assert len(corpus) >= 8 and len({p.lower() for p in paragraphs}) == len(paragraphs)
  text = " ".join(paragraphs)
  assert "This class is useless unless subclassed" in text
  words = text.split()
  assert sum(word in ("the", "a", "of", "to", "is", "and", "in") for word in words) > 0.15 * len(words)
  assert not any(mark in text for mark in (">>>", "``", ":param", "http", ":func:"))


def test_pydoc_through_the_documents_interface():
  some = list(read_documents("pydoc:", max_documents=3))
  assert len(some) == 3 and all(isinstance(p, str) and p == p.strip() and p for d in some for p in d)
  assert some == list(read_documents("pydoc:", max_documents=3))


DOCSTRING = '''
Computes the mean of some numbers. It is the sum divided by
the count, as in :func:`~statistics.mean` and ``numpy.mean``.

Args:
  values (list of float): The numbers whose mean is wanted, at
    least one of them.
  axis: int

Returns:
  The arithmetic mean as a floating point number.

>>> mean([1, 2])
1.5

For larger inputs use this code::

    mean(many_numbers_that_are_in_a_file)
    This line is code, although it looks like a sentence.

Notes
-----
The numbers are added from left to right. See https://example.org for more of it.

Parameters
----------
x, y : array_like
    The first and the second input of this function.

Examples
--------
This paragraph belongs to the examples, and stays.
'''


def test_prose_of_a_docstring():
  assert list(pydoc_corpus.prose(DOCSTRING)) == [
    "Computes the mean of some numbers. It is the sum divided by the count, as in mean and numpy.mean.",
    "The numbers whose mean is wanted, at least one of them.",
    "The arithmetic mean as a floating point number.",
    "The numbers are added from left to right.",
    "The first and the second input of this function.",
    "This paragraph belongs to the examples, and stays.",
  ]


def test_docstrings_of_a_source_file(tmp_path):
  path = write(tmp_path / "module.py", f"""#!/usr/bin/env python
# A comment with "quotes" and '''more'''.
'''The module.'''
TEMPLATE = '''no docstring: {"x" * 500}
'''
class A:  # a comment
  r\"\"\"The class with a \\d.\"\"\"

  def f(self, x="'", y='''a'''):
    \"\"\"The
    method.\"\"\"
    return f'''not this:
    {{x}}'''
""")
  assert list(pydoc_corpus.docstrings(str(path))) == ["The module.", "The class with a \\d.", "The\nmethod."]
