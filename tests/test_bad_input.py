"""What happens on bad input? The four-part error, at once, and nothing that existed is harmed.

Each row of a table says how the input is broken, and what the error must name. The real `pretrain` runs around a model
that compiles in a moment (tests/fake_objective.py); the command itself runs where the exit status or the flags matter.
"""

import hashlib
import itertools
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import NamedTuple

import jax
import numpy as np
import pytest

from configs import base, tiny
from electra_jax import checkpoints, distributed, metrics, objectives, pretrain
from electra_jax import config as config_lib
from electra_jax import workdir as workdir_lib
from electra_jax.data import lines, order, tokenizers
from electra_jax.errors import UserError
from electra_jax.tools import soak
from tests import fake_objective
from tests.conftest import ROOT
from tests.test_pretrain import environment, write_corpus

STEPS = 4


class Place(NamedTuple):
  """A folder with a corpus and a run of STEPS steps, and the name of a workdir that does not exist yet."""

  root: pathlib.Path

  @property
  def corpus(self):
    return self.root / "corpus.txt"

  @property
  def run(self):
    return self.root / "run"

  @property
  def new(self):
    return self.root / "new"


def small(place, **changes):
  """A recipe in which everything is small; `changes` are dotted keys with "__" for the dot."""
  given = tiny.get_config("tiny")
  given.update_from_flattened_dict({
    "data.path": str(place.corpus), "data.sequence_length": 16, "data.heldout_share": 0.1, "data.num_workers": 1,
    "data.shard_examples": 1, "data.reader": "threads", "data.tokenizer.kind": "wordpiece",
    "data.tokenizer.vocab_size": fake_objective.VOCABULARY, "train.batch_size": 8, "train.num_steps": STEPS,
    "train.log_every_steps": 1, "checkpoint.every_steps": 2, "optimizer.warmup_steps": 1, "log.tensorboard": False,
    **{key.replace("__", "."): value for key, value in changes.items()}})
  return given


@pytest.fixture(autouse=True)
def fake(monkeypatch):
  monkeypatch.setattr(objectives, "make", fake_objective.make)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  place = Place(tmp_path_factory.mktemp("prepared"))
  write_corpus(place.corpus, num_documents=20)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(objectives, "make", fake_objective.make)
    pretrain.pretrain(small(place), str(place.run))
  return place


@pytest.fixture
def place(prepared, tmp_path):
  shutil.copytree(prepared.root, tmp_path / "place")
  return Place(tmp_path / "place")


def contents(folder):
  """Relative path -> digest of every file, and "" for folders."""
  return {str(path.relative_to(folder)): hashlib.sha1(path.read_bytes()).hexdigest() if path.is_file() else ""
          for path in sorted(folder.rglob("*"))}


def assert_four_parts(error, *words):
  assert all(str(part).strip() for part in (error.what, error.got, error.allowed, error.fix))
  assert all(word in str(error) for word in words), str(error)


def refused(place, workdir, *words, **changes):
  """Runs, and asserts the error and that every file is as before; of a new workdir the empty folder is left at most."""
  before = contents(place.root)
  with pytest.raises(UserError) as caught:
    pretrain.pretrain(small(place, **changes), str(workdir))
  assert_four_parts(caught.value, *words)
  after = contents(place.root)
  assert {name: after.get(name) for name in before} == before
  assert set(after) - set(before) <= {"new"}


# ---- the corpus: (what makes the file, what the error names) ----

