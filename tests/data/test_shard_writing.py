"""Unfinished shards: a full disk or a kill is reported and does no harm, and the next start resumes."""

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from electra_jax.data import shards
from electra_jax.data.shards import preparation, writing
from electra_jax.errors import UserError
from tests.data.corpora import assert_four_parts, make_config, make_corpus
from tests.data.fakes import FakeTokenizer

TOKENIZER = FakeTokenizer()


def fill_disk_after(monkeypatch, number):
  """The `number`-th flush to disk and all later ones fail, as on a full disk."""
  calls = []

  def fsync(descriptor):
    calls.append(descriptor)
    if len(calls) >= number:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(writing.os, "fsync", fsync)


@pytest.mark.parametrize("number", [1, 3])
def test_full_disk_harms_nothing(copy, made, monkeypatch, number):
  before = {path: path.read_bytes() for path in copy.rglob("*.*")}
  fill_disk_after(monkeypatch, number)
  with pytest.raises(UserError) as error:
    shards.prepare(made[0], TOKENIZER, str(copy), seed=1)
  assert_four_parts(error, "No space left", "bytes free", "unharmed", "shards_path", ".npy")
  assert {path: path.read_bytes() for path in copy.rglob("*.*")} == before
  assert os.listdir(copy.parent) == ["copy"]


def test_unwritable_folder(made, tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError) as error:
    shards.prepare(made[0], TOKENIZER, str(tmp_path / "file" / "shards"), seed=0)
  assert_four_parts(error, "could not be written", "file")


def test_a_folder_with_other_things_is_refused(made, tmp_path):
  (tmp_path / "thesis.tex").write_text("years of work")
  with pytest.raises(UserError) as error:
    shards.prepare(made[0], TOKENIZER, str(tmp_path), seed=0)
  assert_four_parts(error, "holds something else")
  assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_mount_point_is_refused_before_the_work(made, tmp_path, monkeypatch):
  (tmp_path / "disk").mkdir()
  monkeypatch.setattr(os.path, "ismount", lambda path: path == str(tmp_path / "disk"))
  with pytest.raises(UserError) as error:
    shards.prepare(made[0], TOKENIZER, str(tmp_path / "disk"), seed=0)
  assert_four_parts(error, "mount point", f"{tmp_path}/disk/shards")


def test_shards_go_where_a_link_leads(made, tmp_path):
  (tmp_path / "disk").mkdir()
  (tmp_path / "shards").symlink_to(tmp_path / "disk" / "mine")
  shards.prepare(made[0], TOKENIZER, str(tmp_path / "shards"), seed=0)
  assert (tmp_path / "shards").is_symlink() and files_below(tmp_path / "disk" / "mine") == files_below(made[1])


def test_shards_are_replaced_when_the_new_ones_are_complete(copy, made):
  old = (copy / "train" / "00000.npy").read_bytes()
  shards.prepare(made[0], TOKENIZER, str(copy), seed=1)
  assert (copy / "train" / "00000.npy").read_bytes() != old
  assert os.listdir(copy.parent) == ["copy"]
  shards.open_shards(str(copy), "train", made[0], TOKENIZER)


def test_what_a_kill_leaves_is_cleared(copy, made):
  """A dead process's unfinished set goes, and a set that was being replaced comes back."""
  write_rubbish = copy.parent / "copy.partial" / "train"
  write_rubbish.mkdir(parents=True)
  (write_rubbish / "00000.npy").write_bytes(b"half a shard")
  os.rename(copy, copy.parent / "copy.replaced")
  with writing.partial_folder(str(copy)):
    shards.open_shards(str(copy), "train", made[0], TOKENIZER)
  shards.prepare(made[0], TOKENIZER, str(copy), seed=0)
  assert os.listdir(copy.parent) == ["copy"] and files_below(copy) == files_below(made[1])


def test_two_processes_never_write_one_set(copy, made):
  with writing.partial_folder(str(copy)), pytest.raises(UserError) as error:
    shards.prepare(made[0], TOKENIZER, str(copy), seed=0)
  assert_four_parts(error, "Another process", "copy.partial")


def test_a_corpus_without_tokens(made, tmp_path):
  class Mute(FakeTokenizer):
    def encode_batch(self, texts):
      return [[] for _ in texts]

  with pytest.raises(UserError) as error:
    shards.prepare(made[0], Mute(), str(tmp_path / "s"), seed=0)
  assert_four_parts(error, "too small")
  assert not os.listdir(tmp_path)


class Crashing(FakeTokenizer):
  """Kills its process, as the kernel does when memory runs out."""

  def encode_batch(self, texts):
    os._exit(9)


def test_a_killed_worker_is_told(made, tmp_path):
  with pytest.raises(UserError) as error:
    shards.prepare(make_config(made[0].path, num_workers=2), Crashing(), str(tmp_path / "s"), seed=0)
  assert_four_parts(error, "killed", "num_workers=1")
  assert not os.listdir(tmp_path)


