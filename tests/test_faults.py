"""What happens when something goes wrong while a run trains? Damaged shards, full disks, bad clocks, signals, two jobs.

The error or the exit status says so, what was saved stays whole, and the next start goes on.
"""

import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import orbax.checkpoint as ocp
import pytest

from configs import tiny
from electra_jax import config as config_lib
from electra_jax import distributed, metrics, pretrain
from electra_jax.data import order
from electra_jax.errors import Interrupted, UserError
from electra_jax.training import checkpoints
from electra_jax.training import workdir as workdir_lib
from tests.conftest import ROOT
from tests.fault_injection import run
from tests.small_runs import STEPS, assert_four_parts, contents, environment, flip_byte, refused, shard_of, small

pytestmark = pytest.mark.usefixtures("quick_model")


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


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_disk_full_while_a_checkpoint_is_written(place, small_disk, capfd, monkeypatch, seconds):
  """The checkpoints before stay, nothing half-written remains, no traceback hides the error; with room it goes on.

  Also where the thread that ends a save, and deletes the oldest checkpoint, comes late to hear of the failure.
  """
  wait = ocp.CheckpointManager._wait_for_checkpointers
  monkeypatch.setattr(ocp.CheckpointManager, "_wait_for_checkpointers", lambda self: (time.sleep(seconds), wait(self)))
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
  run.compare(str(place.run), str(place.new))  # negative times too


# ---- processes and signals ----


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


def test_a_signal_saves_and_ends_with_status_75(place):
  process = start(place, place.run, num_steps=1_000_000)
  wait_for_row(place.run, process)
  process.send_signal(signal.SIGUSR1)
  said = process.communicate(timeout=20)[0]
  assert process.returncode == 75 and "Traceback" not in said, said
  step = int(re.search(r"Stopped after step ([\d,]+) of 1,000,000", said).group(1).replace(",", ""))
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
  steps = {re.search(r"Stopped after step ([\d,]+)", text).group(1).replace(",", "") for text in said}
  assert len(steps) == 1 and checkpoints.saved_steps(str(place.run))[-1] == int(steps.pop())


def test_an_error_of_one_of_two_processes_ends_both(place):
  """The second waits for shards that the first cannot make; jax by itself would keep both for minutes."""
  place.corpus.unlink()
  first, second = start_two(place, place.new, num_steps=10)
  said = first.communicate(timeout=60)[0]
  assert first.returncode == 2 and "The corpus does not exist" in said, said
  second.communicate(timeout=60)
  assert second.returncode != 0


ENDS = {"SIGTERM": True, "SIGHUP": True, "SIGUSR1": True, "SIGUSR2": True, "SIGINT": True,
        "SIGCONT": False, "SIGWINCH": False, "SIGCHLD": False}  # signal -> whether it asks a run to end


@pytest.mark.parametrize("name", ENDS)
def test_signals_that_ask_a_run_to_end(name, capfd):
  """Once: it is noted, and what a second one does is said. Two at once are one; an ignored one stays ignored."""
  number = getattr(signal, name)
  former = signal.signal(number, signal.SIG_DFL)  # SIGINT is ignored by what a shell starts in the background
  with distributed.StopRequest() as stop:
    assert not stop.reached(1)
    signal.raise_signal(number)
    assert stop.reached(2) == ENDS[name]
    if number != signal.SIGINT:
      signal.raise_signal(number)  # schedulers send it to a process and to its parent, which passes it on
  assert signal.getsignal(number) == signal.SIG_DFL
  said = capfd.readouterr().err
  assert (f"{name}: this run saves a checkpoint after the current step and ends. {name} again ends it at once." in said
          ) == ENDS[name]
  signal.signal(number, signal.SIG_IGN)
  try:
    with distributed.StopRequest() as stop:
      signal.raise_signal(number)
      assert not stop.reached(3)
  finally:
    signal.signal(number, former)


def test_a_different_signal_afterwards_does_not_cut_the_save_short():
  """USR1 before a time limit and TERM at it; TERM and HUP when a session is closed. Also while the save ends."""
  with distributed.StopRequest() as stop:
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGHUP)
    assert stop.reached(1)
  former = {number: signal.getsignal(number) for number in distributed.SIGNALS}
  try:
    with pytest.raises(Interrupted), distributed.StopRequest():
      signal.raise_signal(signal.SIGTERM)
      raise Interrupted
    signal.raise_signal(signal.SIGHUP)
  finally:
    for number, handler in former.items():
      signal.signal(number, handler)


def test_the_second_of_a_kind_says_what_it_does(monkeypatch, capfd):
  ended = []
  monkeypatch.setattr(distributed.os, "_exit", ended.append)
  monkeypatch.setattr(distributed, "TWICE_SECONDS", 0.0)
  with distributed.StopRequest():
    signal.raise_signal(signal.SIGTERM)
    assert not ended
    signal.raise_signal(signal.SIGTERM)
  assert ended == [128 + signal.SIGTERM]
  assert "SIGTERM again: ended at once. The next start resumes from the last" in capfd.readouterr().err


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
