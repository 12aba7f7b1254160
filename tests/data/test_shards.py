"""Shards: what is written can be read back; damage, misuse and a full disk are told and harm nothing."""

import errno
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from ml_collections import ConfigDict

from electra_jax.data import documents as documents_lib
from electra_jax.data import preparation, shard_files, shards
from electra_jax.errors import UserError
from tests.data.fakes import WORDS, FakeTokenizer

TOKENIZER = FakeTokenizer()


def make_config(path, **changes):
  config = ConfigDict(dict(
    path=str(path), text_field="text", on_bad_record="error", tfds_dir="", heldout_share=0.1, max_documents=0,
    sentences="line", sentence_language="en", cache_dir="", cache_bytes=0,
    format="ELECTRA", sequence_length=16, single_segment_share=0.1, short_sequence_share=0.05,
    shard_examples=50, num_workers=1))
  config.update(changes)
  return config


def make_corpus(folder, documents=120, seed=0):
  rng = np.random.default_rng(seed)
  path = folder / "corpus.txt"
  text = "\n\n".join("\n".join(" ".join(rng.choice(WORDS, rng.integers(1, 12))) for _ in range(rng.integers(1, 8)))
                     for _ in range(documents))
  path.write_text(text)
  return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
  """(config, directory, manifest) of shards that nobody may change; copy them to do harm."""
  folder = tmp_path_factory.mktemp("shards")
  config = make_config(make_corpus(folder))
  directory = folder / "shards"
  return config, directory, shards.prepare(config, TOKENIZER, str(directory), seed=0, progress=False)


def read_all(directory, split, **checks):
  examples = shards.open_shards(str(directory), split, **checks)
  return examples, *examples.read(np.arange(len(examples)))


def assert_four_parts(error, *words):
  text = str(error.value)
  assert all(part in text for part in ("got:", "allowed:", "fix:", *words)), text


def test_everything_comes_back(made):
  config, directory, manifest = made
  text = pathlib.Path(config.path).read_text()
  wanted = sorted(i for ids in TOKENIZER.encode_batch(text.split("\n")) for i in ids)
  found, total = [], 0
  for split in ("train", "heldout"):
    examples, ids, num_tokens, start = read_all(directory, split, config_data=config, tokenizer=TOKENIZER)
    assert (examples.sequence_length, examples.pad_id) == (16, 0)
    assert ids.dtype == num_tokens.dtype == start.dtype == np.int32 and ids.shape == (len(examples), 16)
    real = np.arange(16) < num_tokens[:, None]
    assert (ids[real] != 0).all() and not ids[~real].any()
    assert (ids[:, 0] == 1).all() and (ids[np.arange(len(ids)), num_tokens - 1] == 2).all()
    two = start < num_tokens
    assert (ids[two, start[two] - 1] == 2).all() and (start[~two] == num_tokens[~two]).all()
    found += ids[ids >= 5].tolist()
    statistics = manifest["statistics"][split]
    assert statistics["examples"] == len(examples) and statistics["dropped_tokens"] == 0
    assert statistics["padding_share"] == pytest.approx(1 - real.mean(), abs=1e-5)
    assert examples.token_counts(TOKENIZER.vocab_size).tolist() == np.bincount(
      ids[ids >= 5], minlength=TOKENIZER.vocab_size).tolist()
    total += statistics["documents"]
  assert sorted(found) == wanted and total == 120
  assert sum(manifest["statistics"][split]["tokens"] for split in ("train", "heldout")) == len(wanted)
  assert not [name for name in os.listdir(directory.parent) if "partial" in name or "replaced" in name]


def test_random_access_equals_sequential(made):
  _, directory, manifest = made
  examples, ids, num_tokens, start = read_all(directory, "train")
  assert len(manifest["splits"]["train"]["shards"]) >= 3
  some = np.random.default_rng(0).integers(0, len(examples), 200)
  for got, want in zip(examples.read(some), (ids, num_tokens, start)):
    assert np.array_equal(got, want[some])
  assert examples.read(np.zeros(0, np.int64))[0].shape == (0, 16)
  for bad in (-1, len(examples)):
    with pytest.raises(IndexError):
      examples.read(np.array([bad]))


