"""Metrics, from (sum, weight) pairs to numbers, and their logs: JSONL, TensorBoard, Weights & Biases.

A mean is taken once over all steps, micro-batches and devices of a window or an evaluation, as the sum of sums over the
sum of weights: never a mean of means.
"""

import contextlib
import importlib.util
import json
import math
import os
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from numpy.typing import ArrayLike

from electra_jax import files
from electra_jax.errors import UserError

Pairs = dict[str, tuple[Any, Any]]  # name -> (sum, weight); for `*/auc` two histograms, see `summarise`

FILE_NAME = "metrics.jsonl"


def add_pairs(window: Iterable[Pairs]) -> Pairs:
  """Sums the pairs of many steps name by name, on the host, in float64 and in the given order.

  The order is fixed, so that the same steps give the same bits. All arrays are fetched from the device at once.

  >>> summarise(add_pairs([{"mlm/loss": (4.0, 1.0)}, {"mlm/loss": (2.0, 3.0)}]))["mlm/loss"]
  1.5
  """
  import jax  # here, so that tools that only read logs start without it
  totals: Pairs = {}
  for pairs in jax.device_get(list(window)):
    for name, (value, weight) in pairs.items():
      value, weight = np.asarray(value, np.float64), np.asarray(weight, np.float64)
      before = totals.get(name, (0.0, 0.0))
      totals[name] = (before[0] + value, before[1] + weight)
  return totals


def of_each_step(window: Iterable[Pairs]) -> list[Pairs]:
  """The pairs of each step, on the host, from those of each call, which have a leading axis of steps."""
  import jax  # as above
  return [jax.tree.map(lambda x, i=i: x[i], pairs) for pairs in jax.device_get(list(window))
          for i in range(len(pairs["loss"][0]))]


def summarise(totals: Pairs) -> dict[str, float]:
  """Each pair's sum / weight. `mlm/loss` also gives `mlm/perplexity`.

  A metric without any count is left out, such as recall and AUC if no token was replaced (always the case for the
  discriminator of ELECTRA's footnote 7). Only a precision is then 0: nothing was marked.

  A pair named `*/auc` holds two histograms over ascending score bins, of the positive and of the negative examples;
  its value is the area under the ROC curve, `auc`. It also gives `*/constant_loss`: the cross-entropy, in nats, of the
  best constant answer.

  >>> summarise({"rtd/auc": ([0, 1], [3, 0])})
  {'rtd/auc': 1.0, 'rtd/constant_loss': 0.5623351446188083}
  >>> summarise({"mlm/loss": (0.0, 2.0), "rtd/precision": (0.0, 0.0), "rtd/recall": (0.0, 0.0)})
  {'mlm/loss': 0.0, 'mlm/perplexity': 1.0, 'rtd/precision': 0.0}
  """
  values = {}
  for name, (total, weight) in totals.items():
    if name.endswith("/auc"):
      if not math.isnan(area := auc(total, weight)):
        share = float(np.sum(total) / (np.sum(total) + np.sum(weight)))
        values |= {name: area, f"{name.removesuffix('auc')}constant_loss":
                   -share * math.log(share) - (1 - share) * math.log1p(-share)}
      continue
    if not weight and not name.endswith("/precision"):
      continue
    values[name] = float(total) / float(weight) if weight else 0.0
    if name == "mlm/loss":
      with np.errstate(over="ignore"):
        values["mlm/perplexity"] = float(np.exp(values[name]))
  return values


def auc(positives: ArrayLike, negatives: ArrayLike) -> float:
  """The probability that a random positive scores above a random negative; equal bins count half.

  Args:
    positives: counts [bins] of the positive examples over ascending score bins.
    negatives: counts [bins] of the negative ones.

  >>> auc([0, 0, 2], [3, 0, 0]), auc([1, 1], [1, 1]), auc([0], [4])
  (1.0, 0.5, nan)
  """
  positives, negatives = np.asarray(positives, np.float64), np.asarray(negatives, np.float64)
  num_pairs = positives.sum() * negatives.sum()
  if num_pairs == 0:
    return math.nan
  below = np.cumsum(negatives) - negatives
  return float((positives * (below + 0.5 * negatives)).sum() / num_pairs)


