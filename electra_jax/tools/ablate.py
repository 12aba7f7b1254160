"""Which row of a table is best at equal cost? Trains several recipes under one budget, tabulates and draws them."""

import hashlib
import json
import os
from collections.abc import Sequence
from fnmatch import filter as matching
from typing import NamedTuple

from absl import flags
from ml_collections import ConfigDict, FrozenConfigDict

from electra_jax import checkpoints, flops, metrics
from electra_jax import config as config_lib
from electra_jax import main as main_lib
from electra_jax import recipes as recipes_lib
from electra_jax.errors import UserError

FLAGS = flags.FLAGS

USAGE = """Trains a list of recipes under one budget and writes table.md and curves.png: quality against training FLOPs.

  Table 3 of ELECTRA, tiny:    python -m electra_jax.tools.ablate --out=runs/table3 --table=table3:tiny --steps=200
  At equal FLOPs:              python -m electra_jax.tools.ablate --out=runs/equal --table=table3 --flops=1e18 \\
                                   --set=data.path=/path/to/text --set=train.batch_size=128
  Recipes of your own:         python -m electra_jax.tools.ablate --out=runs/two --steps=1000 configs/small.py my.py
  Only say what it would do:   ... --plan

Kill it at any moment: the same command goes on from the last checkpoint, and finished runs are not run again. Recipes
whose text, tokenizer and packing are equal share them. Warm-up and schedule follow the new number of steps. FLOPs are
the ELECTRA paper's (Appendix C), embedding lookups included. The quality is explained in tools/ablate_quality.py; the
objectives' own metrics stand below the table, because they cannot be compared."""

TABLES = {  # --table -> rows of configs/ablations.py
  "table3": [f"table3_{name}" for name in ("electra", "all_tokens_mlm", "replace_mlm", "electra_15", "bert")],
  "figure3_left": ["figure3_generator_*"],
  "figure3_right": ["table3_electra", "figure3_two_stage", "figure3_adversarial", "figure3_bert"],
  "tying": ["tying_*"],
  "appendix_f": ["table3_electra", "appendix_f_*"],
  "footnote7": ["table3_electra", "table3_electra_15", "footnote7_*"],
  "roberta_table1": ["roberta_table1_*"],
  "roberta_table2": ["roberta_table2_*"],
  "roberta_table3": ["roberta_table3_*"],
}
NOT_IN_SHARDS = ("masking", "reader", "prefetch_batches", "num_workers", "batch_unit", "shards_path")
RESULT_FILE = "ablation.json"


class Row(NamedTuple):
  """One recipe of the ablation, with one seed."""

  name: str  # the file's
  about: str  # the first line of its docstring: the paper's row and number
  given: ConfigDict
  config: FrozenConfigDict
  workdir: str


# ---- what is to be run ----


def recipes_of(table: str, arguments: Sequence[str]) -> list[str]:
  """Files, each with its `:variant`, of --table and of the arguments.

  Raises:
    UserError: the table is unknown, or there is none.
  """
  name, _, variant = (table or "").partition(":")
  if table and name not in TABLES:
    raise UserError("The table is unknown", got=name, allowed=", ".join(TABLES), fix="use --table=table3:tiny")
  rows = recipes_lib.load_file(recipes_lib.find("ablations")).ROWS
  found = [f"ablations:{row}" + f",{variant}" * bool(variant) for pattern in TABLES.get(name, ())
           for row in matching(rows, pattern)]
  found += arguments
  if not found:
    raise UserError("Nothing says what to run", got="neither --table nor a recipe",
                    allowed="--table=NAME, recipes, or both", fix="for a first try: --table=table3:tiny --steps=20")
  return found


def load_recipe(argument: str) -> tuple[str, str, ConfigDict]:
  """(name, first paragraph of the docstring, config) of FILE or FILE:variant.

  Raises:
    UserError: the file is no recipe.
  """
  docstring, given = recipes_lib.load(argument)
  path, _, row = recipes_lib.find(argument).partition(":")
  name = row.partition(",")[0] if path.endswith("ablations.py") else os.path.basename(path)[:-3]
  return name, docstring.split("\n")[0], given


def override(given: ConfigDict, settings: Sequence[str]) -> None:
  """As `recipes.override`.

  Raises:
    UserError: likewise, and where the budget is set in another way.
  """
  for setting in settings:
    if setting.partition("=")[0] in ("train.num_steps", "seed"):
      raise UserError("A key of --set cannot be used", got=setting, fix="correct --set=KEY=VALUE",
                      allowed="the keys of configs/common.py, except train.num_steps (--steps, --flops) and seed")
  recipes_lib.override(given, settings)


