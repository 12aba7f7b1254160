"""Fault injection: a tiny run is killed and damaged at random for some minutes, then compared bit for bit."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table

from electra_jax import main as main_lib
from electra_jax import metrics
from electra_jax.errors import UserError
from tests.fault_injection import faults

FLAGS = flags.FLAGS
flags.declare_key_flag("workdir")  # appears in --help
flags.DEFINE_float("minutes", 20.0, "How long faults are injected; the last round is then trained to its end.",
                   lower_bound=0.0)
flags.DEFINE_integer("kills", 50, "Faults go on after these minutes until a process was killed (-9) so often.",
                     lower_bound=0)
flags.DEFINE_float("within", 0.3, "Signals come within this share of an undisturbed run's time after each start: less "
                   "is more of them in a run, more of which hit the start-up.", lower_bound=0.0)
flags.DEFINE_integer("seed", 0, "Which faults, and when.")

USAGE = """Kills a tiny run again and again, damages its checkpoints, and compares its end with an undisturbed run.

  python -m tests.fault_injection.run --workdir=/tmp/faults --minutes=20

It runs configs/tiny.py, shorter, and with more checkpoints. Faults at random: kill -9 at any moment and inside the
write of a checkpoint, SIGTERM, a full disk, a read-only workdir, a second job, a clock that goes back; checkpoints
truncated, half deleted, without metadata or manifest, with a flipped bit. Another command can be put behind `--`; it
gets --workdir=... as its last argument, and is started again unchanged:

  python -m tests.fault_injection.run --workdir=/tmp/faults --minutes=5 -- \\
      python -m electra_jax.main --config=configs/tiny.py:tiny --config.checkpoint.every_steps=5

