"""Results of an experiment: a figure for each model and metric, over its pre-trainings and seeds."""

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from electra_jax import config as config_lib
from electra_jax import flops, metrics
from electra_jax.files import atomic, read_json
from electra_jax.tasks import glue, scoring
from electra_jax.tools.experiments import finetuning
from electra_jax.tools.experiments.finetuning import Tuning
from electra_jax.tools.experiments.rows import AVERAGE, Planned, Table
from electra_jax.training import workdir

PROBE_FILE = "probe.json"  # in a workdir: step -> [accuracy, standard error], step 0 before any training


def figures_of(table: Table, rows: Sequence[Planned], command: str, tuning: Tuning) -> list[dict]:
  """Every figure of a model, over its pre-trainings.

  With a single one, the figures are those of `rows_of`. If several have a figure, `value` is their mean, `spread` their
  sample standard deviation, `runs` lists them, and `pretrainings` is their number. A pre-training that has made fewer
  steps than another is left out, since the mean would be over two budgets.
  """
  figures = [figure for row in rows for figure in rows_of(table, row, command, tuning)]
  steps, by_metric = max((figure["steps"] for figure in figures), default=0), {}
  for figure in figures:
    if figure["steps"] == steps:
      by_metric.setdefault(figure["metric"], []).append(figure)
  return [_over_pretrainings(figures) for figures in by_metric.values()]


def _over_pretrainings(figures: Sequence[dict]) -> dict:
  if len(figures) == 1:
    return figures[0]
  values = [figure["value"] for figure in figures]
  return figures[0] | {"value": statistics.fmean(values), "spread": statistics.stdev(values),
                       "runs": [round(value, 4) for value in values], "pretrainings": len(figures),
                       "minutes": round(statistics.fmean(figure["minutes"] for figure in figures), 2)}


def rows_of(table: Table, row: Planned, command: str, tuning: Tuning) -> list[dict]:
  """Every figure of a pre-training: GLUE scores in percent as medians over the seeds, and the last held-out metrics.

  Empty before the first line of metrics. `spread` is the sample standard deviation over the seeds of fine-tuning; for a
  probe, the standard error over the pairs that it judged.
  """
  logged = metrics.rows_so_far(row.workdir)
  trained = [entry for entry in logged if entry["split"] == "train"]
  if not trained:
    return []
  config, starts = config_lib.load(row.workdir), workdir.read_starts(row.workdir)
  sweep = newest_sweep(row.sweeps)
  steps = sweep or trained[-1]["step"]
  seconds = training_seconds(trained, config) * steps / trained[-1]["step"]
  facts = {"train_flops": steps * flops.paper_flops(config).per_step, "minutes": round(seconds / 60, 2),
           "card": f"{starts[-1]['num_devices']} x {starts[-1]['device_kind']}" if starts else "", "command": command,
           "steps": steps, "planned_steps": config.train.num_steps, "pretrainings": 1,
           "tokens": round(trained[-1]["tokens"] * steps / trained[-1]["step"])}

  def figure(metric: str, value: float, spread: float | None = None, runs: Sequence[float] | None = None,
             paper: float | None = None) -> dict:
    return {"claim": table.name, "model": row.model.name, "metric": metric, "value": value,
            "seeds": 1 if runs is None else len(runs), "spread": spread,
            "runs": [round(score, 2) for score in runs or ()], "paper": paper, **facts}

  scores = glue_figures(sweep_folder(row, sweep), table.tasks, tuning) if sweep else {}
  figures = [figure(f"glue/{metric}", *values, paper=row.model.paper.get(metric)) for metric, values in scores.items()]
  points = read_probe(row.workdir)
  figures += [figure(f"probe/{name}", 100 * value, 100 * error) for name, (value, error) in (
    [("untrained", points[0]), ("trained", points[max(points)])] if len(points) > 1 else [])]
  for last in [entry for entry in logged if entry["split"] == "eval"][-1:]:
    figures += [figure(f"heldout/{metric}", value, paper=row.model.paper.get(metric.removeprefix("mlm/")))
                for metric, value in last.items()
                if "/" in metric and isinstance(value, float) and math.isfinite(value)]
  speeds = [entry["train/tokens_per_second"] for entry in trained if entry.get("train/tokens_per_second")]
  return figures + ([figure("train/tokens_per_second", round(statistics.median(speeds)))] if speeds else [])


