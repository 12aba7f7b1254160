"""How does a run survive? Asynchronous Orbax checkpoints; the newest good one wins, then init_from, then scratch."""

import contextlib
import functools
import logging as python_logging
import os
import shutil
import sys
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging
from jaxtyping import PyTree

from electra_jax import distributed, sharding
from electra_jax.errors import NoAnswerError, UserError, listed
from electra_jax.train_state import TrainState


class Checkpoints:
  """The checkpoints of one workdir: `<workdir>/checkpoints/<step>/`, complete or absent (written aside, renamed)."""

  def __init__(self, workdir: str, config_checkpoint):
    self._directory = _directory(workdir)
    options = ocp.CheckpointManagerOptions(
      max_to_keep=config_checkpoint.keep_last, keep_period=config_checkpoint.keep_every_steps or None,
      cleanup_tmp_directories=True, enable_async_checkpointing=True)
    _quieten_orbax()
    _write_arrays_whole()
    with self._storage_errors():
      try:
        self._manager = ocp.CheckpointManager(self._directory, options=options)
      except (ValueError, TypeError, KeyError):  # one damaged metadata file; without it Orbax still finds the arrays
        _remove_damaged_metadata(self._directory)
        self._manager = ocp.CheckpointManager(self._directory, options=options)
    self._every_steps = config_checkpoint.every_steps

  def restore_newest(self, abstract: TrainState) -> TrainState | None:
    """The newest checkpoint that can be read, on the devices that `abstract` names; None where there is none.

    A damaged one is reported and removed from the order; the one before it is used.

    Raises:
      UserError: there are checkpoints, but none can be read, or they are of another model.
    """
    steps = sorted(self._manager.all_steps(), reverse=True)
    faults = []
    for step in steps:
      try:
        path = os.path.join(self._directory, str(step))
        with _reader() as reader:
          metadata = reader.metadata(path)
        _check_shapes(_saved_params(metadata), abstract.params, path)
        as_saved = _counting_as(metadata, abstract)
        parts = self._manager.restore(step, args=ocp.args.StandardRestore(_parts(as_saved)))
        _check_sums(metadata, parts)
      except UserError:
        raise
      except Exception as error:  # Orbax and TensorStore raise many types for damaged files
        faults.append(f"\n    step {step}: {_first_line(error)}")
        logging.warning("The checkpoint of step %d is damaged; trying the one before.%s", step, faults[-1])
        continue
      for damaged in steps[: len(faults)]:
        self._manager.delete(damaged)
      return _counting_like(abstract, as_saved._replace(**parts))
    if faults:
      raise UserError(f"None of the checkpoints in {self._directory} can be read", got="".join(faults),
                      allowed="at least one complete checkpoint of this model",
                      fix="restore the folder from a backup, or start again in a new --workdir")
    return None

  def save_if_due(self, state: TrainState, step: int) -> None:
    """Starts a save at every multiple of `checkpoint.every_steps`; the loop goes on while it is written.

    Raises:
      UserError: the disk is full or cannot be written; this is how the loop hears of a save that has failed meanwhile.
    """
    # Not Orbax's check_for_errors: it takes the error away from the thread that ends the save, which then believes that
    # all is well and deletes the oldest checkpoint.
    if not self._manager.is_saving_in_progress():
      with self._storage_errors():
        self._manager.wait_until_finished()
    if self.is_due(step):
      self.save(state, step)

  def is_due(self, step: int) -> bool:
    """Whether `save_if_due` saves this step."""
    return step % self._every_steps == 0

  def save(self, state: TrainState, step: int) -> None:
    """Starts a save of this step, unless it is there already.

    Raises:
      UserError: the disk is full or cannot be written, now or in the save before; earlier checkpoints stay as they
        were.
    """
    if step in self._manager.all_steps():
      return
    with self._storage_errors():
      self._manager.save(step, args=ocp.args.StandardSave(_parts(state)), force=True,
                         custom_metadata={"sums": _sums(_parts(state))})

  def delete_after(self, step: int) -> None:
    """Removes the checkpoints of later steps."""
    for later in self._manager.all_steps():
      if later > step:
        self._manager.delete(later)

  def close(self) -> None:
    """Waits for the save in progress; not if another process is gone, without which it would never be complete.

    Raises:
      UserError: it cannot be written.
    """
    if jax.process_count() > 1 and isinstance(sys.exception(), NoAnswerError):
      return
    with self._storage_errors():
      self._manager.wait_until_finished()
      self._manager.close()

  @contextlib.contextmanager
  def _storage_errors(self) -> Iterator[None]:
    """A UserError where the disk refuses; what was half written is removed, for it may be what fills the disk."""
    try:
      yield
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
                      fix="free space or choose another --workdir; the same command then goes on from the last "
                      "checkpoint") from error