CORPUS = {
  "missing": (lambda path: path.unlink(), ["The corpus does not exist", "corpus.txt"]),
  "empty": (lambda path: path.write_text(""), ["text"]),
  "blank lines": (lambda path: path.write_text("\n \n\t\n" * 50), ["text"]),
  "binary": (lambda path: path.write_bytes(b"\x7fELF" + bytes(500)), ["binary", "corpus.txt", "byte offset 0"]),
  "zeros inside": (lambda path: path.write_bytes(b"Some text.\n" + bytes(500)),
                   ["binary", "corpus.txt", "byte offset 11"]),
  "not UTF-8": (lambda path: path.write_bytes(b"A clean line.\nA caf\xe9.\n"),
                ["not UTF-8", "corpus.txt", "byte offset 19"]),
  "one huge line": (lambda path: path.write_bytes(b"word " * (lines.MAX_LINE_BYTES // 5 + 1)),
                    ["too long", "corpus.txt:1"]),
}


@pytest.mark.parametrize("with_tokenizer", [False, True], ids=["before a vocabulary", "before shards"])
@pytest.mark.parametrize("row", CORPUS)
def test_a_bad_corpus(place, row, with_tokenizer):
  make, words = CORPUS[row]
  make(place.corpus)
  tokenizer = {"data__tokenizer__path": str(place.run / "tokenizer")} if with_tokenizer else {}
  before = contents(place.root)
  with pytest.raises(UserError) as caught:
    pretrain.pretrain(small(place, **tokenizer), str(place.new))
  assert_four_parts(caught.value, *words)
  after = contents(place.root)
  assert {name: after.get(name) for name in before} == before
  left = {name.split("/")[1] for name in set(after) - set(before) if "/" in name}
  assert left <= ({"tokenizer"} if with_tokenizer else set())
  if with_tokenizer:  # it is whole, and the next try uses it
    tokenizers.load_tokenizer(str(place.new / "tokenizer"))


def test_the_corrected_command_works_in_the_same_workdir(place):
  """An error tells which key to change; the workdir of the first try must not then count as another run."""
  refused(place, place.new, "data.path is not set", data__path="")
  with pytest.raises(UserError, match="position_offset does not fit"):
    pretrain.pretrain(small(place, model__position_offset=4, model__max_position_embeddings=20), str(place.new))
  pretrain.pretrain(small(place), str(place.new))
  assert checkpoints.saved_steps(str(place.new)) == [2, 4]


def test_empty_documents_are_skipped(place):
  place.corpus.write_text("\n\n \n\n" + place.corpus.read_text().replace("\n\n", "\n\n\n \n\n\n"))
  pretrain.pretrain(small(place), str(place.new))
  assert checkpoints.load_params(str(place.new))[0] == STEPS
  a, b = (sorted(path.read_bytes() for path in (run / "shards").rglob("*.npy")) for run in (place.run, place.new))
  assert a == b


def sentences(number):
  return [f"The sea and a ship number {index} went over cold water." for index in range(number)]


@pytest.mark.parametrize(("text", "share", "evaluated"), [
  ("\n".join(sentences(40)), 0.1, True),  # one document: its last paragraphs are held out
  ("\n".join(sentences(40)), 0.99, True),  # one document, which its hash would hold out
  (" ".join(sentences(40)), 0.1, False),  # one paragraph
  ("\n\n".join(sentences(40)), 0.0, False)])
def test_little_or_nothing_held_out(place, capsys, text, share, evaluated):
  place.corpus.write_text(text)
  values = pretrain.pretrain(small(place, data__heldout_share=share), str(place.new))
  assert bool(values) == evaluated and all(np.isfinite(value) for value in values.values())
  shown = capsys.readouterr().err
  assert ("nothing is held out" in shown) != evaluated and "nan" not in shown
  assert {row["split"] for row in metrics.read_rows(str(place.new))} == {"train", "time", *["eval"] * evaluated}
  assert checkpoints.saved_steps(str(place.new)) == [2, 4]


# ---- configuration, vocabulary, shards, workdir: (what is broken, workdir, changes of the config, words) ----


def vocabulary_without_mask(place):
  (place.root / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "sea", "ship"]) + "\n")
  return {"data__tokenizer__path": str(place.root / "vocab.txt")}


def other_vocabulary(place):
  """The shards of a run beside a vocabulary that they were not made with."""
  names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
  (place.root / "vocab.txt").write_text("\n".join(names) + "\n")
  return {"data__tokenizer__path": str(place.root / "vocab.txt"), "data__shards_path": str(place.run / "shards")}


def flip_byte(path):
  data = bytearray(path.read_bytes())
  data[-5] ^= 1
  path.write_bytes(data)


def shard_of(place, example):
  (path,) = (place.run / "shards" / "train").glob(f"{example:05d}*")  # shards hold one example each here
  return path


def damaged_first_shard(place):
  number = len(list((place.run / "shards" / "train").glob("[0-9]*.npy")))  # not lengths.npy
  (example, *_), _ = order.example_order(0, 8, number, 0)
  flip_byte(shard_of(place, int(example)))
  return {}


def file_in_place_of_workdir(place):
  place.new.write_text("years of work")
  return {}


