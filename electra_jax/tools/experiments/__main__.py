"""The command of experiments: plan, run, publish."""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from electra_jax import main as main_lib
from electra_jax.errors import UserError, unknown
from electra_jax.tools.experiments import finetuning, publish, records, report, runs
from electra_jax.tools.experiments import rows as rows_lib
from electra_jax.tools.experiments.finetuning import Tuning
from electra_jax.tools.experiments.processes import Running, run_all
from electra_jax.tools.experiments.rows import Budget, Planned, Table

FLAGS = flags.FLAGS

USAGE = """Pre-trains the models of a table under one budget, fine-tunes them on GLUE, and compares them.

  What would run:      python -m electra_jax.tools.experiments plan small-vs-bert --flops=1e17
  Run it:              python -m electra_jax.tools.experiments run small-vs-bert --flops=1e17 --data=CORPUS \\
                           --glue=GLUE --out=runs/evidence --devices=0,1
  Without labels:      ... run ablations:table3,tiny --steps=200 --probe --out=runs/table3
  Recipes of your own: ... run configs/small.py my.py --flops=1e16 --probe --out=runs/two
  A grid:              ... run configs/base.py --steps=10000 --grid=objective.rtd_weight=1,10,20,50,100 --out=runs/grid
  GLUE alone:          ... run --init_from=runs/base --glue=GLUE --out=runs/glue \\
                           --glue_grid=optimizer.learning_rate=1e-4,2e-4 --glue_grid=train.batch_size=16,32
  Into the documents:  ... publish --out=runs/evidence

Tables: NAMES; `all` means those without a file in front.
docs/experiments.md explains what is kept equal, what the figures mean, and where everything is.

Kill it at any moment: the same command resumes, and what is finished is not run again."""

COMMAND_VARIABLE = "EXPERIMENTS_COMMAND"  # what to print as the command; launch/reproduce.sh sets it
PLACES = tuple(f"--{name}=" for name in ("out", "data", "shards", "vocabulary", "glue", "devices"))


# ---- what the flags say ----


def budget() -> Budget:
  """The budget of the pre-trainings."""
  return Budget(FLAGS.flops, FLAGS.steps, FLAGS.set, FLAGS.grid, FLAGS.pretrainings, FLAGS.points, FLAGS.probe)


def chosen_tables(arguments: list[str]) -> list[Table]:
  """The tables that the command names, each model at every point of --grid.

  Raises:
    UserError: there is no such table, or none of them has a recipe that --only names.
  """
  tables = [rows_lib.with_grid(table, FLAGS.grid) for table in rows_lib.tables_of(arguments)]
  keys = {model.key for table in tables for model in table.models}
  for name in FLAGS.only:
    if name not in keys:
      raise unknown("--only names a recipe that the table does not have", name, sorted(keys), "use --only=CLOSEST")
  return tables


def own_tuning() -> dict[str, Any]:
  """The fields of Tuning that the command names."""
  values = {"paper": FLAGS.paper, "settings": FLAGS.glue_set, "grid": FLAGS.glue_grid, "from_mnli": FLAGS.from_mnli,
            "ensemble": FLAGS.ensemble}
  return {key: value for key, value in values.items() if value}


def repeated() -> str:
  """The command that repeats this run, without its places."""
  return os.environ.get(COMMAND_VARIABLE) or " ".join(
    ["python -m electra_jax.tools.experiments", *(word for word in sys.argv[1:] if not word.startswith(PLACES))])


# ---- commands ----


def plan(arguments: list[str]) -> None:
  """Prints the pre-trainings with their steps."""
  for table in chosen_tables(arguments):
    print(rows_lib.describe(table, rows_lib.plan(table, FLAGS.out, budget(), only=FLAGS.only)))


def run(arguments: list[str]) -> None:
  """Runs what each table still lacks, and writes the figures after every stage."""
  if not FLAGS.out:
    raise UserError("--out is missing", got="nothing", allowed="a folder", fix="use --out=runs/evidence")
  names = FLAGS.tasks or list(rows_lib.GLUE)
  for name in names:
    if name not in finetuning.ORDER:
      raise unknown("A task of --tasks is unknown", name, finetuning.ORDER, "use --tasks=CLOSEST")
  if FLAGS.from_mnli and "mnli" not in names:
    chosen = ",".join(names)
    raise UserError("--from_mnli needs MNLI among the tasks", got=f"--tasks={chosen}", allowed="tasks with mnli",
                    fix=f"use --tasks=mnli,{chosen}; what is finished is not run again")
  finetuning.check(names, Tuning(**own_tuning()), FLAGS.glue)
  if FLAGS.init_from:
    if unread := [*arguments, *(f"--set={setting}" for setting in FLAGS.set), *(f"--grid={key}" for key in FLAGS.grid)]:
      raise UserError("--init_from fine-tunes alone, without a pre-training", got=" ".join(unread),
                      allowed="neither tables nor --set and --grid", fix="leave them out, or use --glue_set and "
                      "--glue_grid; to pre-train from weights, --set=checkpoint.init_from=...")
    return sweep(names)
  tables = chosen_tables(arguments)
  for table in tables:
    records.record(FLAGS.out, table, budget(), own_tuning(), repeated())
    print(rows_lib.describe(table, records.planned(FLAGS.out, table, FLAGS.only)), flush=True)
  run_rows(tables)
  for table in tables:
    figures = records.figures_of(FLAGS.out, table)
    text = "\n".join([report.table(table, figures), "", *report.differences(table, figures), ""])
    base = os.path.join(FLAGS.out, rows_lib.slug(table.name))
    with open(f"{base}.md", "w", encoding="utf-8") as file:
      file.write(text)
    report.draw(table, records.planned(FLAGS.out, table), figures, f"{base}.png")
    print(f"\n{table.name}: {base}.md, {base}.png\n{text}")


