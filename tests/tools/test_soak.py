"""Does the soak do the harm that it says, and does a run survive each kind? `tools/soak` itself runs for minutes."""

import os
import random
import shutil
import sys
import time
from collections import Counter

import jax
import numpy as np
import pytest

from electra_jax import checkpoints, metrics, objectives, pretrain
from electra_jax.errors import UserError
from electra_jax.tools import soak
from tests import fake_objective
from tests.test_bad_input import STEPS, Place, contents, small
from tests.test_pretrain import write_corpus


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  place = Place(tmp_path_factory.mktemp("finished"))
  write_corpus(place.corpus, num_documents=20)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(objectives, "make", fake_objective.make)
    pretrain.pretrain(small(place), str(place.run))
  return place


@pytest.mark.parametrize("name", soak.DAMAGES)
def test_a_run_survives_each_damage(finished, tmp_path, monkeypatch, name):
  monkeypatch.setattr(objectives, "make", fake_objective.make)
  workdir = tmp_path / "run"
  shutil.copytree(finished.run, workdir)
  before = contents(workdir)
  assert soak.damage(name, str(workdir), random.Random(1))
  assert contents(workdir) != before
  pretrain.pretrain(small(finished), str(workdir))
  soak.compare(str(finished.run), str(workdir))


def test_no_flipped_bit_of_the_arrays_is_read(finished, tmp_path):
  """The file of the compressed arrays has no checksum of its own: some flips there decode to other numbers."""
  (step, expected), rng = checkpoints.load_params(str(finished.run)), random.Random(0)
  kept = finished.run / "checkpoints" / str(step)
  (path, *_) = sorted((path for path in kept.rglob("d/*") if path.is_file()), key=lambda path: -path.stat().st_size)
  workdir = tmp_path / "run"
  shutil.copytree(finished.run, workdir)
  faults = 0
  for _ in range(12):
    soak.flip_a_bit(str(workdir / path.relative_to(finished.run)), rng)
    try:
      jax.tree.map(np.testing.assert_array_equal, checkpoints.load_params(str(workdir), step=step)[1], expected)
    except UserError as error:
      assert "cannot be read" in str(error)
      faults += 1
    shutil.copy(path, workdir / path.relative_to(finished.run))
  assert faults


def test_the_last_good_checkpoint_is_spared(finished, tmp_path):
  workdir = tmp_path / "run"
  shutil.copytree(finished.run, workdir)
  shutil.rmtree(workdir / "checkpoints" / str(STEPS))
  before = contents(workdir)
  assert not soak.damage("newest checkpoint: half deleted", str(workdir), random.Random(0))
  assert contents(workdir) == before


def test_another_end_is_found(finished, tmp_path):
  workdir = tmp_path / "run"
  shutil.copytree(finished.run, workdir)
  path = workdir / metrics.FILE_NAME
  path.write_text(path.read_text().replace('"loss": ', '"loss": 1', 1))
  with pytest.raises(UserError, match="the logged losses differ"):
    soak.compare(str(finished.run), str(workdir))
  shutil.rmtree(workdir / "checkpoints" / str(STEPS))
  with pytest.raises(UserError, match="the final parameters differ"):
    soak.compare(str(finished.run), str(workdir))


# In place of the run: makes a half-written checkpoint after a moment, and cannot be killed by accident.
SCRIPT = """
import os, sys, time
folder = os.path.join(sys.argv[-1].removeprefix("--workdir="), "checkpoints")
os.makedirs(folder, exist_ok=True)
for step in range(20):
  os.makedirs(os.path.join(folder, f"{step}.orbax-checkpoint-tmp"), exist_ok=True)
  time.sleep(0.05)
try:
  with open(os.path.join(folder, "file"), "wb") as file:  # closing it writes too
    file.write(bytes(300_001))
except OSError:
  sys.exit(2)
"""


@pytest.mark.parametrize("name", soak.INTERRUPTIONS)
def test_each_interruption_ends_a_process_as_it_says(tmp_path, name):
  fault = soak.INTERRUPTIONS[name]
  status, _ = soak.start([sys.executable, "-c", SCRIPT], str(tmp_path / "run"), fault, random.Random(0), 0.5)
  assert status in fault.statuses


def test_a_start_that_ends_without_reason_is_found(tmp_path):
  command = [sys.executable, "-c", "import sys; print('wreck'); sys.exit(7)"]
  with pytest.raises(UserError, match=r"(?s)status 7.*wreck"):
    soak.run_round(command, str(tmp_path / "run"), random.Random(0), 60.0, time.monotonic(), Counter())
  assert os.path.exists(tmp_path / "run.log")