def set_budget(given: ConfigDict, num_steps: int) -> None:
  """`num_steps` updates; warm-up and first stage, where the recipe names them, keep their share of the run."""
  share = num_steps / max(given.train.num_steps, 1)
  if given.optimizer.warmup_steps is not None:
    given.optimizer.warmup_steps = round(given.optimizer.warmup_steps * share)
  if given.objective.generator_steps is not None:
    given.objective.generator_steps = round(given.objective.generator_steps * share)
  given.train.num_steps = num_steps


def plan(recipes: Sequence[str], out: str, *, num_steps: int | None, total_flops: float | None,
         settings: Sequence[str] = (), num_seeds: int = 1, num_points: int = 8) -> list[Row]:
  """Every run, its steps computed from the budget; nothing is written.

  Raises:
    UserError: a recipe or a setting cannot be used, or the budget is none.
  """
  if (num_steps is None) == (total_flops is None):
    raise UserError("The budget is unclear", got=f"--steps={num_steps} --flops={total_flops}",
                    allowed="one of the two", fix="use --steps=200, or --flops=1e15")
  counted_in_steps = [one for one in settings
                      if one.startswith(("optimizer.warmup_steps=", "objective.generator_steps="))]
  rows = []
  for recipe in recipes:
    name, about, given = load_recipe(recipe)
    override(given, [one for one in settings if one not in counted_in_steps])
    config_lib.fit_dispatches(given)
    updates = given.train.steps_per_dispatch
    steps = num_steps or config_lib.whole_dispatches(
      flops.steps_within(config_lib.resolve(given), total_flops), updates)
    set_budget(given, steps)
    override(given, counted_in_steps)  # as they are: they are of the run's own length
    every = config_lib.whole_dispatches(steps // num_points, updates)
    given.checkpoint.update(every_steps=every, keep_every_steps=every)  # the points of the curve
    config_lib.fit_dispatches(given)
    given.data.shards_path = os.path.join(data_folder(out, config_lib.resolve(given)), "shards")
    for seed in range(given.seed, given.seed + num_seeds):
      one = ConfigDict(given.to_dict())
      one.seed = seed
      workdir = os.path.join(out, "runs", name + f"_seed{seed}" * (num_seeds > 1))
      rows.append(Row(name, about, one, config_lib.resolve(one), workdir))
  workdirs = [row.workdir for row in rows]
  if twice := {path for path in workdirs if workdirs.count(path) > 1}:
    raise UserError("Two recipes have the same name", got=", ".join(sorted(twice)), allowed="files of different names",
                    fix="rename one of them")
  return rows


def data_folder(out: str, config) -> str:
  """Where tokenizer and shards of this text, vocabulary and packing live: equal for equal data branches."""
  branch = {key: value for key, value in config.data.to_dict().items() if key not in NOT_IN_SHARDS}
  return os.path.join(out, "data", hashlib.sha256(json.dumps(branch, sort_keys=True).encode()).hexdigest()[:12])


# ---- running ----


def run(rows: Sequence[Row], quality_name: str) -> list[dict]:
  """Trains what is not finished, in order, and measures every kept checkpoint; returns a result for each row.

  Raises:
    UserError: a workdir holds a run of another budget or config. Whatever was finished stays.
    Interrupted: Ctrl-C or SIGTERM.
  """
  from electra_jax import pretrain
  from electra_jax.data import corpus

  results = []
  for number, row in enumerate(rows, 1):
    print(f"\n[{number}/{len(rows)}] {os.path.basename(row.workdir)}: {row.config.train.num_steps:,} steps, "
          f"{flops.paper_flops(row.config).per_run:.3g} FLOPs", flush=True)
    check_budget(row)
    if row.config.train.num_steps in checkpoints.saved_steps(row.workdir) and last_evaluation(row):
      print("  finished before", flush=True)
    else:
      shards_path = row.config.data.shards_path
      corpus.make_missing(row.config.data, os.path.dirname(shards_path), rows[0].config.seed)
      pretrain.pretrain(row.given, row.workdir)
    results.append(measure(row, quality_name))
  return results


def check_budget(row: Row) -> None:
  """Raises where the workdir has a checkpoint of another run: a schedule that changed half-way compares nothing."""
  if not checkpoints.saved_steps(row.workdir):
    return
  before = config_lib.load(row.workdir)
  config_lib.check_resumable(before, row.config, row.workdir)
  if before.train.num_steps != row.config.train.num_steps:
    raise UserError(f"The workdir {row.workdir} holds a run of another budget",
                    got=f"{before.train.num_steps} steps there, {row.config.train.num_steps} asked for",
                    allowed="the same budget", fix="use another --out")


def last_evaluation(row: Row) -> dict | None:
  """The objective's own metrics at the end of the run; None where it has not got there."""
  found = [one for one in metrics.read_rows(row.workdir)
           if one["split"] == "eval" and one["step"] == row.config.train.num_steps]
  return found[-1] if found else None


def measure(row: Row, quality_name: str) -> dict:
  """Quality at initialisation and every kept checkpoint, cached beside the run; FLOPs, seconds, own metrics."""
  from electra_jax import inference
  from electra_jax.tools import ablate_quality

  quality = ablate_quality.QUALITIES[quality_name]
  path = os.path.join(row.workdir, RESULT_FILE)
  cache = {}
  if os.path.exists(path):
    with open(path, encoding="utf-8") as file:
      cache = json.load(file)
  points = cache.setdefault(quality_name, {})
  every = row.config.checkpoint.every_steps
  wanted = [step for step in checkpoints.saved_steps(row.workdir)
            if step % every == 0 or step == row.config.train.num_steps]
  for step in (0, *wanted):
    if str(step) not in points:
      trained = inference.load(row.workdir, step or wanted[-1])
      score = quality.measure(trained if step else ablate_quality.untrained(trained), row.workdir)
      points[str(step)] = list(score)
      print(f"  step {step:,}: {quality_name} {score.value:.4f} ± {score.error:.4f}", flush=True)
      with open(path + ".partial", "w", encoding="utf-8") as file:
        json.dump(cache, file)
      os.replace(path + ".partial", path)
  count = flops.paper_flops(row.config)
  return {"name": row.name, "about": row.about, "seed": row.config.seed, "steps": row.config.train.num_steps,
          "flops": count.per_run, "seconds": training_seconds(row), "own": last_evaluation(row) or {},
          "points": [(int(step) * count.per_step, *points[step])
                     for step in sorted(points, key=int)]}


def training_seconds(row: Row) -> float:
  """Seconds in training steps, from the logged speeds, restarts included; compilation and evaluation are not in it."""
  tokens, seconds, before = row.config.train.batch_size * row.config.data.sequence_length, 0.0, 0
  for one in metrics.read_rows(row.workdir):
    if one["split"] == "train":
      if one.get("train/tokens_per_second"):
        seconds += (one["step"] - before) * tokens / one["train/tokens_per_second"]
      before = one["step"]
  return seconds


# ---- flags ----


def define_flags() -> None:
  """Not at import: other tools have flags of the same names."""
  flags.DEFINE_string("out", None, "Folder for runs/, data/, table.md and curves.png.")
  flags.DEFINE_integer("steps", None, "Optimizer updates of every run.", lower_bound=1)
  flags.DEFINE_float("flops", None, "Training FLOPs of every run, in the paper's convention.", lower_bound=1.0)
  flags.DEFINE_string("table", None, f"Recipes of a table: {', '.join(TABLES)}; `:tiny` shrinks them all.")
  flags.DEFINE_multi_string("set", [], "KEY=VALUE for all recipes, for instance --set=data.path=/path/to/text")
  flags.DEFINE_integer("seeds", 1, "Runs of each recipe, with seeds seed, seed + 1, ...", lower_bound=1)
  flags.DEFINE_integer("points", 8, "Checkpoints of each run that are kept and measured.", lower_bound=1)
  flags.DEFINE_string("quality", "continuation", "What is compared, a row of QUALITIES in tools/ablate_quality.py.")
  flags.DEFINE_boolean("plan", False, "Only print steps and FLOPs of each run.")


def main(argv: list[str]) -> None:
  """Reads the flags, runs, writes the table and the picture."""
  from electra_jax.tools import ablate_report

  if not FLAGS.out:
    raise UserError("--out is missing", got="nothing", allowed="a folder", fix="use --out=runs/table3")
  rows = plan(recipes_of(FLAGS.table, argv[1:]), FLAGS.out, num_steps=FLAGS.steps, total_flops=FLAGS.flops,
              settings=FLAGS.set, num_seeds=FLAGS.seeds, num_points=FLAGS.points)
  if FLAGS.plan:
    for row in rows:
      count = flops.paper_flops(row.config)
      steps = row.config.train.num_steps
      print(f"{os.path.basename(row.workdir):32} {steps:>12,} steps x {count.per_run / steps:.3g} = "
            f"{count.per_run:.3g} FLOPs")
    return
  main_lib.start_jax()
  from electra_jax.tools import ablate_quality
  if FLAGS.quality not in ablate_quality.QUALITIES:
    raise UserError("The quality is unknown", got=FLAGS.quality, allowed=", ".join(ablate_quality.QUALITIES),
                    fix="use --quality=continuation")
  quality = ablate_quality.QUALITIES[FLAGS.quality]
  results = run(rows, FLAGS.quality)
  text = ablate_report.table(results, FLAGS.quality, quality.chance)
  with open(os.path.join(FLAGS.out, "table.md"), "w", encoding="utf-8") as file:
    file.write(text)
  print("\n" + text)
  print(ablate_report.draw(results, quality, os.path.join(FLAGS.out, "curves.png")))


if __name__ == "__main__":
  define_flags()
  main_lib.run(main, USAGE, takes_arguments=True)