def saved_steps(workdir: str) -> list[int]:
  """Steps of the complete checkpoints of a workdir, ascending; empty where there are none."""
  directory = _directory(workdir)
  return sorted(ocp.utils.checkpoint_steps(directory)) if os.path.isdir(directory) else []


def load_params(workdir: str, abstract_params: PyTree | None = None, step: int | None = None,
                part: str = "params") -> tuple[int, PyTree]:
  """(step, params) of a run's newest (or a given) checkpoint; on the first device unless shardings are given.

  Args:
    workdir: the run's folder; nothing in it is changed.
    abstract_params: jax.ShapeDtypeStruct leaves with shardings; without it the shapes are the checkpoint's own.
    step: of one of `saved_steps`.
    part: of the state: params, or ema_params, their moving average.

  Raises:
    UserError: there is no checkpoint, or not of that step; it is damaged, or of another model than asked for, or has
      no such part.
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
  with _reader() as reader:
    try:
      metadata = reader.metadata(path)
      if part not in metadata.item_metadata["default"].tree:
        raise UserError(f"The checkpoint {path} has no {part}", got="a run without a moving average",
                        allowed="a run with train.ema_decay above 0",
                        fix="use its parameters, or train with an average")
      saved = _saved_params(metadata, part)
      if abstract_params is None:
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        abstract_params = jax.tree.map(lambda m: jax.ShapeDtypeStruct(m.shape, m.dtype, sharding=device), saved)
      _check_shapes(saved, abstract_params, path)
      item = {part: abstract_params}
      restore_args = ocp.checkpoint_utils.construct_restore_args(item)
      default = ocp.args.PyTreeRestore(item, restore_args=restore_args, partial_restore=True)
      params = reader.restore(path, args=ocp.args.Composite(default=default))["default"][part]
      _check_sums(metadata, {part: params})
    except UserError:
      raise
    except Exception as error:  # Orbax and TensorStore raise many types for damaged files
      others = ", ".join(str(other) for other in steps if other != step) or "none"
      raise UserError(f"The parameters in {path} cannot be read",
                      got=_first_line(error),
                      allowed="a complete checkpoint",
                      fix=f"use another step (there are: {others}), or restore the folder from a backup") from error
  return step, params


def _reader() -> ocp.Checkpointer:
  # Composite, although there is one item: the step's folder, which holds the metadata, is what Orbax then opens.
  return ocp.Checkpointer(ocp.CompositeCheckpointHandler(default=ocp.PyTreeCheckpointHandler()))


def _saved_params(metadata, part: str = "params") -> PyTree:
  """Shapes and types of the parameters in a checkpoint."""
  return metadata.item_metadata["default"].tree[part]


def _parts(state: TrainState) -> dict[str, PyTree]:
  """The state without the fields that this run does not have; as it lies in a checkpoint."""
  return {name: part for name, part in state._asdict().items() if part is not None}


def _counting_as(metadata, abstract: TrainState) -> TrainState:
  """`abstract`, counting skipped updates if the checkpoint does: `train.on_nonfinite` may change between starts.

  The state of fine-tuning has no such field.
  """
  if "skipped_in_a_row" not in abstract._fields:
    return abstract
  is_there = "skipped_in_a_row" in metadata.item_metadata["default"].tree
  return abstract._replace(skipped_in_a_row=abstract.step if is_there else None)  # both are one int32 everywhere


def _counting_like(abstract: TrainState, state: TrainState) -> TrainState:
  """The restored state without the count where `abstract` has none, from 0 where the checkpoint had none."""
  if "skipped_in_a_row" not in abstract._fields:
    return state
  if abstract.skipped_in_a_row is None:
    return state._replace(skipped_in_a_row=None)
  return state if state.skipped_in_a_row is not None else state._replace(skipped_in_a_row=0 * state.step)


@jax.jit
def _sum_of_bits(leaves: list) -> list:
  """The bits of each array as integers, summed modulo 2**32: any flipped bit changes it, no sharding does."""
  unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
  return [jnp.sum(jax.lax.bitcast_convert_type(x, unsigned[x.dtype.itemsize]).astype(jnp.uint32)) for x in leaves]


def _sums(tree: PyTree) -> dict[str, int]:
  """`_sum_of_bits` by path. Compressed chunks have no checksum of their own: a flipped bit would be read unnoticed."""
  named = jax.tree_util.tree_leaves_with_path(tree)
  sums = jax.device_get(_sum_of_bits([jnp.asarray(leaf) for _, leaf in named]))
  return {sharding.path_name(path): int(value) for (path, _), value in zip(named, sums)}


def _check_sums(metadata, tree: PyTree) -> None:
  """Compares what was read with the sums that were saved; a checkpoint of earlier versions has none."""
  expected = (metadata.custom_metadata or {}).get("sums") or {}
  wrong = [name for name, value in _sums(tree).items() if expected.get(name, value) != value]
  if wrong:
    raise ValueError(f"{len(wrong)} arrays have changed since they were saved, the first is {wrong[0]}")


def _remove_damaged_metadata(directory: str) -> None:
  for step in ocp.utils.checkpoint_steps(directory):
    path = os.path.join(directory, str(step))
    try:
      with _reader() as reader:
        reader.metadata(path)
    except Exception as error:
      logging.warning("The metadata of the checkpoint of step %d is damaged: %s", step, _first_line(error))
      with contextlib.suppress(OSError):
        os.remove(os.path.join(path, "_CHECKPOINT_METADATA"))


def _first_line(error: Exception) -> str:
  return f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0][:200]}"


def _check_shapes(saved: PyTree, wanted: PyTree, path: str) -> None:
  """Orbax would cut or pad arrays of another shape without a word."""
  shapes = {sharding.path_name(key): tuple(leaf.shape) for key, leaf in jax.tree_util.tree_leaves_with_path(saved)}
  faults = [f"{name}: {shapes.get(name, 'missing')}, asked for {tuple(leaf.shape)}"
            for key, leaf in jax.tree_util.tree_leaves_with_path(wanted)
            if shapes.get(name := sharding.path_name(key)) != tuple(leaf.shape)]
  if faults:
    raise UserError(f"The checkpoint {path} is of another model", got=listed(faults, most=5),
                    allowed="the parameters that this run has: same sizes, same objective",
                    fix="compare the two config.json, and change the model or the checkpoint")


def _directory(workdir: str) -> str:
  return os.path.abspath(os.path.join(workdir, "checkpoints"))


@functools.cache
def _quieten_orbax() -> None:
  """Keeps the tracebacks of a failed save off the console, where they would hide the error that we report.

  Orbax logs what it is about to raise, once in each of its threads; asyncio, which nobody else uses here, logs the
  same for each array; TensorStore's threads print that the event loop is closed by then; and Python prints what Orbax's
  coroutines of a damaged checkpoint still had to say when the process ends. Nor does it matter to anybody that we
  replace one of Orbax's handlers.
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
  """One process writes an array that all devices hold from one of them, not a piece from each.

  Pieces let several processes share the writing. Within one they only take time, of which the loop waits for most: each
  piece of each array is cut out and fetched on its own.
  """
  if jax.process_count() == 1:
    ocp.type_handlers.register_type_handler(
      jax.Array, ocp.type_handlers.ArrayHandler(use_replica_parallel=False), override=True)
