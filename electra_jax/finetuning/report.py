"""Reports of a fine-tuning: the table over the seeds next to the papers' rows, the curves of the dev scores."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from electra_jax import plotting
from electra_jax.tasks import METRICS, glue, race, squad
from electra_jax.tasks.base import HEADS, Task
from electra_jax.tasks.scoring import percent, summarise


def results_table(config: ConfigDict, task: Task, runs: Sequence[dict], summary: Mapping[str, Mapping[str, float]],
                  together: Mapping[str, float]) -> str:
  """Markdown: dev scores in percent, their spread, each run's, and the papers'."""
  start = ("random parameters of the size of " if config.task.from_scratch else "") + config.task.init_from
  lines = [f"# {task.name}: dev scores in percent, {len(runs)} seeds", "", f"Started from {start}; "
           f"{config.task.num_epochs:g} epochs, batch {config.train.batch_size}, learning "
           f"rate {config.optimizer.learning_rate:g}, layer-wise decay {config.task.layer_decay:g}, the "
           f"{config.task.select} parameters of each run.", "",
           plotting.markdown(["Metric", "Median", "Min", "Max", "SD", "Runs", "Ensemble"], (
             [name, *(percent(row[key]) for key in ("median", "min", "max", "sd")),
              str(row["num_runs"]) + f", {row['num_failed']} failed" * bool(row["num_failed"]),
              percent(together.get(name, float("nan")))] for name, row in summary.items()))]
  scores = {run["seed"]: percent(run["scores"][task.metric]) for run in runs}
  values = ", ".join(f"{seed}: {'failed' if score == '-' else score}" for seed, score in scores.items())
  lines += ["", f"Each run's {task.metric} by seed: {values}."]
  if rows := papers_of(task.name, task.metric):
    lines += ["", plotting.markdown([f"The papers' {task.metric} on dev", "%"], rows)]
  return "\n".join(lines) + "\n"


def papers_of(name: str, metric: str) -> list[tuple[str, object]]:
  """(model, dev score in percent) from the papers, which print each task's first metric; [] for another metric."""
  return [(model, scores[name]) for papers in (glue.PAPER, squad.PAPER, race.PAPER)
          for model, scores in papers.items() if name in scores and metric == METRICS[name][0]]


def draw_curves(axes: Any, runs: Sequence[dict], metric: str, title: str) -> None:
  """Draws the dev scores on matplotlib axes: one line a seed, and their median."""
  values: dict[int, list[float]] = {}
  for run in runs:
    steps, scores = [p["step"] for p in run["curve"]], [p[metric] for p in run["curve"]]
    axes.plot(steps, scores, color="#999999", linewidth=0.8, marker=".")
    for step, score in zip(steps, scores):
      values.setdefault(step, []).append(score)
  steps = sorted(values)
  medians = [summarise(values[step])["median"] for step in steps]
  axes.plot(steps, medians, color=plotting.COLOURS[0], linewidth=2, marker="o", label="median of the seeds")
  axes.set(title=title, xlabel="updates", ylabel=f"{metric} on dev")
  plotting.finish(axes)


def next_steps(task: Task, workdir: str) -> str:
  """The last lines of a fine-tuning."""
  question = '--task=classify "A text."' if "classification_head" in HEADS[task.head][0] else "--help"
  return f"""Finished: {workdir}. Next:
  results  {workdir}/results.md
  a page   python -m electra_jax report {shlex.quote(workdir)}
  ask it   python -m electra_jax predict --workdir={shlex.quote(workdir)} {question}"""