def test_worker_count_does_not_matter(made, tmp_path, monkeypatch):
  config, _, _ = made
  monkeypatch.setattr(preparation, "CHUNK_CHARACTERS", 2000)  # many chunks
  for workers in (1, 2):
    config = make_config(config.path, num_workers=workers)
    shards.prepare(config, TOKENIZER, str(tmp_path / str(workers)), seed=0, progress=False)
  files = [sorted(p.relative_to(tmp_path / w) for p in (tmp_path / w).rglob("*.npy")) for w in "12"]
  assert files[0] == files[1] and len(files[0]) > 3
  for file in files[0]:
    assert (tmp_path / "1" / file).read_bytes() == (tmp_path / "2" / file).read_bytes()
  manifests = [json.loads((tmp_path / w / "manifest.json").read_text()) for w in "12"]
  for manifest in manifests:
    del manifest["statistics"]["seconds"]
  assert manifests[0] == manifests[1]


def test_large_vocabulary_and_full_sentences(tmp_path):
  config = make_config(make_corpus(tmp_path, 10), format="FULL-SENTENCES")
  words = FakeTokenizer([*(f"x{i}" for i in range(70_000)), *WORDS])
  shards.prepare(config, words, str(tmp_path / "s"), seed=0, progress=False)
  _, ids, num_tokens, start = read_all(tmp_path / "s", "train", config_data=config, tokenizer=words)
  assert ids.max() > 70_000 and (start == num_tokens).all()
  assert np.load(tmp_path / "s/train/00000.npy").dtype == np.int32


# ---- the held-out split ----


@pytest.mark.parametrize(("documents", "share", "train", "heldout"), [
  (2, 1e-9, 1, 1), (2, 1 - 1e-9, 1, 1), (5, 1e-9, 4, 1), (1, 1e-9, 1, 0), (1, 1 - 1e-9, 1, 0), (5, 0.0, 5, 0)])
def test_neither_split_is_empty_by_chance(documents, share, train, heldout):
  splits = [s for s, _ in documents_lib.split_documents([[str(i)] for i in range(documents)], share)]
  assert (splits.count("train"), splits.count("heldout")) == (train, heldout)


# ---- damage ----


@pytest.fixture
def copy(made, tmp_path):
  shutil.copytree(made[1], tmp_path / "copy")
  return tmp_path / "copy"


def test_flipped_byte_is_found_when_the_shard_is_touched(copy):
  path = copy / "train" / "00001.npy"
  data = bytearray(path.read_bytes())
  data[-7] ^= 1
  path.write_bytes(data)
  examples = shards.open_shards(str(copy), "train")
  examples.read(np.arange(50))  # shard 0 is fine
  for _ in range(2):
    with pytest.raises(UserError) as error:
      examples.read(np.array([3, 60]))
    assert_four_parts(error, "damaged", "00001.npy", "CRC-32")


def test_truncated_and_missing_shards_are_found_at_once(copy):
  path = copy / "train" / "00001.npy"
  path.write_bytes(path.read_bytes()[:-1])
  with pytest.raises(UserError) as error:
    shards.open_shards(str(copy), "train")
  assert_four_parts(error, "00001.npy", "bytes")
  path.unlink()
  with pytest.raises(UserError) as error:
    shards.open_shards(str(copy), "train")
  assert_four_parts(error, "00001.npy", "No such file")
  assert len(shards.open_shards(str(copy), "heldout"))


@pytest.mark.parametrize(("content", "word"), [
  (None, "There are no shards"), ("", "damaged"), ("[1]", "version"), ('{"version": 0}', "version 0"),
  ('{"version": 1}', "damaged"), ('{"version": 1, "packing": 3, "tokenizer": {"fingerprint": "x"}}', "damaged")])