def training_seconds(trained: Sequence[dict], config: ConfigDict) -> float:
  """Seconds spent in training steps, by the logged speeds; without compilation and evaluation."""
  tokens, seconds, before = config.train.batch_size * config.data.sequence_length, 0.0, 0
  for entry in trained:
    if entry.get("train/tokens_per_second"):
      seconds += (entry["step"] - before) * tokens / entry["train/tokens_per_second"]
    before = entry["step"]
  return seconds


def read_probe(folder: str) -> dict[int, list[float]]:
  """Step -> (accuracy, standard error) of the probed checkpoints of a workdir."""
  path = os.path.join(folder, PROBE_FILE)
  return {int(step): point for step, point in sorted(read_json(path).items())} if os.path.exists(path) else {}


def sweep_folder(row: Planned, step: int) -> str:
  """The folder of the fine-tunings from the checkpoint of a step."""
  return os.path.join(row.sweeps, f"step_{step:08d}")


def newest_sweep(folder: str) -> int:
  """The step of the checkpoint that the newest of these sweeps started from; 0 without one."""
  names = [name for name in os.listdir(folder) if name.startswith("step_")] if os.path.isdir(folder) else []
  return max((int(name[5:]) for name in names), default=0)


def glue_figures(folder: str, names: Sequence[str], tuning: Tuning) -> dict[str, tuple]:
  """{task or average: (percent, spread, percent of each seed)} of the finished tasks of a sweep, at their best points.

  The average is that of the tasks' medians, as in the paper (section 3.1), and is there if no task is missing; its
  spread is that of the averages of single seeds.
  """
  figures, by_seed, medians = {}, {}, {}
  best = finetuning.best_points(finetuning.grid(names, tuning), folder)
  for task in [name for name in names if name in best]:
    content = read_json(best[task].results(folder))
    medians[task] = {name: row["median"] for name, row in content["summary"].items()}
    for run in content["runs"]:
      by_seed.setdefault(run["seed"], {})[task] = run["scores"]
    figures[task] = _percent(content, glue.row_of(task).metrics[0])
    if "mismatched/accuracy" in content["summary"]:
      figures["mnli_mm"] = _percent(content, "mismatched/accuracy")
  average = scoring.glue_score(medians)
  if math.isfinite(average):
    seeds = [100 * score for score in map(scoring.glue_score, by_seed.values()) if math.isfinite(score)]
    figures = {AVERAGE: (100 * average, statistics.stdev(seeds) if len(seeds) > 1 else None, seeds)} | figures
  return figures


def _percent(content: Mapping, metric: str) -> tuple[float, float | None, list[float]]:
  summary = content["summary"][metric]
  spread = 100 * summary["sd"] if math.isfinite(summary["sd"]) else None
  scores = [run["scores"][metric] for run in content["runs"]]
  return 100 * summary["median"], spread, [100 * score for score in scores if math.isfinite(score)]  # not failed ones


def pretrainings_of(row: Mapping) -> int:
  """How many pre-trainings a figure is the mean of; early figures, each of one, do not say so."""
  return row.get("pretrainings", 1)


def load(path: str) -> list[dict]:
  """The rows of a file of figures such as docs/results/evidence.json; [] if it does not exist."""
  if not os.path.exists(path):
    return []
  with open(path, encoding="utf-8") as file:
    return json.load(file)


def save(path: str, rows: Sequence[dict]) -> None:
  """Writes one row a line, so that a diff shows what has changed."""
  os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
  with atomic(path) as file:
    file.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
