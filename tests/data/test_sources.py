"""Parquet, TFDS, buckets, weighted mixtures, and skipped records: what is read, counted and refused."""

import functools
import io
import pathlib
import sys
from collections import Counter

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from electra_jax.data import shards
from electra_jax.data.sources import documents, records
from electra_jax.data.sources.documents import parse_path, read_documents
from electra_jax.errors import UserError
from tests.data.corpora import assert_four_parts, make_config
from tests.data.fakes import FakeTokenizer
from tests.data.test_documents import read, write

TEXTS = ["First paragraph.\nSecond one.", " Another document. ", "", "\u2028 kept \r\rin one\0 piece"]
DOCUMENTS = [["First paragraph.", "Second one."], ["Another document."], ["kept", "in one piece"]]


def write_parquet(path, texts, field="text", row_group_size=2):
  parquet.write_table(pyarrow.table({"id": range(len(texts)), field: pyarrow.array(texts, pyarrow.string())}), path,
                      row_group_size=row_group_size)
  return path


# ---- Parquet ----


def test_parquet(tmp_path, monkeypatch):
  path = write_parquet(tmp_path / "a.parquet", TEXTS)
  assert read(path) == DOCUMENTS
  monkeypatch.setattr(records, "PARQUET_ROWS", 1)
  assert read(path) == DOCUMENTS
  assert read(write_parquet(tmp_path / "b.parquet", TEXTS, field="body"), text_field="body") == DOCUMENTS
  parquet.write_table(pyarrow.table({"text": pyarrow.array(TEXTS, pyarrow.large_string())}), tmp_path / "c.parquet")
  assert read(tmp_path / "*.parquet", text_field="text", max_documents=3) == DOCUMENTS


BAD_PARQUET = {
  "empty": (lambda path: write_parquet(path, []), "holds no document"),
  "no column": (lambda path: write_parquet(path, TEXTS, field="body"), 'no column "text"'),
  "null": (lambda path: write_parquet(path, ["fine", None]), "a.parquet: row 2: a NoneType"),
  "numbers": (lambda path: parquet.write_table(pyarrow.table({"text": [1, 2]}), path), "row 1: a int"),
  "no bytes": (lambda path: path.write_bytes(b""), "damaged"),
  "text": (lambda path: path.write_text("some text that is no Parquet"), "damaged"),
  "truncated": (lambda path: path.write_bytes(write_parquet(path, TEXTS * 99).read_bytes()[:-20]), "damaged"),
  "damaged": (lambda path: path.write_bytes(damage(write_parquet(path, TEXTS * 99).read_bytes())), "damaged"),
}


def damage(data):
  return data[:4] + b"\xff" * 200 + data[204:]


@pytest.mark.parametrize("make, message", BAD_PARQUET.values(), ids=BAD_PARQUET)
def test_bad_parquet_names_the_place(tmp_path, make, message):
  path = tmp_path / "a.parquet"
  make(path)
  with pytest.raises(UserError) as caught:
    read(path)
  assert_four_parts(caught, message, str(path))


def test_parquet_under_another_name_is_told(tmp_path):
  write_parquet(tmp_path / "a.parquet", TEXTS).rename(tmp_path / "a.txt")
  with pytest.raises(UserError, match="begins like Parquet"):
    read(tmp_path / "a.txt")


# ---- skipped records ----


def test_bad_records_are_counted_by_reason(tmp_path):
  path = write(tmp_path / "a.jsonl", '{"text": "one"}\n{"text": \n[1]\n{"body": "x"}\n{"text": 3}\n\n{"text": null}\n'
                                     '{"text": "two"}\n')
  write_parquet(tmp_path / "b.parquet", ["three", None])
  skipped = Counter()
  assert read(tmp_path, on_bad_record="skip", skipped=skipped) == [["one"], ["two"], ["three"]]
  assert skipped == {"A JSONL record is broken": 1, "A record is no object": 1, 'A record has no field "text"': 1,
                     'The field "text" of a record is no text': 3}
  with pytest.raises(UserError, match=r"a\.jsonl:2: .*") as caught:
    read(path)
  assert "on_bad_record=skip" in str(caught.value)