def test_bad_manifests(copy, content, word):
  (copy / "manifest.json").unlink()
  if content is not None:
    (copy / "manifest.json").write_text(content)
  assert shards.exist(str(copy)) == (content is not None)
  with pytest.raises(UserError) as error:
    shards.open_shards(str(copy), "train", make_config(""))
  assert_four_parts(error, word)


# ---- another config or tokenizer ----


def test_other_config_is_refused_naming_each_key(made):
  directory = made[1]
  harmless = make_config("elsewhere", num_workers=7, shard_examples=3, max_documents=9)
  shards.open_shards(str(directory), "train", harmless, TOKENIZER)
  with pytest.raises(UserError) as error:
    shards.open_shards(str(directory), "train", make_config("", sequence_length=32, heldout_share=0.2))
  assert_four_parts(error, "data.sequence_length is 32", "packed with 16", "data.heldout_share is 0.2", "prepare_data",
                    "--config.data.sequence_length=16 --config.data.heldout_share=0.1", str(directory))
  with pytest.raises(UserError) as error:
    shards.open_shards(str(directory), "train", make_config("", format="FULL-SENTENCES"))
  assert_four_parts(error, "data.format is 'FULL-SENTENCES'", "packed with 'ELECTRA'", "--config.data.format=ELECTRA")
  with pytest.raises(UserError) as error:
    shards.open_shards(str(directory), "train", make_config("", single_segment_share=0.2))
  assert_four_parts(error, "data.single_segment_share")


def test_other_tokenizer_is_refused(made):
  with pytest.raises(UserError) as error:
    shards.open_shards(str(made[1]), "train", made[0], FakeTokenizer(WORDS[:-1]))
  assert_four_parts(error, "another tokenizer", "fingerprint")


# ---- writing goes wrong ----


def fill_disk_after(monkeypatch, number):
  """The `number`-th flush to disk and all later ones fail, as on a full disk."""
  calls = []

  def fsync(descriptor):
    calls.append(descriptor)
    if len(calls) >= number:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(shard_files.os, "fsync", fsync)


@pytest.mark.parametrize("number", [1, 3])
def test_full_disk_harms_nothing(copy, made, monkeypatch, number):
  before = {path: path.read_bytes() for path in copy.rglob("*.*")}
  fill_disk_after(monkeypatch, number)
  with pytest.raises(UserError) as error:
    shards.prepare(made[0], TOKENIZER, str(copy), seed=1, progress=False)
  assert_four_parts(error, "No space left", "bytes free", "unharmed", "shards_path", ".npy")
  assert {path: path.read_bytes() for path in copy.rglob("*.*")} == before
  assert os.listdir(copy.parent) == ["copy"]


def test_unwritable_folder(made, tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError) as error:
    shards.prepare(made[0], TOKENIZER, str(tmp_path / "file" / "shards"), seed=0, progress=False)
  assert_four_parts(error, "could not be written", "file")


def test_a_folder_with_other_things_is_refused(made, tmp_path):
  (tmp_path / "thesis.tex").write_text("years of work")
  with pytest.raises(UserError) as error:
    shards.prepare(made[0], TOKENIZER, str(tmp_path), seed=0, progress=False)
  assert_four_parts(error, "holds something else")
  assert os.listdir(tmp_path) == ["thesis.tex"]


def test_shards_are_replaced_when_the_new_ones_are_complete(copy, made):
  old = (copy / "train" / "00000.npy").read_bytes()
  shards.prepare(made[0], TOKENIZER, str(copy), seed=1, progress=False)
  assert (copy / "train" / "00000.npy").read_bytes() != old
  assert os.listdir(copy.parent) == ["copy"]
  shards.open_shards(str(copy), "train", made[0], TOKENIZER)


