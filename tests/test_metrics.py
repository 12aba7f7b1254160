"""Are means taken once over everything, and do the logs survive a kill, a restart and a full disk?"""

import json
import math
import re
import struct
import sys
import time
import types

import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from electra_jax import metrics
from electra_jax.errors import UserError

LOG = ConfigDict(dict(tensorboard=False, wandb_project=""))


def test_totals_are_not_means_of_means():
  window = [{"mlm/loss": (jnp.float32(4.0), jnp.float32(1.0))}, {"mlm/loss": (jnp.float32(2.0), jnp.float32(3.0))}]
  assert metrics.summarise(metrics.add_pairs(window))["mlm/loss"] == 1.5  # naive: 2.333


def test_last_batch_counts_by_its_size():
  flags = [1, 1, 1, 1, 0, 0, 0, 0, 1, 1]
  batches = [flags[i:i + 4] for i in range(0, 10, 4)]
  totals = metrics.add_pairs({"rtd/accuracy": (float(sum(b)), float(len(b)))} for b in batches)
  assert metrics.summarise(totals) == {"rtd/accuracy": 0.6}


def test_a_batch_without_targets_and_no_targets_at_all():
  totals = metrics.add_pairs([{"mlm/loss": (0.0, 0.0)}, {"mlm/loss": (3.0, 2.0)}])
  assert metrics.summarise(totals)["mlm/loss"] == 1.5
  assert metrics.summarise(metrics.add_pairs([])) == {}


@pytest.mark.parametrize(("name", "pair", "expected"), [
  ("rtd/precision", (0.0, 0.0), {"rtd/precision": 0.0}),  # nothing was marked
  ("rtd/precision", (0.0, 3.0), {"rtd/precision": 0.0}),
  ("rtd/recall", (0.0, 0.0), {}),  # nothing was replaced
  ("rtd/recall", (0.0, 3.0), {"rtd/recall": 0.0}),
  ("rtd/accuracy", (0.0, 0.0), {}),
  ("rtd/auc", (np.zeros(4), np.zeros(4)), {}),
  ("rtd/auc", (np.zeros(4), np.ones(4)), {}),  # footnote 7: no judged token is replaced
  ("rtd/auc", (np.ones(4), np.zeros(4)), {}),
  ("mlm/loss", (0.0, 0.0), {}),
  ("nsp/accuracy", (0.0, 0.0), {})])
def test_what_nothing_was_counted_for_is_never_nan(name, pair, expected):
  assert metrics.summarise({name: pair}) == expected


def test_what_is_not_finite_stays_so():
  assert math.isnan(metrics.summarise({"loss": (math.nan, 1.0)})["loss"])


def test_sums_are_float64_and_repeat_bit_for_bit():
  rng = np.random.default_rng(0)
  window = [{"mlm/loss": (jnp.float32(x), jnp.float32(1))} for x in rng.uniform(0, 10, 3000)]
  total, weight = metrics.add_pairs(window)["mlm/loss"]
  assert total.dtype == np.float64 and weight == 3000
  exact = math.fsum(float(pairs["mlm/loss"][0]) for pairs in window)
  assert total == pytest.approx(exact, rel=1e-14)
  assert struct.pack("d", total) == struct.pack("d", metrics.add_pairs(window)["mlm/loss"][0])


def test_names_that_only_some_steps_have():
  totals = metrics.add_pairs([{"a/x": (1.0, 1.0)}, {"a/x": (2.0, 1.0), "b/y": (5.0, 2.0)}])
  assert metrics.summarise(totals) == {"a/x": 1.5, "b/y": 2.5}


def test_perplexity():
  assert metrics.summarise({"mlm/loss": (2.0, 1.0)})["mlm/perplexity"] == pytest.approx(math.e**2)
  assert metrics.summarise({"mlm/loss": (2000.0, 1.0)})["mlm/perplexity"] == math.inf


def test_auc_equals_comparing_all_pairs():
  rng = np.random.default_rng(1)
  positives, negatives = rng.integers(3, 16, 200), rng.integers(0, 13, 300)  # binned scores with many ties
  pairs = [(p > n) + 0.5 * (p == n) for p in positives for n in negatives]
  histograms = [np.bincount(scores, minlength=16) for scores in (positives, negatives)]
  half = [{"rtd/auc": tuple(jnp.asarray(h) / 2 for h in histograms)}] * 2  # two batches add up
  assert metrics.summarise(metrics.add_pairs(half))["rtd/auc"] == pytest.approx(np.mean(pairs), abs=1e-12)


