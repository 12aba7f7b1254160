"""How are the runs of a claim made? Pre-training and GLUE of several models at once, a device each, within time limits.

Each model has a folder: pretrain/ is a workdir, glue/step_N/ a sweep from its checkpoint of step N, and another way to
fine-tune has a folder beside glue/. What is finished is not run again, so the same command goes on after a kill or a
limit.
"""

import contextlib
import math
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from electra_jax import checkpoints, metrics
from electra_jax import config as config_lib
from electra_jax.data import corpus, shards, tokenizers
from electra_jax.errors import Interrupted, UserError
from electra_jax.tools import glue_sweep
from electra_jax.tools.evidence_claims import Planned

GRACE_SECONDS = 30.0  # between asking a run to stop and ending it: it writes a checkpoint
# Tokens of a task's examples: at most 1.5 % of them are longer with BERT's vocabulary, RTE's excepted (12 %, as in the
# papers). One length for all batches of a task: one program to compile.
# The slowest task first, so that no slow one is left at the end.
GLUE_LENGTHS = {"mnli": 96, "stsb": 96, "qqp": 96, "qnli": 128, "sst2": 64, "rte": 128, "cola": 48, "mrpc": 96,
                "wnli": 128}
# Three times Table 5's and the released code's. At their 1e-4 MNLI is hardly learnt (docs/results/small-vs-bert.md).
GLUE_RATE = "3e-4"


class Place(NamedTuple):
  """Where the data is, where the runs go, and what they may take."""

  out: str
  data: str  # data.path of the corpus; may be empty where the shards exist
  shards: str  # folder of tokenizer/ and, for each format and length of rows, FORMAT-LENGTH/shards
  vocabulary: str  # published vocabulary; "" = one is trained on the corpus
  glue: str  # folder of GLUE's folders
  devices: tuple[str, ...] = ("",)  # values of CUDA_VISIBLE_DEVICES; "" = leave it alone
  train_seconds: float = 0.0  # wall-clock limit of each pre-training; 0 = none
  glue_seconds: float = 0.0  # of each sweep
  glue_at_once: int = 4  # tasks that share a device: a small model leaves it idle, and programs compile side by side
  num_seeds: int = 5
  max_train_examples: int = 12_000  # of a GLUE task
  settings: tuple[str, ...] = ()  # KEY=VALUE of the pre-trainings
  glue_settings: tuple[str, ...] = ()  # KEY=VALUE or TASK:KEY=VALUE of the fine-tunings


# ---- data ----


def shards_path(row: Planned, place: Place) -> str:
  """The shards of a model's format and length of rows."""
  data = row.config.data
  return os.path.join(place.shards, f"{data.format}-{data.sequence_length}", "shards")


def prepare(rows: Sequence[Planned], place: Place) -> None:
  """Makes the tokenizer and the shards of every format that the models need, where they are missing.

  Raises:
    UserError: the corpus or the vocabulary cannot be read.
  """
  for row in rows:
    path = shards_path(row, place)
    if shards.exist(path):
      continue
    if not place.data:
      raise UserError("There are no shards of this format, and no text to make them from", got=path,
                      allowed="prepared shards, or a corpus", fix="set --data to text or JSONL files (DATA=...)")
    config_data = ConfigDict(row.config.data.to_dict() | {"path": place.data, "shards_path": path})
    if place.vocabulary and not os.path.isdir(os.path.join(place.shards, corpus.TOKENIZER_FOLDER)):
      tokenizers.load_tokenizer(place.vocabulary, config_data.tokenizer).save(
        os.path.join(place.shards, corpus.TOKENIZER_FOLDER))
    tokenizer = corpus.make_tokenizer(config_data, place.shards, row.config.seed)
    print(f"Packing {place.data} as {config_data.format}: {path}", flush=True)
    shards.prepare(config_data, tokenizer, path, row.config.seed)


# ---- commands ----


