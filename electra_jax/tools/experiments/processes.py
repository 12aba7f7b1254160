"""Processes of an experiment: shared devices, signals, failures."""

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor

from electra_jax.errors import Interrupted, UserError

GRACE_SECONDS = 30.0  # for a run that was asked to stop to write its checkpoint, before it is killed
MEMORY_SHARE = 0.85  # of a device's memory, for all processes that share it


class Failed(Exception):
  """A run has failed; the message says why."""


class Running:
  """The running processes, each in a process group of its own, so that whatever it starts ends with it.

  A device has `at_once` places: a pre-training takes all of them, a fine-tuning takes one.
  """

  def __init__(self, devices: Sequence[str] = ("",), at_once: int = 1):
    self.devices, self.at_once = list(devices), at_once  # values of CUDA_VISIBLE_DEVICES; "" = leave it alone
    self.free, self.changed = [at_once] * len(self.devices), threading.Condition()
    self.processes: set[subprocess.Popen] = set()
    self.stopped = 0.0  # monotonic seconds when all were asked to stop; 0 = not yet

  @contextlib.contextmanager
  def place(self, size: int) -> Generator[str, None, None]:
    """Waits for `size` free places on one device and takes them for the block."""
    with self.changed:
      self.changed.wait_for(lambda: max(self.free) >= size)
      number = self.free.index(max(self.free))
      self.free[number] -= size
    try:
      yield self.devices[number]
    finally:
      with self.changed:
        self.free[number] += size
        self.changed.notify_all()

  def call(self, command: Sequence[str], log: str, size: int) -> None:
    """Runs a command on `size` places to its end, with its output in `log`.

    Raises:
      Failed: its exit status is not 0.
      Interrupted: everything was asked to stop.
    """
    with self.place(size) as device:
      if self.stopped:
        raise Interrupted
      os.makedirs(os.path.dirname(log), exist_ok=True)
      environment = os.environ | ({"CUDA_VISIBLE_DEVICES": device} if device else {})
      share = size / self.at_once / self.devices.count(device)
      if share < 1:
        environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{MEMORY_SHARE * share:.3f}")
      with open(log, "a", encoding="utf-8") as file:
        file.write(" ".join(command) + "\n")
        file.flush()
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
      self.processes.add(process)
      if self.stopped:  # while it was being started
        _signal_group(process, signal.SIGTERM)
      try:
        status = process.wait()
      finally:
        _signal_group(process, signal.SIGKILL)  # whatever is left of the group
        self.processes.discard(process)
    if self.stopped:
      raise Interrupted
    if status:
      with open(log, encoding="utf-8", errors="replace") as file:
        raise Failed(f"{log}:\n" + "".join(file.readlines()[-6:]))

  def end_stragglers(self) -> None:
    """Kills what still runs long after it was asked to stop; the groups would outlive this process."""
    if self.stopped and time.monotonic() > self.stopped + GRACE_SECONDS:
      for process in list(self.processes):
        _signal_group(process, signal.SIGKILL)

  @contextlib.contextmanager
  def stop_all_on_signals(self) -> Generator[None, None, None]:
    """Passes Ctrl-C and SIGTERM on to every running process and starts no more."""
    def stop(number, frame):
      del number, frame
      self.stopped = self.stopped or time.monotonic()
      for process in list(self.processes):
        _signal_group(process, signal.SIGTERM)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
      yield
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)


def run_all(jobs: Sequence[tuple[str, Callable[[], object]]], running: Running) -> None:
  """Runs named jobs, each in a thread that waits for its devices; they start in this order.

  Raises:
    UserError: some have failed; the others have ended.
    Interrupted: after Ctrl-C or SIGTERM; the runs were asked to stop and have written their checkpoints.
  """
  with running.stop_all_on_signals(), ThreadPoolExecutor(max(1, len(jobs))) as pool:
    futures = {pool.submit(job): name for name, job in jobs}
    while concurrent.futures.wait(futures, timeout=0.2).not_done:  # short, so that signals are seen
      running.end_stragglers()
  if running.stopped:
    raise Interrupted("Stopped, as asked. The same command resumes from the last checkpoints.")
  failed = [f"{name}: {error if isinstance(error, Failed) else f'{type(error).__name__}: {error}'}"
            for future, name in futures.items() if (error := future.exception())]
  if failed:
    raise UserError(f"{len(failed)} of {len(jobs)} runs failed", got="\n    ".join(failed),
                    allowed="runs that finish", fix="correct what the messages say and start the same command again; "
                    "what is finished stays")


def _signal_group(process: subprocess.Popen, number: int) -> None:
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(process.pid, number)