def check_installed(config_log: ConfigDict) -> None:
  """Raises a UserError if wandb is wanted and missing; quick, as neither it nor jax is imported."""
  if config_log.wandb_project and importlib.util.find_spec("wandb") is None:
    raise UserError(f"log.wandb_project is {config_log.wandb_project!r}, but wandb is not installed", got="no wandb",
                    allowed="an empty project, or wandb installed",
                    fix="pip install wandb, or set --config.log.wandb_project=''")


def check_services(config_log: ConfigDict) -> None:
  """Raises a UserError, before the data is prepared, if W&B is wanted and has no valid key."""
  import jax  # as above
  if config_log.wandb_project and jax.process_index() == 0:
    import wandb
    try:
      wandb.login()  # asks for a key if this is a terminal
    except wandb.Error as error:
      raise _no_wandb(config_log.wandb_project, error) from error


class MetricWriter:
  """Writes the rows of a run to `<workdir>/metrics.jsonl` and, if the config says so, to TensorBoard and W&B.

  A row of the file is one flat JSON object with "step", "split", "time" (seconds since 1970), the sums of `per_step`,
  and the values, with null for those that are not finite.

  Args:
    workdir: the run's folder, made if missing.
    config_log: the `log` branch of the config.
    restored_step: the step of the checkpoint that the run resumes from; rows of later steps, which the run will
      make again, and a last line torn by a kill are dropped. None: the run starts anew, and all rows are dropped.
    enabled: True on process 0 only; elsewhere every method does nothing.
    run_config: shown by W&B as the run's configuration.
    per_step: what a step adds to sums that each row has, e.g. {"tokens": 2048, "epoch": 0.01}; tokens include special
      ones but not padding (the mean over an epoch).

  Raises:
    UserError: the folder cannot be written, or the disk is full.
  """

  def __init__(self, workdir: str, config_log: ConfigDict, *, restored_step: int | None = None, enabled: bool = True,
               run_config: Mapping | None = None, per_step: Mapping[str, float] | None = None):
    self._workdir, self._enabled, self._per_step = workdir, enabled, per_step or {}
    self._file, self._wandb = None, None
    self._boards: dict[str, _Board] | None = {} if config_log.tensorboard else None  # one per split
    self._purge_step = 0 if restored_step is None else restored_step + 1
    if not enabled:
      return
    path = os.path.join(workdir, FILE_NAME)
    try:
      os.makedirs(workdir, exist_ok=True)
      _drop_rows(path, self._purge_step)
      self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed by `close`
    except OSError as error:
      raise _unwritable(path, error) from error
    if config_log.wandb_project:
      self._wandb = _start_wandb(workdir, config_log.wandb_project, run_config)

  def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
    """Adds one row, e.g. `write(100, "train", {"mlm/loss": 6.1})`; it is in the file when the call returns."""
    if self._file is None:
      return
    values = {name: float(value) for name, value in values.items()}
    row: dict[str, float | str | None] = {"step": int(step), "split": split, "time": round(time.time(), 1)}
    row |= {name: int(step) * amount for name, amount in self._per_step.items()}
    row |= {name: value if math.isfinite(value) else None for name, value in values.items()}
    try:
      self._file.write(json.dumps(row, allow_nan=False) + "\n")
      self._file.flush()
      if self._boards is not None:
        if split not in self._boards:
          self._boards[split] = _Board(os.path.join(self._workdir, "tensorboard", split), self._purge_step)
        self._boards[split].write(step, values)
    except OSError as error:
      raise _unwritable(self._file.name, error) from error
    if self._wandb is not None:
      tags = {name if name.startswith(f"{split}/") else f"{split}/{name}": value for name, value in values.items()}
      self._wandb.log({"step": int(step), **tags})

  def rows(self) -> list[dict]:
    """The rows of the file, as `read_rows`; [] if this process does not write."""
    return read_rows(self._workdir) if self._enabled else []

  def close(self) -> None:
    """Closes everything; a full disk is ignored here, as `write` has reported it."""
    for file in [*(self._boards or {}).values(), self._file]:
      with contextlib.suppress(OSError):
        if file is not None:
          file.close()
    if self._wandb is not None:
      self._wandb.finish()


