"""Copies of files in buckets: read once, never above the limit, whole whatever else happens."""

import fcntl
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from electra_jax.data import bucket_cache, documents, files, shards
from electra_jax.data.bucket_cache import BucketCache
from electra_jax.errors import UserError
from tests.data.corpora import assert_four_parts, make_config
from tests.data.fakes import FakeTokenizer
from tests.data.test_documents import write
from tests.data.test_sources import bucket  # noqa: F401 - a fixture


@pytest.fixture
def fetched(bucket, monkeypatch):  # noqa: F811 - the fixture
  """gs://shelf with files 0 ... 5 of 100 bytes; a list of what was read from it."""
  for i in range(6):
    write(bucket / str(i), bytes([i]) * 100)
  paths, open_remote = [], files.open_file

  def open_file(path):
    if path.startswith("gs://"):
      paths.append(path)
    return open_remote(path)

  monkeypatch.setattr(bucket_cache, "open_file", open_file)
  return paths


def content(cache, number):
  with cache.open(f"gs://shelf/{number}") as file:
    return file.read()


def copies(folder):
  return sorted(path.read_bytes()[:1][0] for path in folder.iterdir() if path.name != bucket_cache.LOCK)


def test_least_recently_used_goes_first(fetched, tmp_path):
  folder = tmp_path / "cache"
  cache = BucketCache(str(folder), 250)
  for number, held in ((0, [0]), (1, [0, 1]), (0, [0, 1]), (2, [0, 2]), (0, [0, 2]), (3, [0, 3]), (1, [1, 3])):
    assert content(cache, number) == bytes([number]) * 100
    assert copies(folder) == held
  assert [path[-1] for path in fetched] == list("01231")


def test_a_file_above_the_limit_is_streamed(fetched, tmp_path):
  for limit in (0, 99):
    cache = BucketCache(str(tmp_path / "cache"), limit)
    assert content(cache, 1) == b"\1" * 100
  assert copies(tmp_path / "cache") == [] and len(fetched) == 2


def test_a_file_that_was_written_anew_is_read_anew(fetched, bucket, tmp_path):  # noqa: F811 - the fixture
  cache = BucketCache(str(tmp_path / "cache"), 1000)
  assert content(cache, 1) == b"\1" * 100
  write(bucket / "1", b"new")
  assert content(cache, 1) == b"new" and len(fetched) == 2


def test_what_is_open_stays_readable(fetched, tmp_path):
  cache = BucketCache(str(tmp_path / "cache"), 100)
  with cache.open("gs://shelf/0") as file:
    assert content(cache, 1) == b"\1" * 100 and copies(tmp_path / "cache") == [1]
    assert file.read() == b"\0" * 100


def test_a_copy_in_the_making_is_not_waited_for_and_what_a_kill_left_is_cleared(fetched, tmp_path):
  folder = tmp_path / "cache"
  cache = BucketCache(str(folder), 250)
  content(cache, 0)
  (copy,) = [path for path in folder.iterdir() if path.name != bucket_cache.LOCK]
  partial = copy.rename(f"{copy}{bucket_cache.PARTIAL}")
  script = ("import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.flock(file, fcntl.LOCK_EX); "
            "print('locked', flush=True); sys.stdin.read()")
  with subprocess.Popen([sys.executable, "-c", script, str(partial)], stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE) as other:
    assert other.stdout.readline() == b"locked\n"
    assert content(cache, 0) == b"\0" * 100 and partial.exists()
    for number in (1, 2):  # what it reserves counts
      content(cache, number)
    assert copies(folder) == [0, 2]
    other.kill()
  assert content(cache, 0) == b"\0" * 100
  assert copies(folder) == [0, 2] and not partial.exists()
  assert len(fetched) == 5


def test_many_at_once(fetched, tmp_path, monkeypatch):
  """Each thread has its own locks, as a process has."""
  folder, largest = tmp_path / "cache", []
  cache = BucketCache(str(folder), 250)
  flock = fcntl.flock

  def watched(file, operation):
    flock(file, operation)
    if file.name.endswith(bucket_cache.LOCK):
      largest.append(sum(entry.stat().st_size for entry in os.scandir(folder)))

  monkeypatch.setattr(bucket_cache.fcntl, "flock", watched)
  numbers = random.Random(0).choices(range(6), k=300)
  with ThreadPoolExecutor(8) as pool:
    assert list(pool.map(lambda i: content(cache, i), numbers)) == [bytes([i]) * 100 for i in numbers]
  assert 100 <= max(largest) <= 250 and not [path for path in folder.iterdir() if path.suffix == bucket_cache.PARTIAL]


def test_a_corpus_is_fetched_once(fetched, bucket, tmp_path):  # noqa: F811 - the fixture
  write(bucket / "corpus/a.txt", "a b\n\nc d\n\ne f\n")
  config = make_config("gs://shelf/corpus", cache_dir=str(tmp_path / "cache"), cache_bytes=1000)
  texts = list(documents.read_corpus(config))
  shards.prepare(config, FakeTokenizer(), str(tmp_path / "s"), seed=0, progress=False)
  assert texts == [["a b"], ["c d"], ["e f"]] == list(documents.read_corpus(config))
  assert fetched == ["gs://shelf/corpus/a.txt"]


def test_faults_are_told(fetched, bucket, tmp_path):  # noqa: F811 - the fixture
  write(bucket / "locked", "secret")
  write(tmp_path / "file", "")
  for folder, number, words in ((tmp_path / "cache", "locked", ("403 Forbidden",)),
                                (tmp_path / "cache", "nothing", ("nothing",)),
                                (tmp_path / "file" / "cache", "1", ("cache_dir", "cache_bytes=0"))):
    with pytest.raises(UserError) as caught:
      content(BucketCache(str(folder), 1000), number)
    assert_four_parts(caught, *words)
