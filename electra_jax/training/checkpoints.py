"""Checkpoints of a run: written by Orbax while the loop continues; the newest good one is where a start resumes."""

import contextlib
import functools
import logging as python_logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from jaxtyping import PyTree
from ml_collections import ConfigDict

from electra_jax import distributed
from electra_jax.errors import NoAnswerError, UserError, listed
from electra_jax.training import checkpoint_reading as reading
from electra_jax.training.train_state import TrainState

State = TypeVar("State")  # TrainState, or that of several seeds
FINITE = ("params", "opt_state")  # parts of a state that are saved only if they are finite
DAMAGED, REASON = ".damaged", "damage.txt"  # what a damaged checkpoint's folder is called, and the file that says why

UNSAFE = re.compile(r"[\[\]*?\\\ud800-\udfff]")  # in a path; the last are bytes that are not UTF-8


class Checkpoints:
  """The checkpoints of one workdir: `<workdir>/checkpoints/<step>/`, complete or absent (written aside, renamed).

  Args:
    workdir: the run's folder.
    config_checkpoint: the `checkpoint` branch of the config.
    as_saved: the form in which a state is saved, of the one that `save` gets.
  """

  def __init__(self, workdir: str, config_checkpoint: ConfigDict, as_saved: Callable[[Any], Any] = lambda state: state):
    check_place(workdir)
    self._workdir, self._directory, self._as_saved = workdir, _directory(workdir), as_saved
    options = ocp.CheckpointManagerOptions(
      max_to_keep=config_checkpoint.keep_last, keep_period=config_checkpoint.keep_every_steps or None,
      cleanup_tmp_directories=True, enable_async_checkpointing=True)
    _quieten_orbax()
    _write_arrays_whole()
    with self._storage_errors():
      try:
        self._manager = ocp.CheckpointManager(self._directory, options=options)
      except (ValueError, TypeError, KeyError):  # Orbax refuses all for the metadata of one
        self._set_aside(_unreadable_metadata(self._directory))
        self._manager = ocp.CheckpointManager(self._directory, options=options)
    self._every_steps = config_checkpoint.every_steps

  @property
  def newest_step(self) -> int:
    """Of the newest checkpoint, whether it can be read or not; 0 without any."""
    return max(self._manager.all_steps(), default=0)

  def restore_newest(self, abstract: State) -> State | None:
    """The newest checkpoint that can be read, on the devices that `abstract` names; None where there is none.

    One that is known to be damaged is passed over. If one before it can be read, it is renamed to STEP.damaged, which
    the report lists (`set_aside`).

    Raises:
      UserError: there are checkpoints, but all are damaged, or they are of another model.
      NoAnswerError: the disk does not give what it may give later; nothing is passed over for that.
    """
    damaged: dict[int, str] = {}
    for step in sorted(self._manager.all_steps(), reverse=True):
      path = os.path.join(self._directory, str(step))
      try:
        state = reading.patiently(functools.partial(_read_state, path, abstract))
      except reading.Damaged as damage:
        damaged[step] = str(damage)
        logging.warning("The checkpoint of step %d is damaged; trying the one before.\n    %s", step, damage)
        continue
      if damaged:
        with self._storage_errors():
          self._set_aside(damaged)
          self._manager.reload()
      return state
    faults = [f"step {step}: {reason}" for step, reason in damaged.items()]
    faults += [f"{name}: {reason}" for name, reason in set_aside(self._workdir).items()]
    if faults:
      raise UserError(f"None of the checkpoints in {self._directory} can be read", got=listed(faults, most=5),
                      allowed="at least one complete checkpoint of this model",
                      fix="restore the folder from a backup, or start again in a new --workdir")
    return None

  def _set_aside(self, damaged: dict[int, str]) -> None:
    """Renames damaged checkpoints, so that their steps can be saved again; nothing is deleted."""
    if jax.process_index() == 0:
      for step, reason in damaged.items():
        path = os.path.join(self._directory, str(step))
        free = next(name for number in range(1, sys.maxsize)
                    if not os.path.exists(name := f"{path}{DAMAGED}{f'-{number}' * (number > 1)}"))
        os.rename(path, free)
        with open(os.path.join(free, REASON), "w", encoding="utf-8") as file:
          file.write(f"{reason}\n")
        logging.warning("The damaged checkpoint of step %d is kept as %s.", step, free)
    distributed.barrier("damaged checkpoints")

  def save_if_due(self, state: Any, step: int, too: bool = False) -> None:
    """Starts a save at every multiple of `checkpoint.every_steps`, and where `too`; the loop continues meanwhile.

    Raises:
      UserError: the disk is full or cannot be written; this is how the loop hears of a save that has failed meanwhile.
    """
    # Not Orbax's check_for_errors: it takes the error away from the thread that ends the save, which then believes that
    # all is well and deletes the oldest checkpoint.
    if not self._manager.is_saving_in_progress():
      with self._storage_errors():
        self._manager.wait_until_finished()
    if too or self.is_due(step):
      self.save(state, step)

  def is_due(self, step: int) -> bool:
    """Whether `save_if_due` saves this step."""
    return step % self._every_steps == 0

  def save(self, state: Any, step: int, finite: tuple[str, ...] = FINITE) -> None:
    """Starts a save of this step, unless it is there already.

    Args:
      state: what is saved.
      step: its name.
      finite: fields of the state; with NaN or infinity in one of them nothing is saved.

    Raises:
      UserError: the state is not finite; or the disk is full or cannot be written, now or in the save before. Earlier
        checkpoints stay as they were.
    """
    if step in self._manager.all_steps():
      return
    state = self._as_saved(state)
    sums, nonfinite = reading.examine(state._asdict())
    faults = [name for name in nonfinite if name.split("/")[0] in finite]
    if faults:
      sound = max(self._manager.all_steps(), default=None)
      raise UserError(f"The state of step {step} is not finite and is not saved", got=listed(faults, most=3),
                      allowed="finite parameters and moments",
                      fix="start in a new --workdir with a lower --config.optimizer.learning_rate or a longer warm-up"
                      + f"; the last sound checkpoint is that of step {sound}" * (sound is not None))
    with self._storage_errors():
      self._manager.save(step, args=ocp.args.StandardSave(state._asdict()), force=True, custom_metadata={"sums": sums})

  def close(self) -> None:
    """Waits for the save in progress, unless another process is gone: without it the save would never be complete.

    Raises:
      UserError: it cannot be written.
    """
    if jax.process_count() > 1 and isinstance(sys.exception(), NoAnswerError):
      return
    with self._storage_errors():
      self._manager.wait_until_finished()
      self._manager.close()

  @contextlib.contextmanager
  def _storage_errors(self) -> Generator[None, None, None]:
    """Turns a refusal of the disk into a UserError; removes what was half written, which may be what fills it."""
    try:
      yield
    except UserError:
      raise
    except (OSError, ValueError) as error:  # TensorStore reports a full disk as ValueError
      lost = distributed.find_lost_process(error)
      if lost is not None:
        raise lost from error
      if jax.process_index() == 0 and os.path.isdir(self._directory):
        for name in os.listdir(self._directory):
          if ocp.utils.TMP_DIR_SUFFIX in name:
            shutil.rmtree(os.path.join(self._directory, name), ignore_errors=True)
      raise UserError(f"A checkpoint cannot be written to {self._directory}",
                      got=f"{type(error).__name__}: {error}",
                      allowed="a folder that can be written, with room for the state (12 bytes a parameter)",
                      fix="free space or choose another --workdir; the same command then resumes from the last "
                      "checkpoint") from error


