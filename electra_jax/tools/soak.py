"""Does a run survive what machines do to it? Faults at random for some minutes, then a comparison bit for bit."""

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import NamedTuple

import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table

from electra_jax import main as main_lib
from electra_jax import metrics
from electra_jax.errors import Interrupted, UserError

FLAGS = flags.FLAGS
flags.declare_key_flag("workdir")  # appears in --help
flags.DEFINE_float("minutes", 20.0, "How long faults are injected; the last round is then trained to its end.",
                   lower_bound=0.0)
flags.DEFINE_float("within", 0.3, "Signals come within this share of an undisturbed run's time after each start: less "
                   "is more of them in a run, more of which hit the start-up.", lower_bound=0.0)
flags.DEFINE_integer("seed", 0, "Which faults, and when.")

USAGE = """Kills a tiny run again and again, damages its checkpoints, and compares its end with an undisturbed run.

  python -m electra_jax.tools.soak --workdir=/tmp/soak --minutes=20

Another command can be put behind `--`; it gets --workdir=... as its last argument, and is started again unchanged:

  python -m electra_jax.tools.soak --workdir=/tmp/soak --minutes=20 -- \\
      python -m electra_jax.main --config=configs/tiny.py:tiny --config.checkpoint.every_steps=5

Beside the flags above, an empty --workdir holds `undisturbed`, one folder for each round, and what each start said.
The same --seed chooses the same faults; the moments at which they hit depend on the machine too.
Exit status 2: a start ended in another way than its fault explains, or the parameters or losses differ."""

COMMAND = (sys.executable, "-m", "electra_jax.main", "--config=configs/tiny.py:tiny", "--config.train.num_steps=120",
           "--config.train.log_every_steps=5", "--config.checkpoint.every_steps=5", "--config.checkpoint.keep_last=3")
LONGEST_START_SECONDS = 1800  # a start that takes longer hangs
ORBAX_PARTIAL = "orbax-checkpoint-tmp"


# ---- faults while it runs: (process, workdir, rng, seconds within which a signal comes) ----


def kill_at_random(process, workdir, rng, seconds) -> None:
  """kill -9, start-up and preparation of the data included."""
  _wait(process, rng.uniform(0, seconds))
  process.kill()


def kill_inside_a_write(process, workdir, rng, seconds) -> None:
  """kill -9 while a checkpoint lies half written beside its place."""
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
  _wait(process, rng.uniform(0, seconds))
  process.terminate()


def leave_alone(process, workdir, rng, seconds) -> None:
  """Nothing: the fault is another one."""


class Interruption(NamedTuple):
  """A way to end a process."""

  act: object
  statuses: tuple[int, ...]  # with which it may end; 0, if the run was finished before, always
  file_bytes: tuple[int, int] | None = None  # limits of a file's size between which one is drawn: a disk that is full


INTERRUPTIONS = {
  "kill -9": Interruption(kill_at_random, (-signal.SIGKILL,)),
  "kill -9 in a checkpoint's write": Interruption(kill_inside_a_write, (-signal.SIGKILL,)),
  "SIGTERM": Interruption(terminate, (Interrupted.STATUS, -signal.SIGTERM)),  # before it trains: at once
  "disk full": Interruption(leave_alone, (2,), (300, 15_000)),
}


# ---- faults between two starts: (workdir, rng); each gives back whether there was something to damage ----


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