def test_skipped_records_are_in_the_statistics(tmp_path):
  path = write(tmp_path / "a.jsonl", '{"text": "a b"}\nbroken\n{"text": "c d"}\n{"id": 1}\n')
  config = make_config(path, on_bad_record="skip")
  manifest = shards.prepare(config, FakeTokenizer(), str(tmp_path / "s"), seed=0)
  assert manifest["statistics"]["skipped_records"] == {"A JSONL record is broken": 1, 'A record has no field "text"': 1}
  assert shards.read_manifest(str(tmp_path / "s")) == manifest


def test_a_broken_file_is_an_error_all_the_same(tmp_path):
  with pytest.raises(UserError, match="not UTF-8"):
    read(write(tmp_path / "a.jsonl", b'{"text": "caf\xe9"}\n'), on_bad_record="skip")


# ---- several sources ----


@pytest.fixture
def three(tmp_path):
  for name in "abc":
    write(tmp_path / f"{name}.txt", "\n\n".join(f"{name}{i}" for i in range(3 if name != "c" else 400)))
  return tmp_path


def test_sources_take_turns_as_often_as_their_weights_say(three):
  a, b = three / "a.txt", three / "b.txt"
  assert read(f"{a},{b}") == [["a0"], ["b0"], ["a1"], ["b1"], ["a2"], ["b2"]]
  twice = read(f"{a}*2, {b}")
  assert twice == [["a0"], ["b0"], ["a1"], ["b1"], ["a2"], ["b2"], ["a0"], ["a1"], ["a2"]]
  assert read(f"{a}*2,{b}", max_documents=3) == twice[:3]
  assert Counter(d[0] for d in read(f"{a}*3,{three}/[ab].txt*2")) == Counter(
    {f"a{i}": 5 for i in range(3)} | {f"b{i}": 2 for i in range(3)})


def test_fractions_are_a_fixed_choice_of_documents(three):
  c = three / "c.txt"
  half, most = ([d[0] for d in read(f"{c}*{weight}")] for weight in ("0.5", "0.75"))
  assert 150 < len(half) < 250 and set(half) < set(most) and half == [d[0] for d in read(f"{c} * 0.5")]
  assert Counter(d[0] for d in read(f"{c}*2.5")) == Counter(dict.fromkeys(half, 1)) + Counter(
    d[0] for d in read(f"{c}*2"))


@pytest.mark.parametrize("path, parts", [
  ("a*2", [("a", 2.0)]), ("a.jsonl * 0.25 ,b/**", [("a.jsonl", 0.25), ("b/**", 1.0)]),
  ("x/*", [("x/*", 1.0)]), ("x/**/*.txt*3", [("x/**/*.txt", 3.0)]), ("part-*[2]", [("part-*[2]", 1.0)]),
  ("pydoc:*2,tfds:wiki40b/en:1.3.0:train[:10%]", [("pydoc:", 2.0), ("tfds:wiki40b/en:1.3.0:train[:10%]", 1.0)]),
  ("gs://bucket/a,s3://b*2", [("gs://bucket/a", 1.0), ("s3://b", 2.0)])])
def test_paths_with_weights(path, parts):
  assert parse_path(path) == parts


