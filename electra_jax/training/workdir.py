"""Workdirs: a run claims one before it makes anything there, and writes config.json once its data is open."""

import contextlib
import datetime
import fcntl
import json
import os
import tempfile
from collections.abc import Generator

import jax
from absl import logging
from ml_collections import ConfigDict

from electra_jax import config as config_lib
from electra_jax import distributed
from electra_jax.errors import UserError
from electra_jax.training import checkpoints

STARTS_FILE = "starts.jsonl"


def claim(config: ConfigDict, workdir: str, is_begun: bool = False) -> None:
  """Makes a new workdir; in one with checkpoints, makes sure that it holds this very run.

  Before the first checkpoint another config may take its place: the errors of a first try say which keys to change.

  Args:
    is_begun: whether the run has something else to resume from.

  Raises:
    UserError: the workdir holds another run, or cannot be written.
  """
  checkpoints.check_place(workdir)
  is_begun = is_begun or bool(checkpoints.saved_steps(workdir))
  if is_begun or os.path.exists(os.path.join(workdir, "config.json")):
    before = config_lib.load(workdir)  # also without checkpoints: the config.json of something else is not replaced
    changes = config_lib.check_resumable(before, config, workdir) if is_begun else {}
    for name, (was, now) in changes.items():
      logging.info("On resume, %s changes from %r to %r.", name, was, now)
  if jax.process_index() == 0:
    with _disk_errors(workdir):
      os.makedirs(workdir, exist_ok=True)
      tempfile.TemporaryFile(dir=workdir).close()  # says now, not after minutes of preparation, that it is read-only


@contextlib.contextmanager
def lock(workdir: str) -> Generator[None, None, None]:
  """Holds the workdir, so that a second job in it cannot mix its checkpoints with those of the first.

  The lock is on the folder itself: it leaves nothing behind, and ends with the process, however that ends. File
  systems without locks have none.

  Raises:
    UserError: another job holds it, it cannot be made, or nothing can be saved under its name.
  """
  checkpoints.check_place(workdir)
  with contextlib.nullcontext() if jax.process_index() != 0 or "://" in workdir else hold(workdir):
    yield


@contextlib.contextmanager
def hold(workdir: str) -> Generator[None, None, None]:
  """`lock` for the only process of a job, which need not have devices; also for folders that get no checkpoints."""
  with _disk_errors(workdir):
    os.makedirs(workdir, exist_ok=True)
    folder = os.open(workdir, os.O_RDONLY)
  try:
    try:
      fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise UserError(f"Another job is running in the workdir {workdir}", got="a second one", allowed="one at a time",
                      fix="wait for it to end or stop it (`fuser` on the folder names it), or choose another "
                      "--workdir") from None
    except OSError as error:
      logging.info("The workdir cannot be locked (%s); two jobs in it would not notice each other.", error)
    yield
  finally:
    os.close(folder)


def trained_on(workdir: str) -> dict | None:
  """Path and checksum of the text behind the checkpoints of a workdir; None where it has none."""
  return config_lib.read_record(workdir).get("text") if checkpoints.saved_steps(workdir) else None


def record_config(given: ConfigDict, config: ConfigDict, workdir: str, text: dict | None = None,
                  recipe: str = "") -> None:
  """Writes config.json; called once the data fits the config, so that a run that fails before leaves it as it was.

  Args:
    text: path and checksum of the text that is trained on; the path is recorded where the config names none.
    recipe: as --config names it.

  Raises:
    UserError: it cannot be written.
  """
  if jax.process_index() == 0:
    with _disk_errors(workdir):
      config_lib.save(os.path.join(workdir, "config.json"), given, config, text, recipe=recipe)
  distributed.barrier("config")


def record_start(workdir: str, step: int, mesh: jax.sharding.Mesh) -> None:
  """Adds a line to starts.jsonl: when, from which step, on which devices. A preempted run has several.

  Raises:
    UserError: it cannot be written.
  """
  if jax.process_index() != 0:
    return
  device = jax.devices()[0]
  line = {"time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "step": step,
          "device_kind": device.device_kind, "num_devices": jax.device_count(), "num_processes": jax.process_count(),
          "mesh": dict(mesh.shape), "cpu_cores": os.cpu_count(),
          "device_memory_bytes": (device.memory_stats() or {}).get("bytes_limit")}
  with _disk_errors(workdir), open(os.path.join(workdir, STARTS_FILE), "a", encoding="utf-8") as file:
    file.write(json.dumps(line) + "\n")


def read_starts(workdir: str) -> list[dict]:
  """The lines of `record_start`, oldest first; [] where there is none. A torn last line is left out."""
  path = os.path.join(workdir, STARTS_FILE)
  if not os.path.exists(path):
    return []
  starts = []
  with open(path, encoding="utf-8") as file:
    for line in file:
      with contextlib.suppress(ValueError):
        starts.append(json.loads(line))
  return starts


@contextlib.contextmanager
def _disk_errors(workdir: str) -> Generator[None, None, None]:
  """Turns an OSError into a UserError that names the workdir."""
  try:
    yield
  except OSError as error:
    raise UserError(f"The workdir {workdir} cannot be written", got=error, allowed="a folder that you may write to",
                    fix="choose another --workdir, or free space") from error