CASES = {
  "a choice that does not exist": ("new", lambda place: dict(data__format="FULL-SENTENCE"), [
    "data.format is 'FULL-SENTENCE'", "did you mean FULL-SENTENCES?"]),
  "sequence longer than the position table": ("new", lambda place: dict(data__sequence_length=65), [
    "data.sequence_length 65", "64 usable rows", "model.max_position_embeddings"]),
  "two faults at once": ("new", lambda place: dict(data__sequence_length=65, train__batch_size=0), [
    "2 faults", "data.sequence_length 65", "train.batch_size is 0"]),
  "unknown mode": ("new", lambda place: dict(mode="pretrian"), ["mode is 'pretrian'", "did you mean pretrain?"]),
  "batch not divisible by the devices": ("new", lambda place: dict(train__batch_size=12), [
    "12 sequences over 8 devices", "use 16"]),
  "batch not divisible by the accumulation": ("new", lambda place: dict(train__accumulation_steps=3), [
    "train.batch_size 8 is not a multiple of train.accumulation_steps 3"]),
  "vocabulary without a mask token": ("new", vocabulary_without_mask, ["[MASK]", "vocab.txt"]),
  "vocabulary that does not exist": ("new", lambda place: dict(data__tokenizer__path="/nowhere"), ["/nowhere"]),
  "shards for another config": ("new", lambda place: dict(
    data__shards_path=str(place.run / "shards"), data__tokenizer__path=str(place.run / "tokenizer"),
    data__sequence_length=32), ["data.sequence_length is 32", "packed with 16", "--config.data.sequence_length=16"]),
  "shards for another vocabulary": ("new", other_vocabulary, ["another tokenizer", "fingerprint"]),
  "damaged shard": ("run", damaged_first_shard, ["A shard is damaged", ".npy", "CRC"]),
  "workdir of another model": ("run", lambda place: dict(model__hidden_size=32, data__masking__rate=0.3), [
    "holds another run", "model.hidden_size: 64 in the workdir, 32 asked for", "data.masking.rate"]),
  "workdir whose config is damaged": ("run", lambda place: (place.run / "config.json").write_text("{") and {}, [
    "config.json"]),
  "workdir is a file": ("new", file_in_place_of_workdir, ["cannot be written", "new"]),
  "workdir in a file": ("corpus.txt/run", lambda place: {}, ["cannot be written", "corpus.txt/run"]),
}


@pytest.mark.parametrize("row", CASES)
def test_bad_input_is_refused_and_harms_nothing(place, row):
  workdir, damage, words = CASES[row]
  changes = damage(place)
  before = contents(place.root)
  with pytest.raises(UserError) as caught:
    pretrain.pretrain(small(place, **changes), str(place.root / workdir))
  assert_four_parts(caught.value, *words)
  after = contents(place.root)
  assert {name: after.get(name) for name in before} == before
  new = {name for name in set(after) - set(before) if not name.startswith("new/tokenizer")}  # that is whole, and used
  assert new <= {"new"}


def test_base_needs_a_corpus(tmp_path):
  with pytest.raises(UserError) as caught:
    pretrain.pretrain(base.get_config(), str(tmp_path / "new"))
  assert_four_parts(caught.value, "data.path is not set", "--config.data.path=/path/to/text",
                    "--config.data.path=pydoc:")


def test_checkpoints_of_another_model_are_not_touched(place):
  """Also where the config.json that would tell is missing."""
  (place.run / "config.json").unlink()
  before = contents(place.run / "checkpoints")

  def wider(*arguments):
    objective = fake_objective.make(*arguments)
    return objective._replace(init=lambda rng, batch: jax.tree.map(
      lambda x: x.repeat(2, axis=1), objective.init(rng, batch)))

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(objectives, "make", wider)
    with pytest.raises(UserError) as caught:
      pretrain.pretrain(small(place), str(place.run))
  assert_four_parts(caught.value, "is of another model", "(128, 8), asked for (128, 16)")
  assert contents(place.run / "checkpoints") == before


# ---- faults while it trains ----


def assert_run_can_go_on(place, workdir):
  """What is there is whole: the checkpoints, the log, and the next start."""
  steps = checkpoints.saved_steps(str(workdir))
  assert steps and not [name for name in os.listdir(workdir / "checkpoints") if not name.isdigit()]
  for step in steps:
    checkpoints.load_params(str(workdir), step=step)
  assert all(line.endswith("}\n") for line in (workdir / metrics.FILE_NAME).open())


@pytest.mark.parametrize("reader", ["threads", "tf"])
def test_a_shard_that_is_damaged_further_on_ends_the_run(place, reader):
  """The run must not wait for the batch, nor go on without it; what was saved before stays."""
  number = len(list((place.run / "shards" / "train").glob("[0-9]*.npy")))  # not lengths.npy
  batches = [set(order.example_order(step, 8, number, 0)[0].tolist()) for step in range(9)]
  (example, *_) = sorted(batches[8] - set.union(*batches[:8]))  # the ninth batch is the first to read it
  flip_byte(shard_of(place, example))
  with pytest.raises(UserError) as caught:
    pretrain.pretrain(small(place, train__num_steps=20, data__reader=reader), str(place.run))
  assert_four_parts(caught.value, "A shard is damaged", f"{example:05d}")
  assert checkpoints.saved_steps(str(place.run)) == [4, 6]
  assert_run_can_go_on(place, place.run)


