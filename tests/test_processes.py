"""Do several processes train as one does? Real ones over loopback: other counts, a lost one, a reader that hangs.

`pytest -m slow tests/test_processes.py` runs the same with four and eight processes, minutes on two cores.
"""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from electra_jax import distributed, metrics
from electra_jax.errors import Interrupted, NoAnswerError
from electra_jax.training import checkpoints
from tests.conftest import ROOT
from tests.small_runs import write_corpus

STEPS = 12


class Job:
  """A folder with a corpus and a workdir; each start of its run has as many processes as are asked for."""

  def __init__(self, folder, *, batch_size=8, num_steps=STEPS, **environment):
    self.folder, self.workdir, self._environment = folder, folder / "run", environment
    folder.mkdir(exist_ok=True)
    self._batch_size, self._num_steps = batch_size, num_steps

  def start(self, count, *changes, hosts=(), **environment):
    """Popen objects; what is recorded goes into `recorded`, where that of earlier starts is overwritten.

    With `hosts`, (command in front, address) of each process, they meet at the first one's address.
    """
    recorded = self.folder / "recorded"
    recorded.mkdir(exist_ok=True)
    corpus = self.folder / "corpus.txt"
    if not corpus.exists():
      write_corpus(corpus, num_documents=20)
    with socket.socket() as free:
      free.bind(("127.0.0.1", 0))
      address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "tests.recorded_run", "--config=configs/tiny.py:tiny", f"--workdir={self.workdir}",
               f"--config.data.path={corpus}", "--config.data.sequence_length=16", "--config.data.heldout_share=0.0",
               "--config.data.num_workers=1", "--config.data.reader=threads", "--config.data.tokenizer.kind=wordpiece",
               "--config.data.tokenizer.vocab_size=128", f"--config.train.batch_size={self._batch_size}",
               f"--config.train.num_steps={self._num_steps}", "--config.train.log_every_steps=1",
               "--config.checkpoint.every_steps=4", "--config.optimizer.warmup_steps=1",
               "--config.log.tensorboard=False", *changes]
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1"
    variables = {**os.environ, "XLA_FLAGS": flags, "RECORD": str(recorded), **self._environment, **environment}
    if hosts:
      address = f"{hosts[0][1]}:12345"
    if count > 1:
      variables |= {"COORDINATOR_ADDRESS": address, "NUM_PROCESSES": str(count)}
    return [subprocess.Popen([*(hosts[index][0] if hosts else ()), *command], cwd=ROOT,
                             env=variables | ({"PROCESS_ID": str(index)} if count > 1 else {}),
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for index in range(count)]

  def run(self, count, *changes, **environment):
    """(exit statuses, what each process said)."""
    processes = self.start(count, *changes, **environment)
    said = [process.communicate(timeout=600)[0] for process in processes]
    return [process.returncode for process in processes], said

  def losses(self):
    return {row["step"]: row["loss"] for row in metrics.read_rows(str(self.workdir)) if row["split"] == "train"}

  def state(self, name):
    with np.load(self.folder / "recorded" / f"{name}.npz") as file:
      return dict(file)

  def global_batches(self, count):
    """step -> field -> rows of all processes in order."""
    batches = {}
    for step in range(self._num_steps):
      parts = [self.state(f"{step}.{index}") for index in range(count)]
      batches[step] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return batches


def assert_same_bits(found, expected):
  assert found.keys() == expected.keys()
  for name, array in expected.items():
    assert found[name].dtype == array.dtype and found[name].tobytes() == array.tobytes(), name


def assert_went_on(job, saved_step):
  """The last start restored exactly what the one before had saved."""
  assert_same_bits(job.state("restored"), job.state(f"saved.{saved_step}"))


def assert_same_run(job, alone):
  """Every loss is the single process's, up to the order of sums."""
  expected, found = alone.losses(), job.losses()
  assert list(found) == list(expected) == list(range(1, len(expected) + 1))
  np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-5)
  end = alone.state(f"saved.{len(expected)}")
  # Biases of keys have no gradient but rounding errors, which Adam divides by their own size.
  for name, array in job.state(f"saved.{len(expected)}").items():
    np.testing.assert_allclose(array, end[name], rtol=1e-4, atol=1e-5, err_msg=name)


