"""Does a sweep choose and tell soberly? The grid, the best point, one table, and what a failed run says."""

import pathlib
import sys

import pytest

from configs.finetune import glue as recipe
from electra_jax import config as config_lib
from electra_jax.errors import UserError
from electra_jax.tasks import results
from electra_jax.tools import glue_sweep
from electra_jax.tools.glue_sweep import Point

NAN = float("nan")


def finish(point, out, values):
  """A point's folder as the page leaves it, without outputs."""
  folder = pathlib.Path(point.folder(out))
  (folder / "seeds").mkdir(parents=True)
  given = recipe.get_config(point.task)
  given.task.update(init_from="x", data_dir="y")
  config_lib.save(str(folder / "config.json"), given, config_lib.resolve(given))
  runs = [{"seed": i, "scores": {"accuracy": v, "f1": v}} for i, v in enumerate(values)]
  for run in runs:
    results.write_json(str(folder / f"seeds/{run['seed']}.json"), run)
  summary = {name: glue_sweep.scoring.summarise(values) for name in ("accuracy", "f1")}
  results.write_json(str(folder / "results.json"), {"summary": summary, "runs": runs})


def test_the_best_median_wins_and_the_table_names_it(tmp_path):
  points = glue_sweep.grid(["mrpc", "rte"], ["1e-5", "2e-5"], ["16"])
  assert points == [Point("mrpc", "1e-5", "16"), Point("mrpc", "2e-5", "16"), Point("rte", "1e-5", "16"),
                    Point("rte", "2e-5", "16")]
  for point, values in zip(points, ([0.8, 0.9, 0.7], [0.6, 0.99, 0.7], [NAN, NAN], [0.5, NAN])):
    finish(point, str(tmp_path), values)
  best = glue_sweep.best_points(points, str(tmp_path))
  assert (best["mrpc"].rate, best["rte"].rate) == ("1e-5", "2e-5")
  text = glue_sweep.summarise(points, str(tmp_path), ensemble_size=0)
  assert "| mrpc | accuracy | 1e-5 | 16 | 80.0 | 70.0 | 90.0 | 10.0 | 3 | * |" in text
  assert "| rte | accuracy | 1e-5 | 16 | - | - | - | - | 0 |  |" in text
  assert "eight tasks): -" in text and "| ELECTRA-Large | 90.6 | 86.8 |" in text
  assert (tmp_path / "summary.md").read_text() == text


def test_a_ranking_task_is_told_but_enters_no_average(tmp_path):
  points = glue_sweep.grid(["wnli_ranking"], [], [])
  finish(points[0], str(tmp_path), [0.5, 0.75])
  text = glue_sweep.summarise(points, str(tmp_path), ensemble_size=0)
  assert "| wnli_ranking | accuracy | recipe | recipe | 62.5 |" in text and "nine tasks): -" in text


def test_a_failed_run_names_its_log(tmp_path, monkeypatch):
  monkeypatch.setattr(glue_sweep, "command", lambda *_: [sys.executable, "-c", "raise SystemExit('no such thing')"])
  with pytest.raises(UserError, match="1 of 1 runs failed") as caught:
    glue_sweep.run_all([Point("rte", "", "")], str(tmp_path), "x", ["0"])
  assert "no such thing" in caught.value.got and "log.txt" in caught.value.got