def run_rows(tables: Sequence[Table]) -> None:
  """Runs the models of all tables side by side, so that no device waits; a shared model gets the tasks of all."""
  running, facts = Running(FLAGS.devices or [""], FLAGS.glue_at_once or 4), records.recorded(FLAGS.out)
  jobs: dict[str, tuple[Planned, dict, Tuning]] = {}  # folder of a model -> it, its tasks once each, in order, and how
  for table in tables:
    tuning = Tuning(**facts[table.name]["tuning"])
    wanted = [task for task in table.tasks if not FLAGS.tasks or task in FLAGS.tasks]
    for row in records.planned(FLAGS.out, table, FLAGS.only):
      jobs.setdefault(row.folder, (row, {}, tuning))[1].update(dict.fromkeys(wanted))
  paths = runs.Paths(FLAGS.data, FLAGS.shards or os.path.join(FLAGS.out, "data"), FLAGS.vocabulary, FLAGS.glue)
  runs.prepare([row for row, _, _ in jobs.values()], paths)

  def after_each() -> None:
    with running.changed:  # not two at once
      records.collect(FLAGS.out)

  run_all([(os.path.basename(folder), functools.partial(
    runs.make, row, list(tasks), paths, tuning, running, probe=FLAGS.probe, after_each=after_each))
    for folder, (row, tasks, tuning) in jobs.items()], running)


def sweep(names: Sequence[str]) -> None:
  """GLUE alone, from a run that exists or published weights."""
  if not FLAGS.glue:
    raise UserError("--glue is missing", got="nothing", allowed="GLUE's folders, or tfds:glue", fix="use --glue=GLUE")
  running = Running(FLAGS.devices or [""], FLAGS.glue_at_once or 1)
  run_all([("GLUE", lambda: print(finetuning.sweep(
    FLAGS.out, FLAGS.init_from, names, Tuning(**own_tuning()), FLAGS.glue, running)))], running)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
  "plan": plan, "run": run, "publish": lambda arguments: publish.publish(FLAGS.out, FLAGS.results)}


def define_flags() -> None:
  """Not at import: other tools have flags of the same names."""
  flags.DEFINE_string("out", "", "Folder of the runs.")
  flags.DEFINE_float("flops", None, "Training FLOPs of each model, in the paper's convention; default: the table's.",
                     lower_bound=1.0)
  flags.DEFINE_integer("steps", None, "Updates of each model, in place of --flops.", lower_bound=1)
  flags.DEFINE_string("data", "", "The corpus, a data.path; default: the recipes' own; not needed where shards exist.")
  flags.DEFINE_string("shards", "", "Folder of the tokenizers and shards; default: OUT/data.")
  flags.DEFINE_string("vocabulary", "", "A published WordPiece vocabulary (vocab.txt); empty = trained on the corpus.")
  flags.DEFINE_string("glue", "", "Folder with GLUE's folders, or tfds:glue; empty = no fine-tuning.")
  flags.DEFINE_list("devices", [], "GPUs, with commas: a model on each; empty = one model at a time, on all.")
  flags.DEFINE_integer("glue_at_once", None, "Fine-tunings that share a device; default: 4, with --init_from 1.",
                       lower_bound=1)
  flags.DEFINE_integer("pretrainings", 1, "Pre-trainings of each model, each with another seed.", lower_bound=1)
  flags.DEFINE_integer("points", 10, "Checkpoints and evaluations of each pre-training.", lower_bound=1)
  flags.DEFINE_bool("probe", False, "Keep and probe every checkpoint, which needs no labels.")
  flags.DEFINE_list("only", [], "Recipes of the table, with commas; empty = all.")
  flags.DEFINE_multi_string("set", [], "KEY=VALUE for every pre-training.")
  flags.DEFINE_multi_string("grid", [], "KEY=VALUE,VALUE: each pre-training once with every choice of values.")
  flags.DEFINE_string("init_from", "", "A run's workdir or published weights: GLUE alone, without pre-trainings.")
  flags.DEFINE_list("tasks", [], "Tasks of GLUE, with commas; empty = the table's.")
  flags.DEFINE_multi_string("glue_set", [], "KEY=VALUE, or TASK:KEY=VALUE, for the fine-tunings.")
  flags.DEFINE_string("paper", "", "The fine-tuning recipe's argument after the task: large, roberta or bert.")
  flags.DEFINE_multi_string("glue_grid", [], "KEY=VALUE,VALUE for the fine-tunings, e.g. task.layer_decay=0.9,0.8,0.7.")
  flags.DEFINE_bool("from_mnli", False, "RTE, STS-B and MRPC start from the best MNLI run.")
  flags.DEFINE_integer("ensemble", 0, "Size of an ensemble of the best runs of each task (RoBERTa: 5 to 7); 0 = none.")
  flags.DEFINE_string("results", "docs/results", "publish: the folder of evidence.json, the pages and the pictures.")


def main(argv: list[str]) -> None:
  """Entry point."""
  if len(argv) < 2 or argv[1] not in COMMANDS:
    raise UserError("What to do is not clear", got=" ".join(argv[1:]) or "nothing", allowed=", ".join(COMMANDS),
                    fix="python -m electra_jax.tools.experiments plan all")
  COMMANDS[argv[1]](argv[2:])


if __name__ == "__main__":
  define_flags()
  names = ", ".join(table.name for file in rows_lib.FILES for table in rows_lib.tables(file).values())
  main_lib.run(main, USAGE.replace("NAMES", names, 1), takes_arguments=True)
