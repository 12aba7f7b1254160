"""Sweeps over GLUE: a process for each task and point of a grid, and a table of the dev scores."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ml_collections import FrozenConfigDict

from electra_jax import config as config_lib
from electra_jax import plotting, recipes, tasks
from electra_jax.errors import UserError, unknown
from electra_jax.finetuning import ensembles, results, submissions
from electra_jax.tasks import glue, scoring
from electra_jax.tasks.scoring import percent
from electra_jax.tools.experiments.processes import Failed, Running
from electra_jax.tools.experiments.rows import combinations, folder_part

FROM_MNLI = ("rte", "stsb", "mrpc")  # RoBERTa section 5.1
# The slowest tasks first, so that no slow one is left at the end; others may start from MNLI.
ORDER = ("mnli", "stsb", "qqp", "qnli_ranking", "qnli", "sst2", "rte", "cola", "mrpc", "wnli_ranking", "wsc", "wnli")

SETTING = re.compile(r"(?:(\w+):)?(.*)")  # TASK:KEY=VALUE or KEY=VALUE


class Tuning(NamedTuple):
  """A way to fine-tune."""

  paper: str = ""  # what follows the task in the recipe's argument: large, roberta, bert
  settings: Sequence[str] = ()  # KEY=VALUE, or TASK:KEY=VALUE of one task
  grid: Sequence[str] = ()  # KEY=VALUE,VALUE: each task once for every choice
  from_mnli: bool = False  # RTE, STS-B and MRPC start from the best MNLI run
  ensemble: int = 0  # size of an ensemble of the best runs of each task


class Point(NamedTuple):
  """A point of the grid."""

  task: str
  settings: tuple[str, ...] = ()  # KEY=VALUE

  def folder(self, out: str) -> str:
    """The workdir.

    >>> Point("rte", ("optimizer.learning_rate=1e-4", "train.batch_size=16")).folder("out"), Point("rte").folder("out")
    ('out/rte/learning_rate=1e-4_batch_size=16', 'out/rte/recipe')
    """
    return os.path.join(out, self.task, "_".join(map(folder_part, self.settings)) or "recipe")

  def results(self, out: str) -> str:
    """The file that appears when all seeds have ended."""
    return os.path.join(self.folder(out), "results.json")


def grid(names: Sequence[str], tuning: Tuning) -> list[Point]:
  """All points in the order in which they start.

  >>> [point.task for point in grid(["rte", "mnli"], Tuning(grid=["optimizer.learning_rate=1e-5,2e-5"]))]
  ['mnli', 'mnli', 'rte', 'rte']
  """
  return [Point(task, choice) for task in sorted(names, key=ORDER.index) for choice in combinations(tuning.grid)]


def check(names: Sequence[str], tuning: Tuning, data_dir: str) -> None:
  """Raises the UserError of a setting or a folder that cannot be used: now, and not after hours of pre-training."""
  if data_dir and ":" not in data_dir and not os.path.isdir(data_dir):
    raise UserError("--glue names no folder", got=data_dir, allowed="a folder with GLUE's folders, or tfds:glue",
                    fix="check the path")
  for prefix in filter(None, (match[1] for match in map(SETTING.fullmatch, tuning.settings) if match)):
    if prefix not in ORDER:
      raise unknown("A task of --glue_set is unknown", prefix, ORDER, "write CLOSEST:KEY=VALUE")
  for point in grid(names, tuning):
    recipe, settings = recipe_and_settings(point, tuning, "", "")
    recipes.override(recipes.load(recipe)[1], settings)


def settings_of(task: str, settings: Sequence[str]) -> list[str]:
  """The KEY=VALUE for a task: those for all tasks, and those written TASK:KEY=VALUE for this one.

  >>> settings_of("rte", ["task.num_seeds=3", "rte:task.max_length=256", "cola:task.max_length=48"])
  ['task.num_seeds=3', 'task.max_length=256']
  """
  return [match[2] for match in map(SETTING.fullmatch, settings) if match and match[1] in (None, task)]


def recipe_and_settings(point: Point, tuning: Tuning, init_from: str, data_dir: str) -> tuple[str, list[str]]:
  """The recipe of a point, and KEY=VALUE on it."""
  settings = [f"task.init_from={init_from}", f"task.data_dir={data_dir}", *settings_of(point.task, tuning.settings)]
  return f"configs/finetune/glue.py:{point.task}" + f",{tuning.paper}" * bool(tuning.paper), [
    *settings, *point.settings]


def command(point: Point, out: str, recipe: str, settings: Sequence[str]) -> list[str]:
  """The run of a point as a command line."""
  return [sys.executable, "-m", "electra_jax.main", f"--config={recipe}", f"--workdir={point.folder(out)}",
          *(f"--config.{setting}" for setting in settings)]


def sweep(out: str, init_from: str, names: Sequence[str], tuning: Tuning, data_dir: str, running: Running) -> str:
  """Runs what a grid still lacks, and returns its table, which is also written to OUT/summary.md.

  Raises:
    Failed: a run has failed; the others have ended.
    Interrupted: everything was asked to stop.
  """
  points = grid(names, tuning)

  def run_one(point: Point, start: str) -> Failed | None:
    recipe, settings = recipe_and_settings(point, tuning, start, data_dir)
    if is_finished(point, out, recipe, settings):
      return None
    print(", ".join([point.task, *point.settings]) + f": {point.folder(out)}", flush=True)
    try:
      running.call(command(point, out, recipe, settings), os.path.join(point.folder(out), "log.txt"), 1)
    except Failed as error:
      return error
    return None

  later = [point for point in points if tuning.from_mnli and point.task in FROM_MNLI and "mnli" in names]
  for group in ([point for point in points if point not in later], later):
    start = best_points(points, out)["mnli"].folder(out) if group is later and later else init_from
    with ThreadPoolExecutor(max(1, len(group))) as pool:
      failed = [error for error in pool.map(run_one, group, [start] * len(group)) if error]
    if failed:
      raise Failed(f"{len(failed)} of {len(points)} runs failed, {failed[0]}")
  return summarise(points, out, tuning.ensemble)


def is_finished(point: Point, out: str, recipe: str, settings: Sequence[str]) -> bool:
  """Whether the point has results of exactly this run, for example not of fewer seeds."""
  if not os.path.exists(point.results(out)):
    return False
  _, given = recipes.load(recipe)
  recipes.override(given, settings)
  before = FrozenConfigDict(config_lib.read_record(point.folder(out))["given"])  # lists become tuples again
  return not config_lib.diff(before, given)


def best_points(points: Sequence[Point], out: str) -> dict[str, Point]:
  """Task -> point with the best median, for tasks with results; a median that is not finite never wins."""
  best_of = {}
  for task in dict.fromkeys(point.task for point in points):
    ended = [point for point in points if point.task == task and os.path.exists(point.results(out))]
    if ended:
      best = scoring.best([_summary(point, out)[glue.row_of(task).metrics[0]]["median"] for point in ended])
      best_of[task] = ended[best or 0]
  return best_of


def _summary(point: Point, out: str) -> dict:
  return results.read_json(point.results(out))["summary"]


def summarise(points: Sequence[Point], out: str, ensemble_size: int) -> str:
  """The table of all points and both GLUE scores as Markdown; also OUT/summary.md and OUT/submission.zip."""
  best = best_points(points, out)
  rows = []
  for point in points:
    for metric in glue.row_of(point.task).metrics:
      row = _summary(point, out)[metric]
      rows.append([point.task, metric, ", ".join(point.settings) or "the recipe's",
                   *(percent(row[key]) for key in ("median", "min", "max", "sd")), row["num_runs"],
                   "*" * (best[point.task] == point)])
  medians = {task: {name: row["median"] for name, row in _summary(point, out).items()} for task, point in best.items()}
  headings = ("Task", "Metric", "Settings", "Median", "Min", "Max", "SD", "Runs", "Best")
  lines = ["# GLUE, dev, percent", "", plotting.markdown(headings, rows), "",
           f"GLUE score (ELECTRA section 3.1: eight tasks): {percent(scoring.glue_score(medians))}; the leaderboard's "
           f"(nine tasks): {percent(scoring.leaderboard_score(medians))}. A dash: tasks are missing."]
  lines += ["", plotting.markdown(["The papers", *best], (
    [model, *(row.get(task, "-") for task in best)] for model, row in glue.PAPER.items()))]
  lines += _together(points, best, out, ensemble_size)
  text = "\n".join(lines) + "\n"
  with open(os.path.join(out, "summary.md"), "w", encoding="utf-8") as file:
    file.write(text)
  return text


def _together(points: Sequence[Point], best: Mapping[str, Point], out: str, size: int) -> list[str]:
  """Lines about ensembles of each task's best runs at any point; with answers to the test splits, writes the zip."""
  lines, files = [], {}
  for task_name, point in best.items():
    task = tasks.make(config_lib.load(point.folder(out)).task)
    runs = [(other.folder(out), run) for other in points if other.task == task_name
            for run in results.load(other.folder(out))]
    members = ensembles.choose(runs, task.metric, max(1, size))
    if size > 1 and members:
      scores = ensembles.score(task, members)
      shown = ", ".join(f"{name} {percent(value)}" for name, value in scores.items())
      lines.append(f"- {task_name}: {len(members)} runs together {shown}")
    if members and config_lib.load(point.folder(out)).task.write_test_predictions:
      answers, notes = submissions.answers(task, members)
      files |= answers
      lines += [f"- {note}" for note in notes]
  if files:
    submissions.write_zip(os.path.join(out, "submission.zip"), files)
    lines.append(f"- submission.zip: {', '.join(files)}")
  return ["", *lines] if lines else []