def pretrain_command(row: Planned, place: Place) -> list[str]:
  """The pre-training of a model as a command line."""
  every = config_lib.whole_dispatches(row.num_steps // 10, row.config.train.steps_per_dispatch)
  updates = math.gcd(row.config.train.steps_per_dispatch, every)
  return [sys.executable, "-m", "electra_jax.main", f"--config={row.recipe}",
          f"--workdir={row.workdir}", f"--config.train.num_steps={row.num_steps}", f"--config.seed={row.config.seed}",
          f"--config.train.steps_per_dispatch={updates}",
          f"--config.data.path={place.data}", f"--config.data.shards_path={shards_path(row, place)}",
          f"--config.data.tokenizer.path={os.path.join(place.shards, corpus.TOKENIZER_FOLDER)}",
          f"--config.eval.every_steps={every}", f"--config.checkpoint.every_steps={every}",
          *(f"--config.{setting}" for setting in place.settings)]


def glue_command(row: Planned, tasks: Sequence[str], step: int, place: Place, device: str) -> list[str]:
  """The sweep over GLUE from the checkpoint of a step."""
  ordered = [task for task in GLUE_LENGTHS if task in tasks]
  settings = [f"task.num_seeds={place.num_seeds}", f"task.max_train_examples={place.max_train_examples}",
              f"optimizer.learning_rate={GLUE_RATE}", "task.pad_to_max_length=True", "eval.batch_size=256",
              *(f"{task}:task.max_length={length}" for task, length in GLUE_LENGTHS.items()),
              *(setting for setting in place.settings if setting.startswith(("log.", "train.compute_dtype="))),
              *place.glue_settings]
  return [sys.executable, "-m", "electra_jax.tools.glue_sweep", f"--init_from={row.workdir}",
          f"--data_dir={place.glue}", f"--out={glue_folder(row, step)}", f"--tasks={','.join(ordered)}",
          f"--devices={','.join([device] * place.glue_at_once)}", *(f"--set={setting}" for setting in settings)]


def glue_folder(row: Planned, step: int) -> str:
  """Where the fine-tunings from the checkpoint of a step go."""
  return os.path.join(row.sweeps, f"step_{step:08d}")


def fine_tuning_flags(place: Place) -> list[str]:
  """The flags of `evidence` that make these fine-tunings other than the default ones."""
  defaults = Place._field_defaults
  numbers = [("seeds", "num_seeds"), ("max_train_examples", "max_train_examples")]
  return [*(f"--{flag}={getattr(place, field)}" for flag, field in numbers if getattr(place, field) != defaults[field]),
          *(f"--glue_set={setting}" for setting in place.glue_settings)]


def fine_tuning_folder(place: Place) -> str:
  """Name of the folder of the sweeps that are made in this way: glue, and behind it whatever is not the default."""
  others = (flag.removeprefix("--").removeprefix("glue_set=") for flag in fine_tuning_flags(place))
  return re.sub(r"[^\w.,=-]", "_", "-".join(["glue", *others]))


def task_results(sweep: str, task: str) -> str:
  """The results of a task in the folder of a sweep; they appear when all seeds have ended."""
  return os.path.join(glue_sweep.Point(task, "", "").folder(sweep), "results.json")


# ---- running ----


def run(work: Sequence[tuple[Planned, Sequence[str]]], place: Place, after_each: Callable[[], None]) -> None:
  """Pre-trains and fine-tunes every model, as many at a time as there are devices; a model stays on its device.

  Args:
    work: each model with its tasks; the first ones start first. No folder twice.
    after_each: called whenever a stage of a model has ended; from several threads, never twice at once.

  Raises:
    UserError: a run has failed; the others have ended, and its log is named.
    Interrupted: Ctrl-C or SIGTERM; the runs were asked to stop and have written their checkpoints.
  """
  waiting: queue.SimpleQueue[tuple[Planned, Sequence[str]]] = queue.SimpleQueue()
  for one in work:
    waiting.put(one)
  failed, lock, started = [], threading.Lock(), Running()

  def use(device: str) -> None:
    with contextlib.suppress(queue.Empty):
      while True:
        make(*waiting.get_nowait(), device)

  def make(row: Planned, tasks: Sequence[str], device: str) -> None:
    try:
      for stage in (_pretrain, _fine_tune):
        log = stage(row, tasks, place, device, started)
        if log:
          failed.append((row, log))
          return
        with lock:
          after_each()
    except Exception as error:
      failed.append((row, f"{type(error).__name__}: {error}"))

  threads = [threading.Thread(target=use, args=(device,), daemon=True) for device in place.devices]
  with started.stop_all_on_signals():
    for thread in threads:
      thread.start()
    for thread in threads:
      while thread.is_alive():
        thread.join(0.2)  # short, so that signals are seen
        started.end_stragglers()
  if started.stopped:
    raise Interrupted("Stopped, as asked. The same command goes on from the last checkpoints.")
  if failed:
    raise UserError(f"{len(failed)} of {len(work)} models failed", got="\n    ".join(
      f"{row.model.name}: {said}" for row, said in failed), allowed="runs that end well",
      fix="correct what it says and start the same command again; what is finished stays")


def share_of_device(place: Place, device: str) -> float:
  """The memory of a device that a model may take: the models that are there at the same time have equal shares."""
  return 0.85 / place.devices.count(device)


def _pretrain(row: Planned, tasks, place: Place, device: str, started: "Running") -> str:
  """Trains to the end or to the limit; returns what went wrong."""
  del tasks
  if is_trained(row):
    print(f"{row.model.name}: pre-training is finished", flush=True)
    return ""
  print(f"{row.model.name}: {row.num_steps:,} steps, {row.workdir}", flush=True)
  is_alone = place.devices.count(device) == 1
  status = started.call(pretrain_command(row, place), os.path.join(row.folder, "pretrain.log"), device,
                        place.train_seconds, memory_share=0.0 if is_alone else share_of_device(place, device))
  if status == Interrupted.STATUS or (status < 0 and place.train_seconds):
    print(f"{row.model.name}: stopped at step {last_step(row.workdir):,} of {row.num_steps:,} by the limit",
          flush=True)
    return "" if last_step(row.workdir) else "stopped before the first checkpoint"
  return _tail(os.path.join(row.folder, "pretrain.log")) if status else ""


def _fine_tune(row: Planned, tasks, place: Place, device: str, started: "Running") -> str:
  """Runs the sweep from the newest checkpoint, to its end or to the limit; returns what went wrong."""
  step = last_step(row.workdir)
  folder = glue_folder(row, step)
  missing = [task for task in tasks if not os.path.exists(task_results(folder, task))]
  if not place.glue or not missing:
    print(f"{row.model.name}: GLUE is {'finished' if place.glue else 'left out, no --glue'}", flush=True)
    return ""
  print(f"{row.model.name}: {', '.join(missing)}: {folder}", flush=True)
  log = f"{row.sweeps}.log"
  status = started.call(glue_command(row, tasks, step, place, device), log, device, place.glue_seconds,
                        memory_share=share_of_device(place, device) / place.glue_at_once)
  stopped = status in (Interrupted.STATUS, 128 + signal.SIGINT) or status < 0
  return _tail(log) if status and not (stopped and place.glue_seconds) else ""


def is_trained(row: Planned) -> bool:
  """Whether the run has its last checkpoint and the evaluation behind it."""
  return row.num_steps in checkpoints.saved_steps(row.workdir) and any(
    one["split"] == "eval" and one["step"] == row.num_steps for one in metrics.read_rows(row.workdir))


def last_step(workdir: str) -> int:
  """Of the newest checkpoint; 0 without one."""
  return max(checkpoints.saved_steps(workdir), default=0)


class Running:
  """The processes that run now; each has a group of its own, so that what it started ends with it."""

  def __init__(self):
    self.processes: set[subprocess.Popen] = set()
    self.stopped = 0.0  # when all were asked to stop

  def call(self, command: Sequence[str], log: str, device: str, seconds: float, memory_share: float = 0.0) -> int:
    """Runs a command, its output in `log`; asks it to stop after `seconds` (0 = never). Returns its exit status.

    Args:
      memory_share: of the device's memory that each process below may take; 0 = jax's default.
    """
    if self.stopped:
      return Interrupted.STATUS
    os.makedirs(os.path.dirname(log), exist_ok=True)
    environment = dict(os.environ)
    if device:
      environment["CUDA_VISIBLE_DEVICES"] = device
    if memory_share:
      environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{memory_share:.3f}")
    with open(log, "a", encoding="utf-8") as file:
      file.write(" ".join(command) + "\n")
      file.flush()
      process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
    self.processes.add(process)
    try:
      return process.wait(seconds or None)
    except subprocess.TimeoutExpired:
      _signal_group(process, signal.SIGTERM)
      with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(GRACE_SECONDS)
      _signal_group(process, signal.SIGKILL)
      return process.wait()
    finally:
      _signal_group(process, signal.SIGKILL)  # whatever is left of the group
      self.processes.discard(process)

  def end_stragglers(self) -> None:
    """Kills what goes on long after it was asked to stop; the groups would outlive this process."""
    if self.stopped and time.monotonic() > self.stopped + GRACE_SECONDS:
      for process in list(self.processes):
        _signal_group(process, signal.SIGKILL)

  @contextlib.contextmanager
  def stop_all_on_signals(self):
    """Passes Ctrl-C and SIGTERM on to every running process; starts no further ones."""
    def stop(number, frame):
      del number, frame
      self.stopped = self.stopped or time.monotonic()
      for process in list(self.processes):
        _signal_group(process, signal.SIGTERM)

    if threading.current_thread() is not threading.main_thread():
      yield
      return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
      yield
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)


def _signal_group(process: subprocess.Popen, number: int) -> None:
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(process.pid, number)


def _tail(log: str) -> str:
  with open(log, encoding="utf-8", errors="replace") as file:
    return f"{log}:\n" + "".join(file.readlines()[-6:])