@pytest.mark.parametrize("positives,negatives,area", [([0, 0, 5], [7, 0, 0], 1.0), ([5, 0, 0], [0, 0, 7], 0.0),
                                                      ([3, 3], [2, 2], 0.5), ([1, 0], [1, 1], 0.25)])
def test_auc_by_hand(positives, negatives, area):
  assert metrics.auc(positives, negatives) == area


def lines(workdir):
  return (workdir / "metrics.jsonl").read_text().splitlines()


def write_steps(workdir, steps, restored_step=None, log=LOG):
  writer = metrics.MetricWriter(str(workdir), log, restored_step=restored_step)
  for step in steps:
    writer.write(step, "train", {"mlm/loss": jnp.float32(step) + 0.5})
  writer.close()


def test_rows_are_flat_and_valid_json(tmp_path):
  writer = metrics.MetricWriter(str(tmp_path / "new"), LOG, per_step={"tokens": 2048, "epoch": 0.5})
  writer.write(np.int64(3), "eval", {"mlm/loss": np.float32(0.1), "rtd/auc": math.nan, "mlm/perplexity": math.inf})
  row = json.loads((tmp_path / "new" / "metrics.jsonl").read_text())  # before close: in the file at once
  assert abs(row.pop("time") - time.time()) < 60 and (row.pop("tokens"), row.pop("epoch")) == (6144, 1.5)
  assert row == {"step": 3, "split": "eval", "mlm/loss": float(np.float32(0.1)), "rtd/auc": None,
                 "mlm/perplexity": None}
  writer.close()
  assert math.isnan(metrics.read_rows(str(tmp_path / "new"))[0]["rtd/auc"])


def test_resume_drops_later_rows_and_a_torn_line(tmp_path, capsys):
  write_steps(tmp_path, [10, 20, 30])
  with open(tmp_path / "metrics.jsonl", "a") as file:
    file.write('{"step": 20, "split": "eval", "mlm/loss": 1.0}\n{"step": 5, "split": "tr')
  write_steps(tmp_path, [25, 30], restored_step=20)
  assert "dropped 2 rows" in capsys.readouterr().err
  rows = metrics.read_rows(str(tmp_path))
  assert [(row["step"], row["split"]) for row in rows] == [(10, "train"), (20, "train"), (20, "eval"), (25, "train"),
                                                           (30, "train")]
  assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("torn", ['{"step": 5', '{"step": 15, "split": "train", "mlm/loss": 1.0}', "\0\0\0", "12"])
def test_any_torn_end_is_dropped(tmp_path, torn):
  write_steps(tmp_path, [10])
  with open(tmp_path / "metrics.jsonl", "a") as file:
    file.write(torn)  # no newline: the second could have lost digits
  write_steps(tmp_path, [20], restored_step=15)
  assert [json.loads(line)["step"] for line in lines(tmp_path)] == [10, 20]


def test_a_new_start_begins_a_new_file_and_a_clean_resume_keeps_the_old(tmp_path):
  write_steps(tmp_path, [0, 10])
  before = (tmp_path / "metrics.jsonl").stat().st_ino
  write_steps(tmp_path, [20], restored_step=10)
  assert (tmp_path / "metrics.jsonl").stat().st_ino == before and len(lines(tmp_path)) == 3
  write_steps(tmp_path, [0])
  assert len(lines(tmp_path)) == 1


def test_a_failed_clean_up_leaves_the_old_file(tmp_path, monkeypatch):
  write_steps(tmp_path, [10, 20])
  old = lines(tmp_path)

  def no_space(_):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(metrics.os, "fsync", no_space)
  with pytest.raises(UserError, match="No space left"):
    write_steps(tmp_path, [], restored_step=10)
  assert lines(tmp_path) == old and len(list(tmp_path.iterdir())) == 1


def test_other_processes_write_nothing(tmp_path):
  log = ConfigDict(dict(tensorboard=True, wandb_project="p"))
  writer = metrics.MetricWriter(str(tmp_path / "w"), log, enabled=False)
  writer.write(1, "train", {"mlm/loss": 1.0})
  writer.close()
  assert not (tmp_path / "w").exists()