def test_what_a_kill_leaves_is_cleared(copy, made):
  """A dead process's partial set goes, a living one's stays, and a set that was being replaced comes back."""
  dead = copy.parent / f"copy.partial-{shard_files.socket.gethostname()}-{2**22 + 1}"  # above any process number
  living = copy.parent / f"copy.partial-{shard_files.socket.gethostname()}-{os.getppid()}"
  for folder in (dead, living):
    (folder / "train").mkdir(parents=True)
  os.rename(copy, copy.parent / "copy.replaced-x")
  partial = shard_files.make_partial_directory(str(copy))
  assert not dead.exists() and living.exists() and os.path.isdir(partial)
  shards.open_shards(str(copy), "train", made[0], TOKENIZER)


def test_a_corpus_without_tokens(made, tmp_path):
  class Mute(FakeTokenizer):
    def encode_batch(self, texts):
      return [[] for _ in texts]

  with pytest.raises(UserError) as error:
    shards.prepare(made[0], Mute(), str(tmp_path / "s"), seed=0, progress=False)
  assert_four_parts(error, "too small")
  assert not os.listdir(tmp_path)


class Crashing(FakeTokenizer):
  """Kills its process, as the kernel does when memory runs out."""

  def encode_batch(self, texts):
    os._exit(9)


def test_a_killed_worker_is_told(made, tmp_path):
  with pytest.raises(UserError) as error:
    shards.prepare(make_config(made[0].path, num_workers=2), Crashing(), str(tmp_path / "s"), seed=0, progress=False)
  assert_four_parts(error, "killed", "num_workers=1")
  assert not os.listdir(tmp_path)


SLOW_PREPARATION = """
import sys, time
from tests.data.fakes import FakeTokenizer
from tests.data.test_shards import make_config
from electra_jax.data import shards

class Slow(FakeTokenizer):
  def encode_batch(self, texts):
    print("working", flush=True)
    time.sleep(60)

if __name__ == "__main__":
  shards.prepare(make_config(sys.argv[1], num_workers=2), Slow(), sys.argv[2], seed=1, progress=False)
"""


def test_kill_harms_nothing_and_leaves_no_process(copy, made, tmp_path):
  before = {path: path.read_bytes() for path in copy.rglob("*.*")}
  program = tmp_path / "slow.py"
  program.write_text(SLOW_PREPARATION)
  process = subprocess.Popen([sys.executable, str(program), made[0].path, str(copy)], stdout=subprocess.PIPE,
                             env=os.environ | {"PYTHONPATH": os.getcwd()})
  assert process.stdout.readline() == b"working\n"  # a worker has begun
  process.send_signal(signal.SIGKILL)
  process.wait()
  assert {path: path.read_bytes() for path in copy.rglob("*.*")} == before
  assert [name for name in os.listdir(tmp_path) if ".partial-" in name]
  # The workers hold the other end of the pipe: it ends when they do.
  os.set_blocking(process.stdout.fileno(), False)
  ended = False
  for _ in range(100):
    ended = ended or process.stdout.read() == b""
    if ended:
      break
    time.sleep(0.05)
  assert ended
  shards.prepare(made[0], TOKENIZER, str(copy), seed=0, progress=False)
  assert sorted(os.listdir(tmp_path)) == ["copy", "slow.py"]


# ---- going on after a kill ----

KILLED_PREPARATION = """
import os, sys
from tests.data.fakes import FakeTokenizer
from tests.data.test_shards import make_config
from electra_jax.data import journal, preparation, shards

class Slow(FakeTokenizer):
  def encode_batch(self, texts):
    print("chunk", flush=True)
    sys.stdin.readline()
    return super().encode_batch(texts)

if __name__ == "__main__":
  preparation.CHUNK_CHARACTERS = 2000
  shards.prepare(make_config(sys.argv[1]), Slow(), sys.argv[2], seed=0, progress=False)
"""


