"""Faults that machines inject into a run: while it goes on, or between two starts."""

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from electra_jax import metrics
from electra_jax.errors import Interrupted, UserError

LONGEST_START_SECONDS = 1800  # a start that takes longer hangs
ORBAX_PARTIAL = "orbax-checkpoint-tmp"
TRAINS = ("Resuming from", "Starting from")  # it says so once the workdir is its own and its state is there


# ---- while it runs: (process, workdir, rng, seconds within which something happens) ----


def kill_at_random(process, workdir, rng, seconds) -> None:
  """kill -9, start-up and preparation of the data included."""
  del workdir
  wait(process, rng.uniform(0, seconds))
  process.kill()


def kill_inside_a_write(process, workdir, rng, seconds) -> None:
  """kill -9 while a checkpoint lies half written next to its place."""
  del seconds
  folder = os.path.join(workdir, "checkpoints")
  skipped = rng.randrange(8)  # not always the first one after the start
  seen = set()
  while process.poll() is None and len(seen) <= skipped:
    if os.path.isdir(folder):
      seen |= {name for name in os.listdir(folder) if ORBAX_PARTIAL in name}
    time.sleep(0.002)
  time.sleep(rng.uniform(0, 0.03))
  process.kill()


def terminate(process, workdir, rng, seconds) -> None:
  """SIGTERM, as from a scheduler."""
  del workdir
  wait(process, rng.uniform(0, seconds))
  process.terminate()


def leave_alone(process, workdir, rng, seconds) -> None:
  """Nothing: the fault is another one."""


def second_job(process, workdir, rng, seconds) -> None:
  """The same command once more in the same workdir, which must refuse; then kill -9 of the first.

  Raises:
    UserError: it does not refuse, or the first ends.
  """
  while process.poll() is None and not any(words in _read(log_of(workdir)) for words in TRAINS):
    time.sleep(0.1)
  wait(process, rng.uniform(0, seconds / 4))
  if process.poll() is None:
    other = subprocess.run(process.args, capture_output=True, text=True, timeout=LONGEST_START_SECONDS)
    if other.returncode != 2 or "Another job is running" not in other.stderr:
      process.kill()
      raise UserError("A fault was found: a second job was not refused", got=other.stderr[-1500:],
                      allowed="status 2, and the first goes on", fix=f"look into {workdir}, which is left as it was")
    wait(process, rng.uniform(0, seconds / 4))
  process.kill()


class Interruption(NamedTuple):
  """A way to end a process."""

  act: Callable
  statuses: tuple[int, ...]  # with which it may end; 0, if the run was finished before, always
  weight: int = 1  # how often it is chosen
  file_bytes: tuple[int, int] | None = None  # limits of a file's size between which one is drawn: a disk that is full
  read_only: bool = False  # the workdir, for this start
  clock_goes_back: bool = False  # by a day, at a random moment before the one of `act`
  must_say: str = ""  # a pattern, if it ends with a status other than 0


NOT_WRITTEN = "(cannot|could not) be written"

INTERRUPTIONS = {
  "kill -9": Interruption(kill_at_random, (-signal.SIGKILL,), weight=6),
  "kill -9 in a checkpoint's write": Interruption(kill_inside_a_write, (-signal.SIGKILL,), weight=4),
  "SIGTERM": Interruption(terminate, (Interrupted.STATUS, -signal.SIGTERM), weight=2),  # before it trains: at once
  "disk full": Interruption(leave_alone, (2,), weight=2, file_bytes=(300, 15_000), must_say=NOT_WRITTEN),
  "read-only workdir": Interruption(leave_alone, (2,), read_only=True, must_say=NOT_WRITTEN),
  "second job, then kill -9": Interruption(second_job, (-signal.SIGKILL,)),
  "clock goes back, then kill -9": Interruption(kill_at_random, (-signal.SIGKILL,), weight=2, clock_goes_back=True),
}


def wait(process, seconds: float) -> None:
  """Until it ends, or so long."""
  with contextlib.suppress(subprocess.TimeoutExpired):
    process.wait(seconds)


def log_of(workdir: str) -> str:
  """Where what a start says is kept."""
  return f"{workdir}.log"


def _read(path: str) -> str:
  with open(path, encoding="utf-8", errors="replace") as file:
    return file.read()


# ---- around a start ----

# Python runs a module of this name before anything else. C++ code keeps the true clock; ours has none.
CLOCK = """
import time
_true, _true_ns, _began = time.time, time.time_ns, time.monotonic()
def _back():
  return 86_400 if time.monotonic() - _began > {after} else 0
time.time = lambda: _true() - _back()
time.time_ns = lambda: _true_ns() - _back() * 10**9
"""