def check_place(workdir: str) -> None:
  """Refuses a folder in which Orbax would lose what it saves, because it takes the path for a pattern.

  Raises:
    UserError: the absolute path has a character of UNSAFE.
  """
  path = _directory(workdir)
  if "://" not in workdir and UNSAFE.search(path):
    raise UserError("Checkpoints cannot be kept under this path", got=f"{os.path.dirname(path)!r}",
                    allowed="a path of UTF-8 without [ ] * ? \\, which the library takes for parts of a pattern",
                    fix="choose another --workdir (or --out), or rename the folder above it")


def saved_steps(workdir: str) -> list[int]:
  """Steps of the complete checkpoints of a workdir, ascending; empty where there are none."""
  directory = _directory(workdir)
  return sorted(ocp.utils.checkpoint_steps(directory)) if os.path.isdir(directory) else []


def save_params(workdir: str, config_checkpoint: ConfigDict, step: int, params: PyTree) -> None:
  """Writes parameters alone as the checkpoint of a step: to answer with, or to start from."""
  saved = Checkpoints(workdir, config_checkpoint)
  saved.save(TrainState(np.int32(step), params, {}), step)
  saved.close()


def load_params(workdir: str, abstract_params: PyTree | None = None,
                step: int | None = None) -> tuple[int, PyTree]:
  """(step, params) of a run's newest (or a given) checkpoint; on the first device unless shardings are given.

  Args:
    workdir: the run's folder; nothing in it is changed.
    abstract_params: jax.ShapeDtypeStruct leaves with shardings; without it the shapes are the checkpoint's own.
    step: of one of `saved_steps`.

  Raises:
    UserError: there is no checkpoint, or not of that step; it is damaged, or of another model than asked for.
  """
  steps = saved_steps(workdir)
  if not steps or (step is not None and step not in steps):
    raise UserError(f"No checkpoint to read in {_directory(workdir)}",
                    got=f"steps {steps}, asked for {'the newest' if step is None else step}",
                    allowed="a workdir that `python -m electra_jax.main` has trained in",
                    fix="use one of these steps" if steps else
                    "check the path, or train first: launch/demo.sh makes one in minutes")
  step = max(steps) if step is None else step
  path = os.path.join(_directory(workdir), str(step))

  def read():
    tree, sums = reading.read_metadata(path)
    wanted = abstract_params
    if wanted is None:
      device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
      wanted = jax.tree.map(lambda m: jax.ShapeDtypeStruct(m.shape, m.dtype, sharding=device), tree["params"])
    return reading.read_parts(path, tree, sums, {"params": wanted})["params"]

  try:
    return step, reading.patiently(read)
  except reading.Damaged as damage:
    others = ", ".join(str(other) for other in steps if other != step) or "none"
    raise UserError(f"The parameters in {path} cannot be read", got=damage, allowed="a complete checkpoint",
                    fix=f"use another step (there are: {others}), or restore the folder from a backup") from damage