def lose_one(job, count, lost, step=7, sent=signal.SIGKILL, **environment):
  """Loses a process of several after a step; the others end soon, with their status and an error that explains."""
  processes = job.start(count, END=f"{step}.{lost}.{int(sent)}", **environment)
  others = [process for index, process in enumerate(processes) if index != lost]
  said = [process.communicate(timeout=600)[0] for process in others]
  seconds = time.time() - os.path.getmtime(job.workdir / metrics.FILE_NAME)  # the last step's row
  processes[lost].kill()
  processes[lost].communicate()
  assert [process.returncode for process in others] == [NoAnswerError.STATUS] * (count - 1), said
  assert all("Error: Another process of this run does not answer" in text for text in said), said
  return seconds


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
  """The same run in one process, undisturbed."""
  job = Job(tmp_path_factory.mktemp("alone"))
  statuses, said = job.run(1)
  assert statuses == [0], said
  return job


def test_one_of_two_is_killed_and_the_run_goes_on_in_one_and_in_two(tmp_path, alone):
  """The loss is noticed, the newest checkpoint is restored to the same bits, every batch and loss is as if alone."""
  job = Job(tmp_path / "job")
  assert lose_one(job, 2, lost=1) < 30
  (step,) = checkpoints.saved_steps(str(job.workdir))
  statuses, said = job.run(1, "--config.train.accumulation_steps=2", STOP_AFTER="9")
  assert statuses == [Interrupted.STATUS], said
  assert step == 4
  assert_went_on(job, step)
  one = job.state("8.0")  # by the process that was alone
  statuses, said = job.run(2)
  assert statuses == [0, 0], said
  assert_went_on(job, 9)
  assert_same_run(job, alone)
  expected = alone.global_batches(1)
  assert_same_bits(one, expected[8])
  both = {name: np.concatenate([job.state(f"{part}")[name] for part in ("10.0", "10.1")]) for name in one}
  assert_same_bits(both, expected[10])


def test_a_reader_that_hangs_ends_the_run_and_the_next_start_goes_on(tmp_path, alone):
  """Within its time-out, although a thread will never end."""
  job = Job(tmp_path / "job")
  statuses, (said,) = job.run(1, HANG_AFTER="2")  # the first batch's shape, and the first group of 8 steps
  assert statuses == [NoAnswerError.STATUS] and "Traceback" not in said, said
  assert "Error: The reader of training batches does not answer" in said, said
  assert checkpoints.saved_steps(str(job.workdir))[-1] in (4, 8)
  statuses, (said,) = job.run(1)
  assert statuses == [0], said
  assert re.search(r"first step done [\d.]+ s after the start \(seconds: imports .* restore .* compilation",
                   " ".join(said.split())), said  # its lines end at 80 columns
  assert metrics.read_rows(str(job.workdir))[-1]["start/restore_seconds"] > 0
  assert job.losses() == alone.losses()
  assert_same_bits(job.state("saved.12"), alone.state("saved.12"))


SAID = {
  "UNKNOWN: Gloo all-reduce failed: [pair.cc:547] Connection closed by peer [127.0.0.1]:33670": True,
  "UNKNOWN: Gloo context initialization failed: [pair.cc:152] timed out connecting": True,
  "INTERNAL: NCCL operation ncclGroupEnd() failed: unhandled system error": True,
  "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n1": True,
  "[Errno 104] Connection reset by peer": False,  # a bucket's, say
  "RESOURCE_EXHAUSTED: Out of memory": False,
}


@pytest.mark.parametrize("text", SAID)
def test_what_is_taken_for_a_lost_process(monkeypatch, text):
  assert distributed.find_lost_process(RuntimeError(text)) is None  # alone
  monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
  assert (distributed.find_lost_process(RuntimeError(text)) is not None) == SAID[text]


# ---- two hosts, as far as the network tells; four and eight processes: pytest -m slow ----


def ip(*words):
  subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts():
  """Two network namespaces with a cable between them; (command in front, address) of each."""
  names, etc = [f"electra{index}_{os.getpid()}" for index in range(2)], pathlib.Path("/etc/netns")
  try:
    for name in names:
      ip("netns", "add", name)
  except (OSError, subprocess.CalledProcessError):
    pytest.skip("network namespaces need root and iproute2")
  try:
    ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
    for index, name in enumerate(names):
      (etc / name).mkdir(parents=True)  # Gloo announces the address that the host's name has
      (etc / name / "hosts").write_text(f"127.0.0.1 localhost\n10.77.0.{index + 1} {socket.gethostname()}\n")
      ip("-n", name, "addr", "add", f"10.77.0.{index + 1}/24", "dev", "cable")
      ip("-n", name, "link", "set", "cable", "up")
      ip("-n", name, "link", "set", "lo", "up")
    yield [(("ip", "netns", "exec", name), f"10.77.0.{index + 1}") for index, name in enumerate(names)]
  finally:
    for name in names:
      ip("netns", "delete", name)
      shutil.rmtree(etc / name, ignore_errors=True)