class _Board:
  """TensorBoard's event file of one split; equal tags in separate folders put the splits' curves into one picture.

  Written in the caller's thread: if tensorboardX's SummaryWriter lost its thread on a full disk, the run would wait at
  its queue for ever.
  """

  def __init__(self, folder: str, purge_step: int):
    from tensorboardX import event_file_writer, summary  # here, as it takes a second or two
    from tensorboardX.proto import event_pb2
    messages: Any = event_pb2  # protobuf makes its classes at run time
    self._event, self._scalar = messages.Event, summary.scalar
    os.makedirs(folder, exist_ok=True)
    self._file = event_file_writer.EventsWriter(os.path.join(folder, "events"), f".{os.getpid()}")
    # Hides an earlier process's events from this step on, which this one will write again.
    start = messages.SessionLog(status=messages.SessionLog.START)
    self._file.write_event(self._event(step=purge_step, wall_time=time.time(), session_log=start))

  def write(self, step: int, values: Mapping[str, float]) -> None:
    for name, value in values.items():
      if not math.isfinite(value):  # a gap in the curve, as in the file
        continue
      summary = self._scalar(name, value)
      self._file.write_event(self._event(step=step, wall_time=time.time(), summary=summary))
    self._file.flush()

  def close(self) -> None:
    self._file.close()


def read_rows(workdir: str) -> list[dict]:
  """The rows of `<workdir>/metrics.jsonl` in order, null as NaN; a torn line is left out.

  Raises:
    UserError: there is no file, or no row in it.
  """
  path = os.path.join(workdir, FILE_NAME)
  try:
    with open(path, encoding="utf-8", errors="replace") as file:
      rows = [row for row in map(_parse, file) if row]
    problem = f"{path} has no row"
  except OSError as error:
    rows, problem = [], str(error)
  if not rows:
    raise UserError(f"There are no metrics in {workdir}", got=problem,
                    allowed="the workdir of a run that has logged at least once (train.log_every_steps)",
                    fix="check the path, or wait for the run's first log line")
  return [{key: math.nan if value is None else value for key, value in row.items()} for row in rows]


def rows_so_far(workdir: str) -> list[dict]:
  """`read_rows`, or []: a run that failed early leaves an empty file, an imported one has none."""
  try:
    return read_rows(workdir)
  except UserError:
    return []


def _parse(line: str) -> dict | None:
  """The row of a line, or None if the line is not a whole row."""
  try:
    row = json.loads(line)
  except ValueError:
    return None
  return row if isinstance(row, dict) and isinstance(row.get("step"), int) and "split" in row else None


def _drop_rows(path: str, first_step: int) -> None:
  """Removes rows from `first_step` on and incomplete ones; the old file stays until the new one is complete."""
  if not os.path.exists(path):
    return
  with open(path, encoding="utf-8", errors="replace") as file:
    lines = file.readlines()
  earlier = [line for line in lines if line.endswith("\n") and (row := _parse(line)) and row["step"] < first_step]
  if earlier == lines:
    return
  with files.atomic(path) as file:
    file.writelines(earlier)
  print(f"{path}: dropped {len(lines) - len(earlier)} rows that the run will write again.", file=sys.stderr)


def _unwritable(path: str, error: OSError) -> UserError:
  return UserError(f"The metrics cannot be written to {path}", got=error.strerror or str(error),
                   allowed="a folder with write permission and free space",
                   fix="free some space or use another --workdir; the run resumes from its last checkpoint")


def _no_wandb(project: str, error: Exception) -> UserError:
  return UserError(f"log.wandb_project is {project!r}, but W&B cannot be used", got=str(error)[:300],
                   allowed="a valid key and a server that answers, or no W&B",
                   fix="run `wandb login`, export WANDB_API_KEY or WANDB_MODE=offline, or set "
                   "--config.log.wandb_project=''")


def _start_wandb(workdir: str, project: str, run_config: Mapping | None):
  """A W&B run, which a restart in the same workdir continues: its id is in `<workdir>/wandb_id`."""
  import wandb
  path = os.path.join(workdir, "wandb_id")
  if not os.path.exists(path):
    with files.atomic(path) as file:
      file.write(uuid.uuid4().hex)
  with open(path, encoding="utf-8") as file:
    run_id = file.read().strip()
  try:
    run = wandb.init(project=project, id=run_id, resume="allow", dir=workdir, config=dict(run_config or {}),
                     name=os.path.basename(os.path.abspath(workdir)))
  except wandb.Error as error:
    raise _no_wandb(project, error) from error
  run.define_metric("*", step_metric="step")  # its own counter refuses the steps that a restart makes again
  return run