@contextlib.contextmanager
def surroundings(fault: Interruption | None, workdir: str, rng: random.Random, seconds: float) -> Iterator[dict]:
  """Makes the workdir read-only or the clock go back, as the fault says; the environment variables of the start."""
  with contextlib.ExitStack() as stack:
    variables = dict(os.environ)
    if fault and fault.clock_goes_back:
      folder = stack.enter_context(tempfile.TemporaryDirectory())
      with open(os.path.join(folder, "sitecustomize.py"), "w", encoding="utf-8") as file:
        file.write(CLOCK.format(after=rng.uniform(0, seconds)))
      variables["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    if fault and fault.read_only:
      stack.enter_context(_read_only(workdir))
    yield variables


@contextlib.contextmanager
def _read_only(folder: str) -> Iterator[None]:
  """By its mode; root, whom modes do not stop, mounts the folder onto itself."""
  if os.geteuid():
    mode = os.stat(folder).st_mode
    os.chmod(folder, 0o555)
    try:
      yield
    finally:
      os.chmod(folder, mode)
    return
  subprocess.run(["mount", "--bind", folder, folder], check=True)
  try:
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
    yield
  finally:
    subprocess.run(["umount", folder], check=True)


def can_be_read_only(folder: str) -> bool:
  """Whether `surroundings` can do it to this folder: in containers root may not mount."""
  try:
    with _read_only(folder):
      return True
  except (OSError, subprocess.CalledProcessError):
    return False


def choose(workdir: str, rng: random.Random) -> str:
  """The name of an interruption that can be done to the workdir as it is."""
  names = [name for name, fault in INTERRUPTIONS.items()
           if not fault.read_only or (os.path.isdir(workdir) and can_be_read_only(workdir))]
  return rng.choices(names, [INTERRUPTIONS[name].weight for name in names])[0]


def limit_files(pid: int, fault: Interruption | None, rng: random.Random) -> None:
  """A file cannot grow beyond a random length, as if the disk were full."""
  if fault and fault.file_bytes:
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (rng.randrange(*fault.file_bytes),) * 2)


# ---- between two starts: (path, rng) ----


def truncate(path: str, rng) -> None:
  """At a random length, or not at all."""
  os.truncate(path, rng.randrange(os.path.getsize(path) + 1))


def flip_a_bit(path: str, rng) -> None:
  """A random one; no modification time and no length tells of it."""
  if os.path.getsize(path):
    with open(path, "r+b") as file:
      position = rng.randrange(os.path.getsize(path))
      file.seek(position)
      value = file.read(1)[0]
      file.seek(position)
      file.write(bytes([value ^ 1 << rng.randrange(8)]))


def remove(path: str, rng) -> None:
  """It is gone."""
  del rng
  os.remove(path)


DAMAGES = {  # fault -> (which files of the newest checkpoint, what happens to each)
  "newest checkpoint: a file truncated": (lambda files, rng: [rng.choice(files)], truncate),
  "newest checkpoint: all files truncated": (lambda files, rng: files, truncate),
  "newest checkpoint: a bit flipped": (lambda files, rng: [rng.choice(files)], flip_a_bit),
  "newest checkpoint: half deleted": (lambda files, rng: rng.sample(files, -(-len(files) // 2)), remove),
  "newest checkpoint: metadata missing": (lambda files, rng: [path for path in files if "METADATA" in path], remove),
  "newest checkpoint: manifest missing": (lambda files, rng: [path for path in files if "manifest" in path], remove),
  "leftovers of a killed write": (None, None),
  "metrics: last line torn": (None, None),
}


def damage(name: str, workdir: str, rng) -> bool:
  """Does it, unless it would leave no good checkpoint at all (which the run refuses to resume from)."""
  if name == "metrics: last line torn":
    path = os.path.join(workdir, metrics.FILE_NAME)
    if not os.path.exists(path) or not os.path.getsize(path):
      return False
    os.truncate(path, os.path.getsize(path) - rng.randrange(1, 20))
    return True
  from electra_jax.training import checkpoints

  steps = checkpoints.saved_steps(workdir)
  if len(steps) < 2:
    return False
  newest = os.path.join(workdir, "checkpoints", str(steps[-1]))
  if name == "leftovers of a killed write":
    shutil.copytree(newest, f"{newest[:-len(str(steps[-1]))]}{steps[-1] + 1}.{ORBAX_PARTIAL}")
    return True
  choose_files, act = DAMAGES[name]
  files = sorted(os.path.join(folder, file) for folder, _, names in os.walk(newest) for file in names)
  for path in choose_files(files, rng):
    act(path, rng)
  return True