def kill_after(program, corpus, directory, chunks, delay):
  """Kills a preparation -9, `delay` seconds after it began to encode the chunk of this number."""
  process = subprocess.Popen([sys.executable, str(program), str(corpus), str(directory)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.getcwd()})
  for _ in range(chunks):
    while process.stdout.readline() != b"chunk\n":  # another line says that it goes on
      pass
    process.stdin.write(b"\n")
    process.stdin.flush()
  time.sleep(delay)
  process.send_signal(signal.SIGKILL)
  process.wait()


def files_below(folder, times=False):
  return {str(path.relative_to(folder)): path.stat().st_mtime_ns if times else path.read_bytes()
          for path in folder.rglob("*.npy")}


def test_goes_on_after_kills_and_leaves_finished_shards_alone(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(preparation, "CHUNK_CHARACTERS", 2000)
  corpus = make_corpus(tmp_path, 400)
  shards.prepare(make_config(corpus), TOKENIZER, str(tmp_path / "undisturbed"), seed=0, progress=False)
  program = tmp_path / "killed.py"
  program.write_text(KILLED_PREPARATION)
  rng, times = np.random.default_rng(0), {}
  for _ in range(3):
    kill_after(program, corpus, tmp_path / "s", chunks=rng.integers(2, 8), delay=rng.uniform(0, 0.02))
    partial, = tmp_path.glob("s.partial-*")
    now = files_below(partial, times=True)
    assert now.items() >= times.items()
    times = now
  assert len(times) >= 3
  manifest = shards.prepare(make_config(corpus, num_workers=2), TOKENIZER, str(tmp_path / "s"), seed=0, progress=False)
  assert "Going on behind" in capsys.readouterr().out
  assert files_below(tmp_path / "s") == files_below(tmp_path / "undisturbed")
  assert files_below(tmp_path / "s", times=True).items() >= times.items()
  expected = shards.read_manifest(str(tmp_path / "undisturbed"))
  del expected["statistics"]["seconds"], manifest["statistics"]["seconds"]
  assert manifest == expected
  assert not list(tmp_path.glob("s.partial-*")) and not (tmp_path / "s/journal").exists()


def break_off(config, directory, monkeypatch, chunks=4):
  """An interrupt (Ctrl-C) after so many chunks."""
  def interrupted(*arguments):
    yield from itertools.islice(pack_corpus(*arguments), chunks)
    raise KeyboardInterrupt

  pack_corpus = preparation.pack_corpus
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(preparation, "pack_corpus", interrupted)
    shards.prepare(config, TOKENIZER, directory, seed=0, progress=False)


@pytest.mark.parametrize("change", ["corpus", "config", "damage", "waiting"])
def test_what_does_not_belong_together_is_made_anew(tmp_path, monkeypatch, capsys, change):
  monkeypatch.setattr(preparation, "CHUNK_CHARACTERS", 2000)
  corpus = make_corpus(tmp_path)
  break_off(make_config(corpus), str(tmp_path / "s"), monkeypatch)
  partial, = tmp_path.glob("s.partial-*")
  assert {path.name for path in (partial / "journal").iterdir()} >= {"job.json", "state.json"}
  if change == "corpus":
    make_corpus(tmp_path, seed=1)
  elif change == "damage":
    with open(partial / "train/00000.npy", "ab") as file:
      file.write(b"more")
  elif change == "waiting":
    waiting, = (partial / "journal").glob("waiting*")
    waiting.write_bytes(waiting.read_bytes()[:-9])
  config = make_config(corpus, **({"shard_examples": 40} if change == "config" else {}))
  for name in ("s", "undisturbed"):
    shards.prepare(config, TOKENIZER, str(tmp_path / name), seed=0, progress=False)
  assert files_below(tmp_path / "s") == files_below(tmp_path / "undisturbed")
  out = capsys.readouterr().out
  assert "Going on" not in out and ("corpus has changed" in out) == (change == "corpus")