Next to the flags above, an empty --workdir holds `undisturbed`, one folder for each round, and what each start said.
The same --seed chooses the same faults; the moments at which they hit depend on the machine too.
Exit status 2: a start ended in another way than its fault explains, or the parameters or losses differ."""

# The reader without TensorFlow, whose import takes longer than everything else of a start. Each step is logged: means
# over several would begin anew at each start, and be other means.
COMMAND = (sys.executable, "-m", "electra_jax.main", "--config=configs/tiny.py", "--config.train.num_steps=600",
           "--config.train.log_every_steps=1", "--config.checkpoint.every_steps=25", "--config.checkpoint.keep_last=3",
           "--config.data.reader=threads")


# ---- one start, one round, the whole ----


def start(command: list[str], workdir: str, fault: faults.Interruption | None, rng, seconds: float) -> tuple[int, str]:
  """(exit status, what it said) of one start of the command with one fault.

  Raises:
    UserError: it neither ends by itself nor by the fault.
  """
  with (faults.surroundings(fault, workdir, rng, seconds) as variables,
        open(faults.log_of(workdir), "w+", encoding="utf-8", errors="replace") as output):
    process = subprocess.Popen([*command, f"--workdir={workdir}"], stdout=output, stderr=subprocess.STDOUT,
                               env=variables)
    try:
      faults.limit_files(process.pid, fault, rng)
      if fault:
        fault.act(process, workdir, rng, seconds)
      process.wait(faults.LONGEST_START_SECONDS)
    except subprocess.TimeoutExpired:
      raise _found("a start hangs", f"more than {faults.LONGEST_START_SECONDS} s, process {process.pid}",
                   workdir) from None
    finally:
      process.kill()
      process.wait()
    output.seek(0)
    return process.returncode, output.read()


def run_round(command: list[str], workdir: str, rng, seconds: float, more_faults, outcomes: Counter) -> None:
  """Trains to the end through faults, as long as `more_faults()`; `outcomes` counts (fault, outcome).

  Raises:
    UserError: a start ended in a way that its fault does not explain.
  """
  before = "nothing"
  while True:
    name = faults.choose(workdir, rng) if more_faults() else None
    fault = faults.INTERRUPTIONS[name] if name else None
    status, said = start(command, workdir, fault, rng, seconds)
    explained = status == 0 or (fault and status in fault.statuses and re.search(fault.must_say, said))
    if not explained or (fault and "Traceback" in said):
      raise _found(f"a start ended with status {status}; its fault: {name}, the one before: {before}",
                   said[-1500:], workdir)
    if name:
      outcomes[name, _outcome(status)] += 1
      print(f"{os.path.basename(workdir)}: {name}, status {status}, {_reached(said)}", flush=True)
    if before in faults.DAMAGES and ("is damaged" in said or "dropped" in said):
      outcomes[before, "was reported"] += 1
    if status == 0:
      return
    before = name
    if rng.random() < 0.5:
      chosen = rng.choice(list(faults.DAMAGES))
      if faults.damage(chosen, workdir, rng):
        print(f"{os.path.basename(workdir)}: {chosen}", flush=True)
        before = chosen
        outcomes[chosen, "done"] += 1


def _outcome(status: int) -> str:
  return {0: "came too late", -signal.SIGKILL: "killed it"}.get(status, "ended it")


def _reached(said: str) -> str:
  """How far a start came."""
  steps = [line.split()[1] for line in said.splitlines() if line.startswith("step ")]
  return f"step {steps[-1]}" if steps else "no step logged"


def compare(undisturbed: str, workdir: str) -> None:
  """Both runs have come to the same bits.

  Raises:
    UserError: a final parameter or a logged loss differs.
  """
  import jax

  from electra_jax.sharding import path_name
  from electra_jax.training import checkpoints

  (step, expected), (other_step, found) = (checkpoints.load_params(folder) for folder in (undisturbed, workdir))
  named = zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True)
  wrong = [path_name(path) for (path, a), b in named if np.asarray(a).tobytes() != np.asarray(b).tobytes()]
  if step != other_step or wrong:
    raise _found("the final parameters differ", f"steps {step} and {other_step}; {wrong}", workdir)
  negative = [(row["step"], name) for row in metrics.read_rows(workdir) for name, value in row.items()
              if name.startswith(("time/", "train/step_ms", "start/", "train/tokens", "train/data_wait")) and value < 0]
  if negative:
    raise _found("a negative time was logged", f"{negative}", workdir)
  losses = [{row["step"]: row["loss"] for row in metrics.read_rows(folder) if row["split"] == "train"}
            for folder in (undisturbed, workdir)]
  if losses[0] != losses[1]:
    steps = sorted(step for step in losses[0].keys() | losses[1].keys() if losses[0].get(step) != losses[1].get(step))
    raise _found("the logged losses differ", f"steps {steps}", workdir)


def _found(what: str, got: str, workdir: str) -> UserError:
  return UserError(f"A fault was found: {what}", got=got,
                   allowed="every start ends as its fault explains, and the last one as the undisturbed run",
                   fix=f"what the last start said is in {workdir}.log; its folder is left as it was")


def inject(command: list[str], folder: str, minutes: float, kills: int, within: float, seed: int,
         outcomes: Counter) -> int:
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
  seconds, deadline = time.monotonic() - began, time.monotonic() + 60 * minutes
  print(f"undisturbed: {seconds:.0f} s, {_reached(said)}", flush=True)

  def more_faults():
    return time.monotonic() < deadline or num_killed(outcomes) < kills

  while not rounds or more_faults():
    workdir = os.path.join(folder, f"round_{rounds}")
    run_round(command, workdir, rng, within * seconds, more_faults, outcomes)
    compare(undisturbed, workdir)
    shutil.rmtree(workdir)
    rounds += 1
    print(f"{rounds} rounds, {num_killed(outcomes)} kills: parameters and losses of each are those of the undisturbed "
          "run", flush=True)
  return rounds


def num_killed(outcomes: Counter) -> int:
  """How often a process was killed so far."""
  return sum(number for (_, outcome), number in outcomes.items() if outcome == _outcome(-signal.SIGKILL))


def main(argv: list[str]) -> None:
  """Entry point."""
  if FLAGS.workdir is None or (os.path.isdir(FLAGS.workdir) and os.listdir(FLAGS.workdir)):
    raise UserError("--workdir must be a new or empty folder", got=FLAGS.workdir, allowed="a folder of its own",
                    fix="for example --workdir=/tmp/faults")
  os.makedirs(FLAGS.workdir, exist_ok=True)
  outcomes, rounds, began = Counter(), None, time.monotonic()
  try:
    rounds = inject(argv[1:] or list(COMMAND), os.path.abspath(FLAGS.workdir), FLAGS.minutes, FLAGS.kills, FLAGS.within,
                  FLAGS.seed, outcomes)
  finally:
    result = "ended by an error" if rounds is None else f"{rounds} rounds, parameters and losses equal bit for bit"
    table = Table(title=f"seed {FLAGS.seed}, {(time.monotonic() - began) / 60:.0f} minutes, {num_killed(outcomes)} "
                  f"kills: {result}")
    for column in ("fault", "outcome", "times"):
      table.add_column(column)
    for (fault, outcome), number in sorted(outcomes.items()):
      table.add_row(fault, outcome, str(number))
    Console(highlight=False, width=100).print(table)


if __name__ == "__main__":
  main_lib.run(main, USAGE, takes_arguments=True)