def test_a_name_with_comma_or_star_that_exists_is_taken_as_it_stands(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  write(tmp_path / "a,b*2", "odd\n")
  assert read("a,b*2") == [["odd"]]


@pytest.mark.parametrize("path", ["a.txt,", ",", "a.txt*0", "a.txt,b.txt*0.0"])
def test_empty_parts_and_zero_weights_are_refused(path):
  with pytest.raises(UserError, match="empty or has the weight 0"):
    read_documents(path)


def test_each_source_must_exist_and_hold_a_document(three):
  with pytest.raises(UserError, match="does not exist"):
    read_documents(f"{three}/a.txt,{three}/nowhere.txt")  # at once
  write(three / "empty.txt", "")
  with pytest.raises(UserError, match="no document") as caught:
    read(f"{three}/a.txt,{three}/empty.txt")
  assert_four_parts(caught, "empty.txt")


def test_corpus_bytes(three):
  size = (three / "a.txt").stat().st_size
  assert documents.corpus_bytes(f"{three}/a.txt*3,{three}/b.txt*0.5") == round(3.5 * size)
  write_parquet(three / "d.parquet", TEXTS)
  assert documents.corpus_bytes(str(three)) is documents.corpus_bytes("pydoc:") is None


# ---- TFDS ----


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
  """Two data sets in TFDS's own format: one with a text and a label, one without text."""
  import tensorflow_datasets as tfds

  folder = tmp_path_factory.mktemp("tfds")
  rows = [(i, {"body": text, "label": i % 2}) for i, text in enumerate(TEXTS)]
  tfds.dataset_builders.store_as_tfds_dataset(
    "small_reviews", "1.2.0", tfds.features.FeaturesDict({"body": tfds.features.Text(), "label": np.int64}),
    {"train": rows, "test": rows[:1]}, data_dir=folder, disable_shuffling=True)
  tfds.dataset_builders.store_as_tfds_dataset(
    "small_bytes", "1.0.0", tfds.features.FeaturesDict({"text": tfds.features.Tensor(shape=(), dtype=np.bytes_)}),
    {"train": [(0, {"text": b"caf\xe9"}), (1, {"text": b"fine"})]}, data_dir=folder, disable_shuffling=True)
  with pytest.MonkeyPatch.context() as patch:  # TFDS reads TFDS_DATA_DIR when it is imported
    patch.setattr(tfds, "builder", functools.partial(tfds.builder, data_dir=folder))
    yield


@pytest.mark.parametrize("path, expected", [
  ("tfds:small_reviews", DOCUMENTS), ("tfds:small_reviews:test", DOCUMENTS[:1]),
  ("tfds:small_reviews:1.2.0", DOCUMENTS), ("tfds:small_reviews:1.2.0:train[1:]", DOCUMENTS[1:]),
  ("tfds:small_reviews:test*2,tfds:small_reviews:train[1:2]", [DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[0]])])
def test_tfds(tfds_dir, path, expected):
  assert read(path, text_field="body") == expected


@pytest.mark.parametrize("path, field, message", [
  ("tfds:", "body", "no name"), ("tfds:no_such_set", "body", "no_such_set"),
  ("tfds:small_reviews:validation", "body", "validation"), ("tfds:small_reviews", "text", "features are body, label"),
  ("tfds:small_reviews", "label", "features are body, label"), ("tfds:small_bytes", "text", "record 1")])
def test_bad_tfds(tfds_dir, path, field, message):
  with pytest.raises(UserError) as caught:
    read(path, text_field=field)
  assert_four_parts(caught, message, path)


def test_tfds_errors_without_words(tfds_dir, monkeypatch):
  import tensorflow_datasets as tfds

  def fail(name):
    raise AssertionError

  monkeypatch.setattr(tfds, "builder", fail)
  with pytest.raises(UserError, match="AssertionError"):
    read("tfds:small_reviews")


def test_tfds_records_are_passed_over(tfds_dir):
  skipped = Counter()
  assert read("tfds:small_bytes", on_bad_record="skip", skipped=skipped) == [["fine"]]
  assert skipped == {'The field "text" of a record is no text': 1}


# ---- Hugging Face data sets ----


@pytest.fixture(scope="module")
def hf_folders(tmp_path_factory):
  """Saved data sets: one with splits, one without."""
  import datasets

  folder = tmp_path_factory.mktemp("hf")
  whole = datasets.Dataset.from_dict({"body": [*TEXTS, None], "label": range(len(TEXTS) + 1)})
  datasets.DatasetDict({"train": whole, "test": whole.select([0])}).save_to_disk(folder / "splits")
  whole.select(range(len(TEXTS))).save_to_disk(folder / "one")
  return folder


def test_hf(hf_folders):
  assert read(f"hf:{hf_folders}/one", text_field="body") == DOCUMENTS
  assert read(f"hf:{hf_folders}/splits:test*2", text_field="body") == DOCUMENTS[:1] * 2
  skipped = Counter()
  assert read(f"hf:{hf_folders}/splits", text_field="body", on_bad_record="skip", skipped=skipped) == DOCUMENTS
  assert skipped == {'The field "body" of a record is no text': 1}


@pytest.mark.parametrize("path, field, message", [
  ("hf:", "body", "no path"), ("hf:{}/splits:validation", "body", "validation"),
  ("hf:{}/one:test", "body", "without splits"), ("hf:{}/one", "text", "fields are body, label"),
  ("hf:{}/splits", "body", "record 5: a NoneType")])
def test_bad_hf(hf_folders, path, field, message):
  path = path.format(hf_folders)
  with pytest.raises(UserError) as caught:
    read(path, text_field=field)
  assert_four_parts(caught, message, path)


def test_hf_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "datasets", None)
  with pytest.raises(UserError, match="pip install datasets"):
    read("hf:any/name")


