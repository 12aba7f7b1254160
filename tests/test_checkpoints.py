"""Which checkpoints are read, passed over and never written? Damage, disks that fail, states that are not finite."""

import contextlib
import errno
import json
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.errors import JaxRuntimeError

from electra_jax import metrics, objectives, optim, pretrain, sharding
from electra_jax.errors import Interrupted, NoAnswerError, UserError
from electra_jax.tools import report
from electra_jax.training import checkpoint_reading, checkpoints
from electra_jax.training.train_state import abstract_state, init_state
from tests import fake_objective
from tests.small_runs import Place, contents, small, write_corpus
from tests.test_pretrain import tiny_config

CONFIG = tiny_config()
TX = optim.make(CONFIG.optimizer, CONFIG.train.num_steps)[0]
MESH = sharding.make_mesh({"data": 1, "fsdp": 1, "tensor": 1}, jax.devices()[:1])


def init_params():
  return {"encoder": {"layer_norm": {"scale": jnp.ones(16), "bias": jnp.arange(16.0)}}}


def state_at(step):
  return init_state(init_params, TX, MESH)._replace(step=jnp.int32(step))


def saved_in(folder):
  return checkpoints.Checkpoints(str(folder), CONFIG.checkpoint)


def restored(folder):
  """The step that a start would resume from; None = from scratch."""
  saved = saved_in(folder)
  try:
    state = saved.restore_newest(abstract_state(init_params, TX, MESH))
    return state and int(state.step)
  finally:
    saved.close()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
  """Checkpoints of the steps 2 and 4."""
  folder = tmp_path_factory.mktemp("original")
  saved = saved_in(folder)
  for step in (2, 4):
    saved.save(state_at(step), step)
  saved.close()
  return folder


@pytest.fixture
def workdir(original, tmp_path, monkeypatch):
  monkeypatch.setattr(checkpoint_reading, "PAUSES", (0.0, 0.0))
  shutil.copytree(original, tmp_path / "run")
  return tmp_path / "run"


def data_file(path):
  return next((path / "default/d").iterdir())


def overwrite(path, data):
  path.write_bytes(data)


def edit(path, change):
  record = json.loads(path.read_text())
  change(record)
  path.write_text(json.dumps(record))