def set_aside(workdir: str) -> dict[str, str]:
  """{name: reason} of the damaged checkpoints that starts of the run have passed over and renamed."""
  directory = _directory(workdir)
  names = sorted(name for name in os.listdir(directory) if DAMAGED in name) if os.path.isdir(directory) else []
  reasons = {}
  for name in names:
    reasons[name] = "damaged"
    with contextlib.suppress(OSError), open(os.path.join(directory, name, REASON), encoding="utf-8") as file:
      reasons[name] = file.read().strip()
  return reasons


def _read_state(path: str, abstract: Any) -> Any:
  tree, sums = reading.read_metadata(path)
  return abstract._replace(**reading.read_parts(path, tree, sums, abstract._asdict()))


def _unreadable_metadata(directory: str) -> dict[int, str]:
  """{step: reason} of the checkpoints whose metadata is damaged."""
  reasons = {}
  for step in ocp.utils.checkpoint_steps(directory):
    try:
      reading.patiently(functools.partial(reading.read_metadata, os.path.join(directory, str(step))))
    except reading.Damaged as damage:
      reasons[step] = str(damage)
  return reasons


def _directory(workdir: str) -> str:
  return os.path.abspath(os.path.join(workdir, "checkpoints"))


@functools.cache
def _quieten_orbax() -> None:
  """Keeps the tracebacks of a failed save off the console, where they would hide the error that we report.

  Orbax logs what it is about to raise, once in each of its threads; asyncio, which nothing else here uses, logs it
  for each array; TensorStore's threads print that the event loop is already closed; and when the process ends, Python
  prints the errors of Orbax's coroutines for a damaged checkpoint. Its warning that we replace one of its handlers
  goes as well.
  """
  former, orbax = sys.unraisablehook, f"{os.sep}orbax{os.sep}"

  def report(unraisable):
    is_orbax = orbax in getattr(getattr(unraisable.object, "cr_code", None), "co_filename", "")
    if not is_orbax and str(unraisable.exc_value) != "Event loop is closed":
      former(unraisable)

  sys.unraisablehook = report
  python_logging.getLogger("asyncio").setLevel(python_logging.CRITICAL)
  logging.get_absl_logger().addFilter(lambda record: orbax not in record.pathname or not (
    record.exc_info is not None or "overriding" in str(record.msg)))


@functools.cache
def _write_arrays_whole() -> None:
  """Makes a single process write an array that all devices hold from one of them, not a piece from each.

  Pieces let several processes share the writing. Within one they only cost time, most of it the loop's: each piece of
  each array is cut out and fetched on its own.
  """
  if jax.process_count() == 1:
    ocp.type_handlers.register_type_handler(
      jax.Array, ocp.type_handlers.ArrayHandler(use_replica_parallel=False), override=True)
