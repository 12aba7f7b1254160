"""How good is an encoder on GLUE? Tasks x rates x batch sizes x seeds, one process each, resumable, one table."""

import itertools
import os
import queue
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from absl import flags

from electra_jax import config as config_lib
from electra_jax import main as main_lib
from electra_jax import tasks
from electra_jax.errors import UserError
from electra_jax.tasks import ensembles, glue, results, scoring, submissions
from electra_jax.tasks.tables import percent

FLAGS = flags.FLAGS
FROM_MNLI = ("rte", "stsb", "mrpc")  # RoBERTa section 5.1
RANKING = ("qnli_ranking", "wnli_ranking")  # for the test server; their dev scores enter no average

USAGE = """Fine-tunes an encoder on several GLUE tasks and writes one table with both GLUE scores.

  ELECTRA's way:    python -m electra_jax.tools.glue_sweep --init_from=runs/base --data_dir=GLUE --out=runs/glue
  RoBERTa's grid:   ... --paper=roberta --rates=1e-5,2e-5,3e-5 --batch_sizes=16,32
  Its submission:   ... --from_mnli --ensemble=5 --set=task.write_test_predictions=True
  A quick look:     ... --tasks=cola,rte --set=task.num_seeds=3 --set=task.num_epochs=1

Each point of the grid is a run of electra_jax.main in its own folder of --out; --devices=0,1 runs two at a time, one on
each GPU. Start it again after a kill: finished points and seeds are not run again. OUT/summary.md has the table,
OUT/submission.zip the answers of all tasks (of each task's best run, or of an ensemble)."""


class Point(NamedTuple):
  """A point of the grid."""

  task: str
  rate: str  # "" = the recipe's
  batch_size: str

  def folder(self, out: str) -> str:
    """Its workdir."""
    return os.path.join(out, self.task, f"rate_{self.rate or 'recipe'}_batch_{self.batch_size or 'recipe'}")


def grid(names: Sequence[str], rates: Sequence[str], batch_sizes: Sequence[str]) -> list[Point]:
  """All points, MNLI's first: others may start from it.

  >>> [point.task for point in grid(["rte", "mnli"], ["1e-5", "2e-5"], [""])]
  ['mnli', 'mnli', 'rte', 'rte']
  """
  ordered = sorted(names, key=lambda name: name != "mnli")
  return [Point(*point) for point in itertools.product(ordered, rates or [""], batch_sizes or [""])]


def settings_of(task: str, settings: Sequence[str]) -> list[str]:
  """KEY=VALUE of a task's runs: those for all tasks, and TASK:KEY=VALUE of this one.

  >>> settings_of("rte", ["task.num_seeds=3", "rte:task.max_length=256", "cola:task.max_length=48"])
  ['task.num_seeds=3', 'task.max_length=256']
  """
  split = [re.match(r"(?:(\w+):)?(.*)", setting) for setting in settings]
  return [match[2] for match in split if match[1] in (None, task)]


def command(point: Point, out: str, init_from: str) -> list[str]:
  """The run of a point as a command line."""
  paper = f",{FLAGS.paper}" if FLAGS.paper else ""
  extra = [f"--config.{setting}" for setting in settings_of(point.task, FLAGS.set)]
  if point.rate:
    extra.append(f"--config.optimizer.learning_rate={point.rate}")
  if point.batch_size:
    extra.append(f"--config.train.batch_size={point.batch_size}")
  return [sys.executable, "-m", "electra_jax.main", f"--config={FLAGS.recipe}:{point.task}{paper}",
          f"--workdir={point.folder(out)}", f"--config.task.init_from={init_from}",
          f"--config.task.data_dir={FLAGS.data_dir}", *extra]


def run_all(points: Sequence[Point], out: str, init_from: str, devices: Sequence[str]) -> None:
  """Runs the points, as many at a time as there are devices.

  Raises:
    UserError: a run has failed; the others have ended, and its log is named.
  """
  free: queue.Queue[str] = queue.Queue()
  for device in devices or [""]:
    free.put(device)

  def run_one(point: Point) -> Point | None:
    folder, device = point.folder(out), free.get()
    os.makedirs(folder, exist_ok=True)
    environment = os.environ | ({"CUDA_VISIBLE_DEVICES": device} if device else {})
    print(f"{point.task}, rate {point.rate or 'of the recipe'}, batch {point.batch_size or 'of the recipe'}: {folder}",
          flush=True)
    try:
      with open(os.path.join(folder, "log.txt"), "a", encoding="utf-8") as log:
        done = subprocess.run(command(point, out, init_from), stdout=log, stderr=log, env=environment, check=False)
    finally:
      free.put(device)
    return point if done.returncode else None

  with ThreadPoolExecutor(max(1, len(devices))) as pool:
    failed = [point for point in pool.map(run_one, points) if point]
  if failed:
    path = os.path.join(failed[0].folder(out), "log.txt")
    with open(path, encoding="utf-8") as log:
      last = "".join(log.readlines()[-6:])
    raise UserError(f"{len(failed)} of {len(points)} runs failed", got=f"{path}:\n{last}", allowed="runs that end well",
                    fix="correct what it says and start the sweep again; finished runs stay")