DAMAGES = {  # what has happened to a checkpoint's folder
  "data truncated": lambda path: os.truncate(data_file(path), 100),
  "data empty": lambda path: os.truncate(data_file(path), 0),
  "data of zeros": lambda path: overwrite(data_file(path), bytes(data_file(path).stat().st_size)),
  "data missing": lambda path: data_file(path).unlink(),
  "manifest missing": lambda path: (path / "default/manifest.ocdbt").unlink(),
  "manifest truncated": lambda path: os.truncate(path / "default/manifest.ocdbt", 20),
  "manifest is text": lambda path: overwrite(path / "default/manifest.ocdbt", b"<html>502 Bad Gateway</html>"),
  "tree missing": lambda path: (path / "default/_METADATA").unlink(),
  "tree truncated": lambda path: os.truncate(path / "default/_METADATA", 300),
  "tree of another kind": lambda path: overwrite(path / "default/_METADATA", b"[]"),
  "tree empty": lambda path: overwrite(path / "default/_METADATA", b"{}"),
  "tree not UTF-8": lambda path: overwrite(path / "default/_METADATA", b"\xff\xfe\x00"),
  "a name altered": lambda path: overwrite(path / "default/_METADATA", (path / "default/_METADATA").read_bytes()
                                           .replace(b"layer_norm", b"layer_nosm")),
  "sharding truncated": lambda path: os.truncate(path / "default/_sharding", 30),
  "all arrays missing": lambda path: shutil.rmtree(path / "default"),
  "metadata missing": lambda path: (path / "_CHECKPOINT_METADATA").unlink(),
  "metadata truncated": lambda path: os.truncate(path / "_CHECKPOINT_METADATA", 100),
  "metadata a list": lambda path: overwrite(path / "_CHECKPOINT_METADATA", b"[]"),
  "sums missing": lambda path: edit(path / "_CHECKPOINT_METADATA", lambda record: record.pop("custom_metadata")),
  "a sum differs": lambda path: edit(path / "_CHECKPOINT_METADATA",
                                     lambda record: record["custom_metadata"]["sums"].update(step=1)),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_passed_over_and_kept(workdir, name):
  """The one before is read; the damaged one is renamed with every file it had, and its step can be saved again."""
  newest = workdir / "checkpoints/4"
  DAMAGES[name](newest)
  before = contents(newest)
  assert restored(workdir) == 2
  kept = contents(workdir / "checkpoints/4.damaged")
  assert kept.pop(checkpoints.REASON) and kept == before
  assert list(checkpoints.set_aside(str(workdir))) == ["4.damaged"] and checkpoints.saved_steps(str(workdir)) == [2]
  saved = saved_in(workdir)
  saved.save(state_at(4), 4)
  saved.close()
  DAMAGES[name](newest)
  assert restored(workdir) == 2 and sorted(checkpoints.set_aside(str(workdir))) == ["4.damaged", "4.damaged-2"]


@pytest.mark.parametrize("name", DAMAGES)
def test_where_all_are_damaged_a_run_refuses_to_start_anew(workdir, name):
  for step in (2, 4):
    DAMAGES[name](workdir / f"checkpoints/{step}")
  files = sum(path.is_file() for path in workdir.rglob("*"))
  for _ in range(2):
    with pytest.raises(UserError, match="None of the checkpoints") as caught:
      restored(workdir)
    assert caught.value.got.count("\n    ") == 2 and len(str(caught.value)) < 2000
  assert sum(path.is_file() and path.name != checkpoints.REASON for path in workdir.rglob("*")) == files


def of_tensorstore(code, cause, number=None):
  """A ValueError as TensorStore words it; without a number it is not of the operating system."""
  tail = "" if number is None else f" [os_error_code='{number}']"
  return ValueError(f"{code}: Error opening \"zarr\" driver: Error reading local file \"d/307\": {cause} "
                    f"[tensorstore_spec='{{}}']{tail}")


PASSING = {  # error of a read -> what a start ends with, if it stays
  "I/O error": (OSError(errno.EIO, "Input/output error"), NoAnswerError),
  "stale NFS handle": (OSError(errno.ESTALE, "Stale file handle"), NoAnswerError),
  "NFS time-out": (TimeoutError(errno.ETIMEDOUT, "Connection timed out"), NoAnswerError),
  "no permission": (PermissionError(errno.EACCES, "Permission denied"), NoAnswerError),
  "too many files": (OSError(errno.EMFILE, "Too many open files"), NoAnswerError),
  "I/O error within TensorStore": (of_tensorstore("UNKNOWN", "Input/output error", 5), NoAnswerError),
  "stale handle within TensorStore": (of_tensorstore("FAILED_PRECONDITION", "Stale file handle", 116), NoAnswerError),
  "a bucket that is busy": (of_tensorstore("UNAVAILABLE", "HTTP 503"), NoAnswerError),
  "a bucket that is slow": (of_tensorstore("DEADLINE_EXCEEDED", "HTTP 504"), NoAnswerError),
  "a bucket without credentials": (of_tensorstore("PERMISSION_DENIED", "HTTP 403"), NoAnswerError),
  "out of host memory": (MemoryError(), MemoryError),
  "out of device memory": (JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."), JaxRuntimeError),
  "a fault of ours": (RuntimeError("no such thing"), RuntimeError),
}


@pytest.mark.parametrize("where", ["read_metadata", "read_parts"])
@pytest.mark.parametrize("name", PASSING)
def test_what_may_pass_is_no_damage(workdir, monkeypatch, name, where):
  """Tried again, then raised; no file is touched, and the start after that reads the newest."""
  error, raised = PASSING[name]
  tries = []

  def fail(*arguments):
    tries.append(arguments)
    raise error

  before = contents(workdir)
  with monkeypatch.context() as patch:
    patch.setattr(checkpoint_reading, where, fail)
    with pytest.raises(raised):
      restored(workdir)
  assert len(tries) == 3 and contents(workdir) == before
  read, left = getattr(checkpoint_reading, where), [error]

  def fail_once(*arguments):
    if left:
      raise left.pop()
    return read(*arguments)

  monkeypatch.setattr(checkpoint_reading, where, fail_once)
  assert restored(workdir) == 4 and contents(workdir) == before


def test_an_io_error_that_orbax_would_hide(workdir, monkeypatch):
  """Without its metadata Orbax reads a checkpoint all the same, unchecked."""
  real = open

  def fail(path, *arguments, **options):
    if str(path).endswith("4/_CHECKPOINT_METADATA"):
      raise OSError(errno.EIO, "Input/output error", str(path))
    return real(path, *arguments, **options)

  monkeypatch.setattr(checkpoint_reading, "open", fail, raising=False)
  with pytest.raises(NoAnswerError, match="Input/output error"):
    restored(workdir)


@pytest.mark.parametrize("part", ["params", "mu", "nu"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_state_that_is_not_finite_is_never_saved(workdir, part, value):
  """The error names the array and the last sound checkpoint, and `keep_last` drops none for it."""
  def spoil(path, leaf):
    name = sharding.path_name(path)
    return leaf.at[3].set(value) if f"/{part}/" in f"/{name}/" and name.endswith("scale") else leaf

  state = jax.tree_util.tree_map_with_path(spoil, state_at(6))
  before, saved = contents(workdir), saved_in(workdir)
  for _ in range(3):
    with pytest.raises(UserError, match="step 6 is not finite and is not saved") as caught:
      saved.save(state, 6)
    assert "layer_norm/scale" in caught.value.got and "the last sound checkpoint is that of step 4" in caught.value.fix
  saved.close()
  assert contents(workdir) == before and restored(workdir) == 4


@pytest.mark.parametrize("asks", [
  {"checkpoint__every_steps": 4}, {"train__num_steps": 4, "checkpoint__every_steps": 100},
  {"eval__finetune_tasks": "rte", "eval__finetune_every_steps": 4, "checkpoint__every_steps": 100,
   "task__data_dir": "."}, "SIGTERM"], ids=str)
def test_what_a_run_saves_is_finite_whatever_asks(tmp_path, monkeypatch, asks):
  """The cadence, the end, a fine-tuning on the way, a signal: between two log windows, which would end the run."""
  place = Place(tmp_path)
  write_corpus(place.corpus, num_documents=20)
  monkeypatch.setattr(objectives, "make", fake_objective.make)
  monkeypatch.setattr(pretrain.nonfinite.Watch, "check", lambda self, window, values, step: values)
  monkeypatch.setattr(pretrain.finetune, "finetune_run", lambda *arguments: {})
  batch_at_of = pretrain.pipeline.make_batch_at
  bad = {"masked_weights": np.float32(np.nan)}
  monkeypatch.setattr(pretrain.pipeline, "make_batch_at", lambda *arguments, **options: pretrain.readers.BatchSource(
    lambda steps: {name: rows * bad[name] if steps[0] == 3 and name in bad else rows
                   for name, rows in batch_at_of(*arguments, **options)(steps[0]).items()}))
  if asks == "SIGTERM":
    monkeypatch.setattr(pretrain.distributed.StopRequest, "reached", lambda self, step: step == 4)
    asks = {"checkpoint__every_steps": 100}
  with contextlib.suppress(Interrupted):
    pretrain.pretrain(small(place, **({"train__num_steps": 6} | asks)), str(place.new))
  saved = checkpoints.saved_steps(str(place.new))
  assert saved and all(np.isfinite(leaf).all() for step in saved
                       for leaf in jax.tree.leaves(checkpoints.load_params(str(place.new), step=step)[1]))


def test_the_report_names_what_was_passed_over(tmp_path, monkeypatch):
  place = Place(tmp_path)
  write_corpus(place.corpus, num_documents=20)
  monkeypatch.setattr(objectives, "make", fake_objective.make)
  pretrain.pretrain(small(place), str(place.run))
  DAMAGES["data truncated"](place.run / "checkpoints/4")
  pretrain.pretrain(small(place), str(place.run))
  assert checkpoints.saved_steps(str(place.run)) == [2, 4]
  assert max(row["step"] for row in metrics.read_rows(str(place.run))) == 4
  shown = report.hardware(report.read(str(place.run)))
  assert "4.damaged" in shown and "OUT_OF_RANGE" in shown