# ---- buckets ----


class Torn(io.BytesIO):
  """A file whose connection breaks off."""

  def read(self, size=-1):
    raise RuntimeError("connection reset")


@pytest.fixture
def bucket(tmp_path, monkeypatch):
  """gs://shelf, a bucket that is a folder."""
  from etils.epath import backend, gpath

  class Shelf(type(backend.os_backend)):
    def local(self, path):
      return str(path).replace("gs://shelf", str(tmp_path / "shelf"))

    def remote(self, path):
      return str(path).replace(str(tmp_path / "shelf"), "gs://shelf")

    def open(self, path, mode):
      if "locked" in str(path):
        raise RuntimeError("403 Forbidden")
      if "torn" in str(path):
        return Torn(b"text" * 99)
      return super().open(self.local(path), mode)

    def stat(self, path):
      return super().stat(self.local(path))

    def exists(self, path):
      return super().exists(self.local(path))

    def isdir(self, path):
      return super().isdir(self.local(path))

    def glob(self, path):
      return map(self.remote, super().glob(self.local(path)))

    def walk(self, top, **keys):
      return ((self.remote(root), folders, files) for root, folders, files in super().walk(self.local(top), **keys))

  monkeypatch.setitem(gpath._PREFIX_TO_BACKEND, "gs", Shelf())
  monkeypatch.setattr(gpath, "_is_tf_installed", lambda: False)
  return tmp_path / "shelf"


def test_buckets(bucket):
  import gzip

  write(bucket / "b/2.jsonl.gz", gzip.compress(b'{"text": "b2"}\n{"text": "b3"}\n'))
  write(bucket / "a.txt", "a1\n\na2\n")
  write(bucket / ".hidden/x.txt", "no")
  write_parquet(bucket / "c.parquet", ["c1"])
  assert read("gs://shelf") == [["a1"], ["a2"], ["b2"], ["b3"], ["c1"]]
  assert read("gs://shelf/b") == read("gs://shelf/b/*.gz") == [["b2"], ["b3"]]
  assert read("gs://shelf/a.txt, gs://shelf/c.parquet*2") == [["a1"], ["c1"], ["a2"], ["c1"]]
  assert documents.corpus_bytes("gs://shelf/a.txt") is None
  config = make_config("gs://shelf/a.txt")
  assert shards.prepare(config, FakeTokenizer(), str(bucket.parent / "s"), seed=0)
  assert pathlib.Path(bucket.parent / "s" / "manifest.json").exists()


def test_buckets_that_cannot_be_read(bucket):
  write(bucket / "locked.txt", "secret")
  write(bucket / "locked.parquet", "secret")
  for name in ("torn.txt", "torn.parquet", "torn.txt.gz"):
    write(bucket / name, "text")
  write(bucket / "bad.parquet", "text")
  for path, words in (("gs://shelf/nothing", "No file was found"), ("gs://shelf/locked.txt", "403 Forbidden"),
                      *((f"gs://shelf/torn.{form}", "connection reset") for form in ("txt", "parquet", "txt.gz")),
                      ("gs://shelf/locked.parquet", "403 Forbidden"), ("gs://shelf/bad.parquet", "is damaged"),
                      ("gs://shelf/**/*.txt", "without `**`")):
    with pytest.raises(UserError) as caught:
      read(path)
    assert_four_parts(caught, words, path)