@pytest.fixture
def small_disk(tmp_path):
  """A function that mounts a file system of so many KiB; only root may, elsewhere the test is skipped."""
  mounted = []

  def mount(folder, size):
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(folder)]
    try:
      subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
      pytest.skip("a small disk needs the right to mount one; tests/data/test_shards.py simulates a full one")
    mounted.append(folder)
    return folder

  yield mount
  for folder in mounted:
    subprocess.run(["umount", str(folder)], check=True)


def test_disk_full_while_shards_are_written(place, small_disk):
  disk = small_disk(place.root / "disk", size=16)  # four blocks: the shards are more files than that
  refused(place, place.run, "could not be written", "No space left", "disk/shards", "--config.data.shards_path",
          data__shards_path=str(disk / "shards"))
  assert not os.listdir(disk)


def test_disk_full_while_a_checkpoint_is_written(place, small_disk, capfd):
  """The checkpoints before stay, nothing half-written remains, no traceback hides the error; with room it goes on."""
  folder, aside = place.run / "checkpoints", place.root / "aside"
  folder.rename(aside)
  used = sum(-(-path.stat().st_size // 4096) * 4 for path in aside.rglob("*") if path.is_file())
  small_disk(folder, used + 20)
  shutil.copytree(aside, folder, dirs_exist_ok=True)
  before = contents(folder)
  with pytest.raises(UserError) as caught:
    pretrain.pretrain(small(place, train__num_steps=20), str(place.run))
  assert_four_parts(caught.value, "A checkpoint cannot be written", str(folder), "No space left")
  assert "Traceback" not in capfd.readouterr().err
  assert contents(folder) == before
  assert_run_can_go_on(place, place.run)
  subprocess.run(["mount", "-o", "remount,size=1m", str(folder)], check=True)
  pretrain.pretrain(small(place, train__num_steps=8), str(place.run))
  assert checkpoints.saved_steps(str(place.run)) == [6, 8]


def test_read_only_disk(place, small_disk):
  disk = small_disk(place.root / "disk", 64)
  subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
  refused(place, disk / "run", "cannot be written", "Read-only", "--workdir")


def test_the_clock_goes_back_all_the_time(place, monkeypatch):
  """By an hour at each look at it: no negative time, no wrong checkpoint, and the bits of the run with a good clock."""
  looks, now = itertools.count(), time.time()
  monkeypatch.setattr(time, "time", lambda: now - 3600 * next(looks))
  monkeypatch.setattr(time, "time_ns", lambda: int(1e9 * (now - 3600 * next(looks))))
  pretrain.pretrain(small(place), str(place.new))
  shutil.rmtree(place.new / f"checkpoints/{STEPS}")
  pretrain.pretrain(small(place), str(place.new))
  assert next(looks) > 2, "nobody has looked at the clock"
  soak.compare(str(place.run), str(place.new))  # negative times too


# ---- the command: flags, exit status, signals ----

COMMANDS = {
  "typo in a flag": ("--config=configs/tiny.py --workdirr=W", ["workdirr", "Did you mean: workdir"]),
  "typo in a key": ("--config=configs/tiny.py --workdir=W --config.train.num_stepz=3", ['Did you mean "num_steps"']),
  "value of another type": ("--config=configs/tiny.py --workdir=W --config.train.batch_size=many", ["batch_size=many"]),
  "recipe that does not exist": ("--config=configs/nope.py --workdir=W", ["configs/nope.py", "configs/tiny.py"]),
  "recipe that is no Python": ("--config=requirements.txt --workdir=W", [
    "The recipe cannot be loaded", "requirements.txt"]),
  "unknown variant of a recipe": ("--config=configs/tiny.py:tinny --workdir=W", ["tinny", "Allowed: tiny"]),
  "no recipe": ("--workdir=W", ["--config is missing"]),
  "no workdir": ("--config=configs/tiny.py", ["--workdir is missing"]),
  "extra argument": ("--config=configs/tiny.py --workdir=W data.txt", ["no flags", "data.txt"]),
  "incomplete process group": ("--config=configs/tiny.py --workdir=W", ["NUM_PROCESSES", "export all three"]),
  "no corpus": ("--config=configs/base.py --workdir=W", ["data.path is not set", "pydoc:"]),
}


@pytest.mark.parametrize("row", COMMANDS)
def test_the_command_ends_with_status_2(tmp_path, row):
  arguments, words = COMMANDS[row]
  extra = {"NUM_PROCESSES": "2"} if row == "incomplete process group" else {}
  done = subprocess.run([sys.executable, "-m", "electra_jax.main", *arguments.replace("=W", f"={tmp_path}/W").split()],
                        cwd=ROOT, env=environment() | extra, capture_output=True, text=True, timeout=60)
  assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
  assert all(re.search(rf"^  {part}: +\S", done.stderr, re.MULTILINE) for part in ("got", "allowed", "fix"))
  assert all(word in done.stderr for word in words), done.stderr
  assert contents(tmp_path).keys() <= {"W"}


def start(place, workdir, num_steps, **variables):
  """The command with the quick model, as a process."""
  changes = config_lib.diff(tiny.get_config("tiny"), small(place, train__num_steps=num_steps))
  return subprocess.Popen(
    [sys.executable, "-m", "tests.fake_objective", "--config=configs/tiny.py:tiny", f"--workdir={workdir}",
     *(f"--config.{key}={value}" for key, (_, value) in changes.items())],
    cwd=ROOT, env=environment() | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_row(workdir, process):
  deadline = time.monotonic() + 60
  while time.monotonic() < deadline and process.poll() is None:
    if max(row["step"] for row in metrics.read_rows(str(workdir))) > STEPS:
      return
    time.sleep(0.05)
  raise AssertionError(process.communicate()[0])


def test_sigterm_saves_and_ends_with_status_75(place):
  process = start(place, place.run, num_steps=1_000_000)
  wait_for_row(place.run, process)
  process.send_signal(signal.SIGTERM)
  said = process.communicate(timeout=20)[0]
  assert process.returncode == 75 and "Traceback" not in said, said
  step = int(re.search(r"Stopped after step (\d+) of 1000000", said).group(1))
  assert checkpoints.saved_steps(str(place.run))[-1] == step > STEPS
  assert_run_can_go_on(place, place.run)
  pretrain.pretrain(small(place, train__num_steps=step + 1), str(place.run))
  assert checkpoints.saved_steps(str(place.run))[-1] == step + 1


def test_a_second_job_in_a_workdir_refuses_and_the_first_goes_on(place):
  first = start(place, place.run, num_steps=1_000_000)
  wait_for_row(place.run, first)
  second = start(place, place.run, num_steps=1_000_000)
  said = second.communicate(timeout=60)[0]
  assert second.returncode == 2 and "Another job is running in the workdir" in said, said
  assert first.poll() is None
  first.kill()  # the lock ends with it
  first.communicate(timeout=20)
  with workdir_lib.lock(str(place.run)):
    pass


def free_address():
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    return f"127.0.0.1:{free.getsockname()[1]}"


def start_two(place, workdir, num_steps):
  address = free_address()
  return [start(place, workdir, num_steps, COORDINATOR_ADDRESS=address, NUM_PROCESSES="2", PROCESS_ID=str(index))
          for index in range(2)]


def test_a_signal_to_one_of_two_processes_stops_both_after_the_same_step(place):
  first, second = start_two(place, place.run, num_steps=1_000_000)
  wait_for_row(place.run, first)
  second.send_signal(signal.SIGTERM)
  said = [process.communicate(timeout=60)[0] for process in (first, second)]
  assert (first.returncode, second.returncode) == (75, 75), said
  steps = {re.search(r"Stopped after step (\d+)", text).group(1) for text in said}
  assert len(steps) == 1 and checkpoints.saved_steps(str(place.run))[-1] == int(steps.pop())


def test_an_error_of_one_of_two_processes_ends_both(place):
  """The second waits for shards that the first cannot make; jax by itself would keep both for minutes."""
  place.corpus.unlink()
  first, second = start_two(place, place.new, num_steps=10)
  said = first.communicate(timeout=60)[0]
  assert first.returncode == 2 and "The corpus does not exist" in said, said
  second.communicate(timeout=60)
  assert second.returncode != 0


def test_ctrl_c_is_noted_once():
  """Inside `with` the first is noted, the second interrupts; outside it is as it was."""
  former = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    with distributed.StopRequest() as stop:
      assert not stop.reached(1)
      signal.raise_signal(signal.SIGINT)
      assert stop.reached(2)
      with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with distributed.StopRequest() as stop:
      pass
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)
    assert not stop.reached(3)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with distributed.StopRequest() as stop:
      signal.raise_signal(signal.SIGINT)
      assert not stop.reached(4)
  finally:
    signal.signal(signal.SIGINT, former)
