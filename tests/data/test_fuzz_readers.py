"""Whatever bytes a file holds: documents, or an error of four parts that names the file; never anything else."""

import gzip
import io
import json
from collections import Counter

import pyarrow
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from electra_jax.data.sources import lines
from electra_jax.data.sources.documents import read_documents
from electra_jax.errors import UserError
from tests.data.test_documents import write

FUZZ = dict(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ODD = ["\r", "\n", "\r\n", "\u2028", "\x85", "\x0c", "\0", "\ufeff", " ", "a", "é", "東", "\n\n"]
TEXT = "".join(f"Line {i} of the text, naïve café 東京.\n" + "\n" * (i % 3 == 0) for i in range(300)).encode()


def documents_or_error(path, **keys):
  """The documents, after a check of what every document promises; None for a UserError that names the file."""
  try:
    found = list(read_documents(str(path), **keys))
  except UserError as error:
    assert path.name in error.got and error.allowed and error.fix
    return None
  assert found and all(document for document in found)
  for paragraph in (paragraph for document in found for paragraph in document):
    assert paragraph and paragraph == paragraph.strip() and not set("\r\n\0") & set(paragraph)
    paragraph.encode("utf-8")
  return found


@settings(**FUZZ)
@given(content=st.one_of(st.binary(max_size=200), st.lists(st.sampled_from(ODD)).map(lambda s: "".join(s).encode())),
       name=st.sampled_from(["a.txt", "a.jsonl", "a.txt.gz", "a.jsonl.zst", "a.parquet"]), skip=st.booleans())
def test_any_bytes(tmp_path, content, name, skip):
  documents_or_error(write(tmp_path / name, content), on_bad_record="skip" if skip else "error")


@settings(**FUZZ)
@given(parts=st.lists(st.sampled_from(ODD), max_size=30), chunk_bytes=st.integers(1, 8))
def test_lines_are_those_of_universal_newlines(tmp_path, monkeypatch, parts, chunk_bytes):
  monkeypatch.setattr(lines, "CHUNK_BYTES", chunk_bytes)
  text = "".join(parts)
  found = documents_or_error(write(tmp_path / "a.txt", text))
  if found is not None:  # io.StringIO(newline=None) splits at \\n, \\r and \\r\\n alone
    clean = text.removeprefix("\ufeff").replace("\0", "")
    assert [p for d in found for p in d] == [line.strip() for line in io.StringIO(clean, None) if line.strip()]


def archives():
  buffer = io.BytesIO()
  parquet.write_table(pyarrow.table({"text": [line for line in TEXT.decode().split("\n") if line]}), buffer)
  return {"a.txt.gz": gzip.compress(TEXT), "a.txt.zst": zstandard.ZstdCompressor().compress(TEXT),
          "a.parquet": buffer.getvalue()}


@pytest.mark.parametrize("name", archives())
@settings(**FUZZ)
@given(share=st.floats(0.0, 0.999))
@example(share=0.0)
def test_a_file_that_was_cut_off_is_never_taken_for_a_whole_one(tmp_path, name, share):
  content = archives()[name]
  assert documents_or_error(write(tmp_path / name, content))
  assert documents_or_error(write(tmp_path / name, content[:int(share * len(content))])) is None


@pytest.mark.parametrize("name", archives())
@settings(**FUZZ)
@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_flipped_byte(tmp_path, name, where, flip):
  content = bytearray(archives()[name])
  content[int(where * len(content))] ^= flip
  documents_or_error(write(tmp_path / name, bytes(content)))


@settings(**FUZZ)
@given(records=st.lists(st.one_of(
  st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=2),
  st.dictionaries(st.sampled_from(["text", "body"]), st.one_of(st.text(max_size=9), st.none(), st.integers())))))
def test_records_are_read_or_counted(tmp_path, records):
  path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, records)) + "\n{broken\n" + '{"text": "last"}\n')
  skipped = Counter()
  found = list(read_documents(str(path), on_bad_record="skip", skipped=skipped))
  texts = [r["text"] for r in records if isinstance(r, dict) and isinstance(r.get("text"), str)]
  assert skipped.total() == len(records) - len(texts) + 1
  blank = [text for text in texts if not text.replace("\0", "").strip()]
  assert len(found) == len(texts) - len(blank) + 1 and found[-1] == ["last"]


def test_a_line_of_ten_megabytes_is_a_paragraph_and_one_of_twenty_an_error(tmp_path):
  line = "word " * 2_000_000
  assert documents_or_error(write(tmp_path / "a.txt", line + "\nnext\n")) == [[line.strip()], ["next"]]
  assert documents_or_error(write(tmp_path / "a.jsonl", json.dumps({"text": line}))) == [[line.strip()]]
  assert documents_or_error(write(tmp_path / "a.txt", line * 2)) is None
