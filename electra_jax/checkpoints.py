"""How does a run survive? Asynchronous Orbax checkpoints; the newest good one wins, then init_from, then scratch."""

import os

import jax
import orbax.checkpoint as ocp
from absl import logging
from jaxtyping import PyTree

from electra_jax import sharding
from electra_jax.errors import UserError
from electra_jax.train_state import TrainState


class Checkpoints:
  """The checkpoints of one workdir: `<workdir>/checkpoints/<step>/`, complete or absent (written aside, renamed)."""

  def __init__(self, workdir: str, config_checkpoint):
    self._directory = _directory(workdir)
    options = ocp.CheckpointManagerOptions(
      max_to_keep=config_checkpoint.keep_last, keep_period=config_checkpoint.keep_every_steps or None,
      cleanup_tmp_directories=True, enable_async_checkpointing=True)
    try:
      self._manager = ocp.CheckpointManager(self._directory, options=options)
    except OSError as error:
      raise _storage_error(self._directory, error) from error
    self._every_steps = config_checkpoint.every_steps

  def restore_newest(self, abstract: TrainState) -> TrainState | None:
    """The newest checkpoint that can be read, on the devices that `abstract` names; None where there is none.

    A damaged one is reported and removed from the order; the one before it is used.

    Raises:
      UserError: there are checkpoints, but none can be read.
    """
    steps = sorted(self._manager.all_steps(), reverse=True)
    faults = []
    for step in steps:
      try:
        state = self._manager.restore(step, args=ocp.args.StandardRestore(abstract))
      except Exception as error:  # Orbax and TensorStore raise many types for damaged files
        faults.append(f"\n    step {step}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
        logging.warning("The checkpoint of step %d is damaged; trying the one before.%s", step, faults[-1])
        continue
      for damaged in steps[: len(faults)]:
        self._manager.delete(damaged)
      return state
    if faults:
      raise UserError(f"None of the checkpoints in {self._directory} can be read", got="".join(faults),
                      allowed="at least one complete checkpoint of this model",
                      fix="restore the folder from a backup, or start again in a new --workdir")
    return None

  def save_if_due(self, state: TrainState, step: int) -> None:
    """Starts a save at every multiple of `checkpoint.every_steps`; the loop goes on while it is written."""
    if step % self._every_steps == 0:
      self.save(state, step)

  def save(self, state: TrainState, step: int) -> None:
    """Starts a save of this step, unless it is there already.

    Raises:
      UserError: the disk is full or cannot be written; earlier checkpoints stay as they were.
    """
    if step in self._manager.all_steps():
      return
    try:
      self._manager.save(step, args=ocp.args.StandardSave(state), force=True)
    except OSError as error:
      raise _storage_error(self._directory, error) from error

  def close(self) -> None:
    """Waits for the save in progress."""
    try:
      self._manager.wait_until_finished()
      self._manager.close()
    except (OSError, ValueError) as error:  # TensorStore reports a full disk as ValueError
      raise _storage_error(self._directory, error) from error


def saved_steps(workdir: str) -> list[int]:
  """Steps of the complete checkpoints of a workdir, ascending; empty where there are none."""
  directory = _directory(workdir)
  return sorted(ocp.utils.checkpoint_steps(directory)) if os.path.isdir(directory) else []


def load_params(workdir: str, abstract_params: PyTree | None = None, step: int | None = None) -> tuple[int, PyTree]:
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
  # Composite, although there is one item: the step's folder, which holds the metadata, is what Orbax then opens.
  with ocp.Checkpointer(ocp.CompositeCheckpointHandler(default=ocp.PyTreeCheckpointHandler())) as reader:
    try:
      saved = reader.metadata(path).item_metadata["default"].tree["params"]
      if abstract_params is None:
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        abstract_params = jax.tree.map(lambda m: jax.ShapeDtypeStruct(m.shape, m.dtype, sharding=device), saved)
      _check_shapes(saved, abstract_params, path)
      item = {"params": abstract_params}
      restore_args = ocp.checkpoint_utils.construct_restore_args(item)
      default = ocp.args.PyTreeRestore(item, restore_args=restore_args, partial_restore=True)
      restored = reader.restore(path, args=ocp.args.Composite(default=default))
    except UserError:
      raise
    except Exception as error:  # Orbax and TensorStore raise many types for damaged files
      others = ", ".join(str(other) for other in steps if other != step) or "none"
      raise UserError(f"The parameters in {path} cannot be read",
                      got=f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0][:200]}",
                      allowed="a complete checkpoint",
                      fix=f"use another step (there are: {others}), or restore the folder from a backup") from error
  return step, restored["default"]["params"]


def _check_shapes(saved: PyTree, wanted: PyTree, path: str) -> None:
  """Orbax would cut or pad arrays of another shape without a word."""
  shapes = {sharding.path_name(key): tuple(leaf.shape) for key, leaf in jax.tree_util.tree_leaves_with_path(saved)}
  faults = [f"\n    {name}: {shapes.get(name, 'missing')}, asked for {tuple(leaf.shape)}"
            for key, leaf in jax.tree_util.tree_leaves_with_path(wanted)
            if shapes.get(name := sharding.path_name(key)) != tuple(leaf.shape)]
  if faults:
    more = f"\n    and {len(faults) - 5} more" if len(faults) > 5 else ""
    raise UserError(f"The checkpoint {path} is of another model", got="".join(faults[:5]) + more,
                    allowed="the parameters that this run has: same sizes, same objective",
                    fix="compare the two config.json, and change the model or the checkpoint")


def _directory(workdir: str) -> str:
  return os.path.abspath(os.path.join(workdir, "checkpoints"))


def _storage_error(directory: str, error: Exception) -> UserError:
  return UserError(f"A checkpoint cannot be written to {directory}", got=f"{type(error).__name__}: {error}",
                   allowed="a folder that can be written, with room for the state (12 bytes a parameter)",
                   fix="free space or choose another --workdir; the same command then goes on from the last checkpoint")