@pytest.mark.slow
def test_two_hosts_and_a_cut_cable(tmp_path, alone, hosts):
  job = Job(tmp_path / "job")
  statuses, said = job.run(2, hosts=hosts)
  assert statuses == [0, 0], said
  assert_same_run(job, alone)

  job = Job(tmp_path / "cut", num_steps=10**6)
  processes = job.start(2, hosts=hosts, HEARTBEAT="15")
  log = job.workdir / metrics.FILE_NAME
  while not log.exists() or log.read_text().count("\n") < 50:
    assert all(process.poll() is None for process in processes)
    time.sleep(0.2)
  ip("-n", hosts[0][0][3], "link", "set", "cable", "down")
  began = time.monotonic()
  said = [process.communicate(timeout=120)[0] for process in processes]
  print(f"{time.monotonic() - began:.1f} s after the cable was cut both had ended")
  assert [process.returncode for process in processes] == [NoAnswerError.STATUS] * 2, said
  assert all("Error: Another process of this run does not answer" in text for text in said), said


@pytest.fixture(scope="module")
def alone_real(tmp_path_factory):
  """The recipe's own model, in one process."""
  job = real(tmp_path_factory.mktemp("alone_real"))
  statuses, said = job.run(1)
  assert statuses == [0], said
  return job


def real(folder):
  return Job(folder, batch_size=32, num_steps=24, REAL_MODEL="1")


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4, 8])
def test_several_processes_compute_what_one_computes(tmp_path, alone_real, count):
  job = real(tmp_path / "job")
  statuses, said = job.run(count)
  assert statuses == [0] * count, said
  assert_same_run(job, alone_real)
  found, expected = job.global_batches(count), alone_real.global_batches(1)
  for step, batch in expected.items():
    assert_same_bits(found[step], batch)
  losses = np.array([list(run.losses().values()) for run in (job, alone_real)])
  print(f"{count} processes: the losses differ by {np.max(abs(losses[0] / losses[1] - 1)):.1e} at most")


@pytest.mark.slow
def test_from_eight_to_four_to_one_to_eight(tmp_path):
  """Accumulation follows, so that each process's micro-batch keeps its four rows; the global batch is the same.

  A masked LM: what ELECTRA's generator draws, and dropout, also depend on which micro-batch a row is in.
  """
  job, alone, masked_lm = real(tmp_path / "job"), real(tmp_path / "alone"), "--config.objective.name=mlm"
  statuses, said = alone.run(1, masked_lm)
  assert statuses == [0], said
  expected, stopped = alone.global_batches(1), 0
  for count, accumulation_steps, stop_after in ((8, 1, 6), (4, 2, 12), (1, 8, 18), (8, 1, -1)):
    shutil.rmtree(job.folder / "recorded", ignore_errors=True)
    if stopped:
      (job.folder / "recorded").mkdir()
      shutil.copy(job.folder / f"saved.{stopped}.npz", job.folder / "recorded")
    statuses, said = job.run(count, masked_lm, f"--config.train.accumulation_steps={accumulation_steps}",
                             STOP_AFTER=str(stop_after))
    assert statuses == [Interrupted.STATUS if stop_after > 0 else 0] * count, said
    if stopped:
      assert_went_on(job, stopped)
    last = stop_after if stop_after > 0 else 24
    for step in range(stopped, last):
      parts = [job.state(f"{step}.{index}") for index in range(count)]
      assert_same_bits({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, expected[step])
    stopped = last
    shutil.copy(job.folder / "recorded" / f"saved.{last}.npz", job.folder)
  assert_same_run(job, alone)


@pytest.mark.slow
@pytest.mark.parametrize("lost,sent", [(0, signal.SIGKILL), (2, signal.SIGKILL), (3, signal.SIGSTOP)])
def test_one_of_four_is_lost(tmp_path, alone_real, lost, sent):
  """Killed, or frozen as on a host that hangs; a new start of all four ends as if nothing had been."""
  job = real(tmp_path / "job")
  seconds = lose_one(job, 4, lost, sent=sent, HEARTBEAT="20")
  print(f"process {lost} of 4, signal {sent}: the others had ended {seconds:.1f} s later")
  assert seconds < 60
  statuses, said = job.run(4)
  assert statuses == [0] * 4, said
  assert_same_run(job, alone_real)