DAMAGES = {  # fault -> (which files of the newest checkpoint, what happens to each)
  "newest checkpoint: a file truncated": (lambda files, rng: [rng.choice(files)], truncate),
  "newest checkpoint: all files truncated": (lambda files, rng: files, truncate),
  "newest checkpoint: a bit flipped": (lambda files, rng: [rng.choice(files)], flip_a_bit),
  "newest checkpoint: half deleted": (lambda files, rng: rng.sample(files, -(-len(files) // 2)),
                                      lambda path, rng: os.remove(path)),
  "newest checkpoint: metadata missing": (lambda files, rng: [path for path in files if "METADATA" in path],
                                          lambda path, rng: os.remove(path)),
  "metrics: last line torn": (None, None),
}


def damage(name: str, workdir: str, rng) -> bool:
  """Does it, unless it would leave no good checkpoint at all (which the run refuses to go on from)."""
  if name == "metrics: last line torn":
    path = os.path.join(workdir, metrics.FILE_NAME)
    if not os.path.exists(path) or not os.path.getsize(path):
      return False
    os.truncate(path, os.path.getsize(path) - rng.randrange(1, 20))
    return True
  from electra_jax import checkpoints

  steps = checkpoints.saved_steps(workdir)
  if len(steps) < 2:
    return False
  choose, act = DAMAGES[name]
  newest = os.path.join(workdir, "checkpoints", str(steps[-1]))
  files = sorted(os.path.join(folder, file) for folder, _, names in os.walk(newest) for file in names)
  for path in choose(files, rng):
    act(path, rng)
  return True


# ---- one start, one round, the whole ----


def _wait(process, seconds: float) -> None:
  with contextlib.suppress(subprocess.TimeoutExpired):
    process.wait(seconds)


def start(command: list[str], workdir: str, fault: Interruption | None, rng, seconds: float) -> tuple[int, str]:
  """(exit status, what it said) of one start of the command with one fault.

  Raises:
    UserError: it neither ends by itself nor by the fault.
  """
  log = f"{workdir}.log"
  with open(log, "w+", encoding="utf-8", errors="replace") as output:
    process = subprocess.Popen([*command, f"--workdir={workdir}"], stdout=output, stderr=subprocess.STDOUT)
    try:
      if fault and fault.file_bytes:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (rng.randrange(*fault.file_bytes),) * 2)
      if fault:
        fault.act(process, workdir, rng, seconds)
      process.wait(LONGEST_START_SECONDS)
    except subprocess.TimeoutExpired:
      raise _found("a start hangs", f"more than {LONGEST_START_SECONDS} s, process {process.pid}", workdir) from None
    finally:
      process.kill()
    output.seek(0)
    return process.returncode, output.read()


def run_round(command: list[str], workdir: str, rng, seconds: float, deadline: float, outcomes: Counter) -> None:
  """Trains to the end through faults; `outcomes` counts (fault, outcome).

  Raises:
    UserError: a start ended in a way that its fault does not explain.
  """
  before = "nothing"
  while True:
    name = rng.choice(list(INTERRUPTIONS)) if time.monotonic() < deadline else None
    fault = INTERRUPTIONS[name] if name else None
    status, said = start(command, workdir, fault, rng, seconds)
    if status not in (0, *(fault.statuses if fault else ())) or (fault and "Traceback" in said):
      raise _found(f"a start ended with status {status}; its fault: {name}, the one before: {before}",
                   said[-1500:], workdir)
    if name:
      outcomes[name, "ended it" if status else "came too late"] += 1
      print(f"{os.path.basename(workdir)}: {name}, status {status}", flush=True)
    if before in DAMAGES and ("is damaged" in said or "dropped" in said):
      outcomes[before, "was reported"] += 1
    if status == 0:
      return
    before = name
    if rng.random() < 0.5:
      chosen = rng.choice(list(DAMAGES))
      if damage(chosen, workdir, rng):
        print(f"{os.path.basename(workdir)}: {chosen}", flush=True)
        before = chosen
        outcomes[chosen, "done"] += 1


def compare(undisturbed: str, workdir: str) -> None:
  """Both runs have come to the same bits.

  Raises:
    UserError: a final parameter or a logged loss differs.
  """
  import jax

  from electra_jax import checkpoints
  from electra_jax.sharding import path_name

  (step, expected), (other_step, found) = (checkpoints.load_params(folder) for folder in (undisturbed, workdir))
  named = zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True)
  wrong = [path_name(path) for (path, a), b in named if np.asarray(a).tobytes() != np.asarray(b).tobytes()]
  if step != other_step or wrong:
    raise _found("the final parameters differ", f"steps {step} and {other_step}; {wrong}", workdir)
  losses = [{row["step"]: row["loss"] for row in metrics.read_rows(folder) if row["split"] == "train"}
            for folder in (undisturbed, workdir)]
  if losses[0] != losses[1]:
    steps = sorted(step for step in losses[0].keys() | losses[1].keys() if losses[0].get(step) != losses[1].get(step))
    raise _found("the logged losses differ", f"steps {steps}", workdir)


def _found(what: str, got: str, workdir: str) -> UserError:
  return UserError(f"The soak has found a fault: {what}", got=got,
                   allowed="every start ends as its fault explains, and the last one as the undisturbed run",
                   fix=f"what the last start said is in {workdir}.log; its folder is left as it was")


def soak(command: list[str], folder: str, minutes: float, within: float, seed: int, outcomes: Counter) -> int:
  """The number of rounds of the command in new workdirs, each equal to an undisturbed run; `outcomes` as it goes.

  Raises:
    UserError: one is not, or a start ended in a way that its fault does not explain.
  """
  rng, rounds = random.Random(seed), 0
  undisturbed = os.path.join(folder, "undisturbed")
  began = time.monotonic()
  status, said = start(command, undisturbed, None, rng, 0.0)
  if status:
    raise _found("the undisturbed run fails", said[-1500:], undisturbed)
  seconds, deadline = within * (time.monotonic() - began), time.monotonic() + 60 * minutes
  while not rounds or time.monotonic() < deadline:
    workdir = os.path.join(folder, f"round_{rounds}")
    run_round(command, workdir, rng, seconds, deadline, outcomes)
    compare(undisturbed, workdir)
    shutil.rmtree(workdir)
    rounds += 1
    print(f"{rounds} rounds: parameters and losses of each are those of the undisturbed run", flush=True)
  return rounds


def main(argv: list[str]) -> None:
  """Entry point."""
  if FLAGS.workdir is None or (os.path.isdir(FLAGS.workdir) and os.listdir(FLAGS.workdir)):
    raise UserError("--workdir must be a new or empty folder", got=FLAGS.workdir, allowed="a folder of its own",
                    fix="for example --workdir=/tmp/soak")
  os.makedirs(FLAGS.workdir, exist_ok=True)
  outcomes, rounds = Counter(), None
  try:
    rounds = soak(argv[1:] or list(COMMAND), os.path.abspath(FLAGS.workdir), FLAGS.minutes, FLAGS.within, FLAGS.seed,
                  outcomes)
  finally:
    result = "ended by an error" if rounds is None else f"{rounds} rounds, parameters and losses equal bit for bit"
    table = Table(title=f"seed {FLAGS.seed}: {result}")
    for column in ("fault", "outcome", "times"):
      table.add_column(column)
    for (fault, outcome), number in sorted(outcomes.items()):
      table.add_row(fault, outcome, str(number))
    Console(highlight=False, width=100).print(table)


if __name__ == "__main__":
  main_lib.run(main, USAGE, takes_arguments=True)