def best_points(points: Sequence[Point], out: str) -> dict[str, Point]:
  """For each task the point with the best median; a median that is no number never wins."""
  found = {}
  for task in dict.fromkeys(point.task for point in points):
    of_task = [point for point in points if point.task == task]
    best = scoring.best([_summary(point, out)[_row(task).metrics[0]]["median"] for point in of_task])
    found[task] = of_task[best or 0]
  return found


def _row(task: str) -> glue.Row:
  return glue.GLUE[task.removesuffix("_ranking")]


def _summary(point: Point, out: str) -> dict:
  return results.read_json(os.path.join(point.folder(out), "results.json"))["summary"]


def summarise(points: Sequence[Point], out: str, ensemble_size: int) -> str:
  """The table of all points and both GLUE scores as Markdown; also OUT/summary.md and OUT/submission.zip."""
  best = best_points(points, out)
  lines = ["# GLUE, dev, percent", "", "| Task | Metric | Rate | Batch | Median | Min | Max | SD | Runs | Best |",
           "|---|---|---|---|---|---|---|---|---|---|"]
  for point in points:
    for metric in _row(point.task).metrics:
      row = _summary(point, out)[metric]
      spread = " | ".join(percent(row[key]) for key in ("median", "min", "max", "sd"))
      where = f"{point.rate or 'recipe'} | {point.batch_size or 'recipe'}"
      mark = "*" * (best[point.task] == point)
      lines.append(f"| {point.task} | {metric} | {where} | {spread} | {row['num_runs']} | {mark} |")
  medians = {task: {name: row["median"] for name, row in _summary(point, out).items()} for task, point in best.items()}
  lines += ["", f"GLUE score (ELECTRA section 3.1: eight tasks): {percent(scoring.glue_score(medians))}; the "
            f"leaderboard's (nine tasks): {percent(scoring.leaderboard_score(medians))}. A dash: tasks are missing."]
  lines += ["", "| The papers | " + " | ".join(best) + " |", "|---" * (len(best) + 1) + "|",
            *(f"| {model} | " + " | ".join(str(row.get(task, "-")) for task in best) + " |"
              for model, row in glue.PAPER.items())]
  lines += _together(points, best, out, ensemble_size)
  text = "\n".join(lines) + "\n"
  with open(os.path.join(out, "summary.md"), "w", encoding="utf-8") as file:
    file.write(text)
  return text


def _together(points: Sequence[Point], best: Mapping[str, Point], out: str, size: int) -> list[str]:
  """Ensembles of each task's best runs, whatever their rate; with answers to the test splits, the zip."""
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


def main(argv: list[str]) -> None:
  """Entry point."""
  del argv
  names = FLAGS.tasks.split(",")
  unknown = [name for name in names if name not in (*glue.GLUE, *RANKING)]
  if unknown or not (FLAGS.init_from and FLAGS.data_dir and FLAGS.out):
    raise UserError("A sweep needs --init_from, --data_dir, --out and known --tasks",
                    got=" ".join(f"--{name}={FLAGS[name].value}" for name in ("init_from", "data_dir", "out", "tasks")),
                    allowed=", ".join((*glue.GLUE, *RANKING)), fix="see --help")
  split = [[value for value in flag.split(",") if value] for flag in (FLAGS.rates, FLAGS.batch_sizes, FLAGS.devices)]
  points = grid(names, *split[:2])
  later = [point for point in points if FLAGS.from_mnli and point.task in FROM_MNLI and "mnli" in names]
  run_all([point for point in points if point not in later], FLAGS.out, FLAGS.init_from, split[2])
  if later:
    mnli = best_points([point for point in points if point.task == "mnli"], FLAGS.out)["mnli"]
    run_all(later, FLAGS.out, mnli.folder(FLAGS.out), split[2])
  print(summarise(points, FLAGS.out, FLAGS.ensemble))


def define_flags() -> None:
  """Not at import: other tools have flags of the same names."""
  flags.DEFINE_string("init_from", None, "Workdir of a run, or published weights.")
  flags.DEFINE_string("data_dir", None, "Folder with GLUE's folders, or tfds:glue.")
  flags.DEFINE_string("out", None, "Folder of the sweep.")
  flags.DEFINE_string("tasks", "cola,sst2,mrpc,stsb,qqp,mnli,qnli,rte", "Tasks, with commas.")
  flags.DEFINE_string("recipe", "configs/finetune/glue.py", "The recipe.")
  flags.DEFINE_string("paper", "", "What follows the task in the recipe's argument: large, roberta, bert.")
  flags.DEFINE_string("rates", "", "Learning rates, with commas; empty = the recipe's.")
  flags.DEFINE_string("batch_sizes", "", "Batch sizes, with commas; empty = the recipe's.")
  flags.DEFINE_string("devices", "", "GPUs, with commas, one run at a time on each; empty = one run on all.")
  flags.DEFINE_bool("from_mnli", False, "RTE, STS-B and MRPC start from the best MNLI run.")
  flags.DEFINE_integer("ensemble", 0, "Best runs of each task that answer together (RoBERTa: 5 to 7); 0 = none.")
  flags.DEFINE_multi_string("set", [], "A key of every run: --set=task.num_seeds=3; of one task's: "
                            "--set=rte:task.max_length=256")


if __name__ == "__main__":
  define_flags()
  main_lib.run(main, USAGE)
