"""Each fault and the comparison; `python -m tests.fault_injection.run` itself takes minutes."""

import os
import random
import re
import shutil
import sys
from collections import Counter

import jax
import numpy as np
import pytest

from electra_jax import metrics, objectives, pretrain
from electra_jax.errors import UserError
from electra_jax.training import checkpoints
from tests import fake_objective
from tests.fault_injection import faults, run
from tests.small_runs import STEPS, contents, prepare, small


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  return prepare(tmp_path_factory.mktemp("finished"))


@pytest.mark.parametrize("name", faults.DAMAGES)
def test_a_run_survives_each_damage(finished, tmp_path, monkeypatch, name):
  monkeypatch.setattr(objectives, "make", fake_objective.make)
  workdir = tmp_path / "run"
  shutil.copytree(finished.run, workdir)
  before = contents(workdir)
  assert faults.damage(name, str(workdir), random.Random(1))
  assert contents(workdir) != before
  pretrain.pretrain(small(finished), str(workdir))
  run.compare(str(finished.run), str(workdir))


def test_no_flipped_bit_of_the_arrays_is_read(finished, tmp_path):
  """The files of the compressed arrays have no checksum of their own: some flips there decode to other numbers.

  Which of the files hold the parameters differs from run to run.
  """
  (step, expected), rng = checkpoints.load_params(str(finished.run)), random.Random(0)
  kept = finished.run / "checkpoints" / str(step)
  paths = [path for path in kept.rglob("d/*") if path.is_file()]
  workdir = tmp_path / "run"
  shutil.copytree(finished.run, workdir)
  found = 0
  for path in paths * 5:
    faults.flip_a_bit(str(workdir / path.relative_to(finished.run)), rng)
    try:
      jax.tree.map(np.testing.assert_array_equal, checkpoints.load_params(str(workdir), step=step)[1], expected)
    except UserError as error:
      assert "cannot be read" in str(error)
      found += 1
    shutil.copy(path, workdir / path.relative_to(finished.run))
  assert found


def test_the_last_good_checkpoint_is_spared(finished, tmp_path):
  workdir = tmp_path / "run"
  shutil.copytree(finished.run, workdir)
  shutil.rmtree(workdir / "checkpoints" / str(STEPS))
  before = contents(workdir)
  assert not faults.damage("newest checkpoint: half deleted", str(workdir), random.Random(0))
  assert contents(workdir) == before


def test_another_end_is_found(finished, tmp_path):
  workdir = tmp_path / "run"
  shutil.copytree(finished.run, workdir)
  path = workdir / metrics.FILE_NAME
  path.write_text(path.read_text().replace('"loss": ', '"loss": 1', 1))
  with pytest.raises(UserError, match="the logged losses differ"):
    run.compare(str(finished.run), str(workdir))
  shutil.rmtree(workdir / "checkpoints" / str(STEPS))
  with pytest.raises(UserError, match="the final parameters differ"):
    run.compare(str(finished.run), str(workdir))


# In place of the run: makes a half-written checkpoint after a moment, and cannot be killed by accident.
SCRIPT = """
import fcntl, os, sys, time
workdir = sys.argv[-1].removeprefix("--workdir=")
started = time.time()
lock = os.open(workdir, os.O_RDONLY)
try:
  fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
  sys.exit(bool(print("Another job is running", file=sys.stderr)) + 2)
print("Starting from scratch", flush=True)
try:
  open(os.path.join(workdir, "file"), "w").close()
except OSError:
  sys.exit(bool(print("cannot be written")) + 2)
folder = os.path.join(workdir, "checkpoints")
os.makedirs(folder, exist_ok=True)
for step in range(20):
  os.makedirs(os.path.join(folder, f"{step}.orbax-checkpoint-tmp"), exist_ok=True)
  time.sleep(0.05)
try:
  with open(os.path.join(folder, "file"), "wb") as file:  # closing it writes too
    file.write(bytes(300_001))
except OSError:
  sys.exit(bool(print("cannot be written")) + 2)
print("back by", started - time.time(), flush=True)
"""


@pytest.mark.parametrize("name", faults.INTERRUPTIONS)
def test_each_interruption_ends_a_process_as_it_says(tmp_path, name):
  fault, workdir = faults.INTERRUPTIONS[name], tmp_path / "run"
  workdir.mkdir()
  if fault.read_only and not faults.can_be_read_only(str(workdir)):
    pytest.skip("to make a folder read-only for root needs the right to mount")
  status, said = run.start([sys.executable, "-c", SCRIPT], str(workdir), fault, random.Random(0), 0.5)
  assert status in fault.statuses and re.search(fault.must_say, said)
  (workdir / "writable again").touch()


def test_the_clock_of_the_process_goes_back(tmp_path):
  (tmp_path / "run").mkdir()
  fault = faults.Interruption(faults.leave_alone, (), clock_goes_back=True)
  status, said = run.start([sys.executable, "-c", SCRIPT], str(tmp_path / "run"), fault, random.Random(0), 0.5)
  assert status == 0 and 86_000 < float(said.split("back by ")[1]) < 86_400


def test_a_second_job_that_is_not_refused_is_found(tmp_path):
  command = [sys.executable, "-c", "import time; print('Starting from scratch', flush=True); time.sleep(1)"]
  with pytest.raises(UserError, match="a second job was not refused"):
    run.start(command, str(tmp_path / "run"), faults.INTERRUPTIONS["second job, then kill -9"], random.Random(0), 0.1)


def test_a_start_that_ends_without_reason_is_found(tmp_path):
  command = [sys.executable, "-c", "import sys; print('wreck'); sys.exit(7)"]
  with pytest.raises(UserError, match=r"(?s)status 7.*wreck"):
    run.run_round(command, str(tmp_path / "run"), random.Random(0), 60.0, lambda: False, Counter())
  assert os.path.exists(tmp_path / "run.log")


def test_negative_times_are_found(finished, tmp_path):
  workdir = tmp_path / "run"
  shutil.copytree(finished.run, workdir)
  with open(workdir / metrics.FILE_NAME, "a") as file:
    file.write('{"step": 6, "split": "time", "time/start_seconds": -1.0}\n')
  with pytest.raises(UserError, match="negative time"):
    run.compare(str(finished.run), str(workdir))