SLOW_PREPARATION = """
import sys, time
from tests.data.fakes import FakeTokenizer
from tests.data.corpora import make_config
from electra_jax.data import shards

class Slow(FakeTokenizer):
  def encode_batch(self, texts):
    print("working", flush=True)
    time.sleep(60)

if __name__ == "__main__":
  shards.prepare(make_config(sys.argv[1], num_workers=2), Slow(), sys.argv[2], seed=1)
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
  assert "copy.partial" in os.listdir(tmp_path)
  # The workers hold the other end of the pipe: it ends when they do.
  os.set_blocking(process.stdout.fileno(), False)
  ended = False
  for _ in range(100):
    ended = ended or process.stdout.read() == b""
    if ended:
      break
    time.sleep(0.05)
  assert ended
  shards.prepare(made[0], TOKENIZER, str(copy), seed=0)
  assert sorted(os.listdir(tmp_path)) == ["copy", "slow.py"]


# ---- resuming after a kill ----

KILLED_PREPARATION = """
import os, sys
from tests.data.fakes import FakeTokenizer
from tests.data.corpora import make_config
from electra_jax.data import shards
from electra_jax.data.shards import preparation

class Slow(FakeTokenizer):
  def encode_batch(self, texts):
    print("chunk", flush=True)
    sys.stdin.readline()
    return super().encode_batch(texts)

if __name__ == "__main__":
  preparation.CHUNK_CHARACTERS = 2000
  shards.prepare(make_config(sys.argv[1]), Slow(), sys.argv[2], seed=0)
"""


def kill_after(program, corpus, directory, chunks, delay):
  """Kills a preparation -9, `delay` seconds after it began to encode the chunk of this number."""
  process = subprocess.Popen([sys.executable, str(program), str(corpus), str(directory)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.getcwd()})
  for _ in range(chunks):
    assert any(line == b"chunk\n" for line in process.stdout), "it ended by itself"  # another line says that it resumes
    process.stdin.write(b"\n")
    process.stdin.flush()
  time.sleep(delay)
  process.send_signal(signal.SIGKILL)
  process.wait()


def files_below(folder, times=False):
  return {str(path.relative_to(folder)): path.stat().st_mtime_ns if times else path.read_bytes()
          for path in folder.rglob("*.npy")}


def files_of_journal(partial):
  """The times of the shards that count as finished."""
  if not (partial / "journal.npz").exists():
    return {}
  with np.load(partial / "journal.npz") as journal:
    files = json.loads(str(journal["state"]))["files"]
  return {file["file"]: (partial / file["file"]).stat().st_mtime_ns for split in files.values() for file in split}


def test_goes_on_after_kills_and_leaves_finished_shards_alone(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(preparation, "CHUNK_CHARACTERS", 2000)
  corpus = make_corpus(tmp_path, 400)
  shards.prepare(make_config(corpus), TOKENIZER, str(tmp_path / "undisturbed"), seed=0)
  program = tmp_path / "killed.py"
  program.write_text(KILLED_PREPARATION)
  rng, times = np.random.default_rng(0), {}
  for _ in range(3):
    kill_after(program, corpus, tmp_path / "s", chunks=rng.integers(2, 8), delay=rng.uniform(0, 0.02))
    assert files_below(tmp_path / "s.partial", times=True).items() >= times.items()
    times = files_of_journal(tmp_path / "s.partial")
  assert len(times) >= 3
  manifest = shards.prepare(make_config(corpus, num_workers=2), TOKENIZER, str(tmp_path / "s"), seed=0)
  assert "Resuming after" in capsys.readouterr().out
  assert files_below(tmp_path / "s") == files_below(tmp_path / "undisturbed")
  assert files_below(tmp_path / "s", times=True).items() >= times.items()
  expected = shards.read_manifest(str(tmp_path / "undisturbed"))
  del expected["statistics"]["seconds"], manifest["statistics"]["seconds"]
  assert manifest == expected
  assert not list(tmp_path.glob("s.partial*")) and not (tmp_path / "s/journal.npz").exists()


def break_off(config, directory, monkeypatch, chunks=4):
  """An interrupt (Ctrl-C) after so many chunks."""
  def interrupted(*arguments):
    yield from itertools.islice(pack_corpus(*arguments), chunks)
    raise KeyboardInterrupt

  pack_corpus = preparation.pack_corpus
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(preparation, "pack_corpus", interrupted)
    shards.prepare(config, TOKENIZER, directory, seed=0)


@pytest.mark.parametrize("change", ["corpus", "config", "damage", "waiting"])
def test_what_does_not_belong_together_is_made_anew(tmp_path, monkeypatch, capsys, change):
  monkeypatch.setattr(preparation, "CHUNK_CHARACTERS", 2000)
  corpus = make_corpus(tmp_path)
  break_off(make_config(corpus), str(tmp_path / "s"), monkeypatch)
  partial = tmp_path / "s.partial"
  assert (partial / "journal.npz").exists()
  if change == "corpus":
    make_corpus(tmp_path, seed=1)
  elif change == "damage":
    with open(partial / "train/00000.npy", "ab") as file:
      file.write(b"more")
  elif change == "waiting":
    waiting = partial / "journal.npz"
    waiting.write_bytes(waiting.read_bytes()[:-9])
  config = make_config(corpus, **({"shard_examples": 40} if change == "config" else {}))
  for name in ("s", "undisturbed"):
    shards.prepare(config, TOKENIZER, str(tmp_path / name), seed=0)
  assert files_below(tmp_path / "s") == files_below(tmp_path / "undisturbed")
  out = capsys.readouterr().out
  assert "Resuming" not in out and ("corpus has changed" in out) == (change == "corpus")