def test_unwritable_workdir(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match="cannot be written"):
    metrics.MetricWriter(str(tmp_path / "file" / "w"), LOG)


def test_disk_full(tmp_path):
  writer = metrics.MetricWriter(str(tmp_path), LOG)
  writer._file.close()
  writer._file = open("/dev/full", "w")  # noqa: SIM115
  with pytest.raises(UserError, match="No space left on device"):
    writer.write(1, "train", {"mlm/loss": 1.0})
  writer.close()  # what could not be written does not come back as another error


def test_tensorboard_events_and_purge(tmp_path):
  log = ConfigDict(dict(tensorboard=True, wandb_project=""))
  write_steps(tmp_path, [10, 20], log=log)
  first = events(tmp_path / "tensorboard" / "train")
  assert [(e.step, e.summary.value[0].tag, e.summary.value[0].simple_value) for e in first[2:]] == [
    (10, "mlm/loss", 10.5), (20, "mlm/loss", 20.5)]
  for path in (tmp_path / "tensorboard" / "train").iterdir():
    path.unlink()
  write_steps(tmp_path, [20], restored_step=10, log=log)
  second = events(tmp_path / "tensorboard" / "train")
  assert second[1].session_log.status == 1 and second[1].step == 11  # START hides what came from step 11 on


def events(folder):
  from tensorboardX.proto import event_pb2
  (path,) = folder.iterdir()
  data, found = path.read_bytes(), []
  while data:  # TFRecord: length (8 bytes), checksum (4), record, checksum (4)
    (size,) = struct.unpack("<Q", data[:8])
    found.append(event_pb2.Event.FromString(data[12:12 + size]))
    data = data[16 + size:]
  return found


def test_wandb_run_is_continued_after_a_restart(tmp_path, monkeypatch):
  calls = []

  class Run:
    def define_metric(self, name, step_metric):
      calls.append(("axis", name, step_metric))

    def log(self, row):
      calls.append(("log", row))

    def finish(self):
      calls.append(("finish",))

  def init(**arguments):
    calls.append(("init", arguments))
    return Run()

  monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
  log = ConfigDict(dict(tensorboard=False, wandb_project="proj"))
  for restored in (None, 5):
    writer = metrics.MetricWriter(str(tmp_path), log, restored_step=restored, run_config={"seed": 1})
    writer.write(7, "train", {"mlm/loss": 2.0, "train/mfu": 0.4})
    writer.close()
  starts = [call[1] for call in calls if call[0] == "init"]
  assert len(starts) == 2 and starts[0]["id"] == starts[1]["id"]
  assert starts[0]["project"] == "proj" and starts[0]["config"] == {"seed": 1}
  assert ("log", {"step": 7, "train/mlm/loss": 2.0, "train/mfu": 0.4}) in calls and calls[-1] == ("finish",)


def test_wandb_offline(tmp_path, monkeypatch):
  """The real package without a network: a folder that `wandb sync` uploads later; a restart adds to the same run."""
  wandb = pytest.importorskip("wandb")
  monkeypatch.setenv("WANDB_MODE", "offline")
  monkeypatch.setenv("WANDB_SILENT", "true")
  log = ConfigDict(dict(tensorboard=False, wandb_project="proj"))
  for restored, losses in ((None, {5: 6.25}), (5, {6: 6.125})):
    writer = metrics.MetricWriter(str(tmp_path), log, restored_step=restored, run_config={"train": {"batch_size": 96}})
    for step, loss in losses.items():
      writer.write(step, "train", {"mlm/loss": loss})
    writer.close()
    time.sleep(1.0)  # wandb names its folders by the second
  wandb.teardown()
  run_id = (tmp_path / "wandb_id").read_text()
  written = sorted((tmp_path / "wandb").glob(f"offline-run-*/run-{run_id}.wandb"))
  assert len(written) == 2
  for path, loss in zip(written, (b"6.25", b"6.125")):  # protocol buffers, names and values in plain text
    content = path.read_bytes()
    assert re.search(rb"train/mlm/loss.{1,6}" + loss, content, re.DOTALL) and b"batch_size" in content


def test_read_rows_of_nothing(tmp_path):
  with pytest.raises(UserError, match="no metrics"):
    metrics.read_rows(str(tmp_path))
  (tmp_path / "metrics.jsonl").write_text("")
  with pytest.raises(UserError, match="no row"):
    metrics.read_rows(str(tmp_path))
