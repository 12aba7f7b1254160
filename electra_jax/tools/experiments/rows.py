"""Rows of an experiment: the recipes of a table, with the steps that a budget pays for."""

import itertools
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict, FrozenConfigDict

from electra_jax import config as config_lib
from electra_jax import flops, recipes
from electra_jax.errors import UserError, unknown

FILES = ("evidence", "ablations")  # in configs/, with TABLES; those of the first need no file in front of them
GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
AVERAGE = "average"  # of the eight tasks (ELECTRA section 3.1)


class Model(NamedTuple):
  """A row of a table."""

  name: str
  recipe: str  # as --config names it
  key: str  # as --only names it: ROW or ROW:VARIANT
  paper: dict[str, float]  # metric -> what the paper prints
  steps_of: tuple[str, float] | None = None  # a multiple of that model's steps, in place of equal FLOPs
  settings: tuple[str, ...] = ()  # KEY=VALUE on the recipe, at a point of a grid


class Table(NamedTuple):
  """Models to compare: a row of TABLES in configs/evidence.py or ablations.py, or the recipes of a command."""

  name: str
  models: tuple[Model, ...]
  source: str = ""  # paper and table
  says: str = ""  # its claim, in one sentence
  metrics: tuple[str, ...] = (AVERAGE,)  # the columns that are compared
  tasks: tuple[str, ...] = GLUE  # WNLI is in no average (ELECTRA section 3.1)
  flops: float | None = None  # of each model, if the command names none
  fine_tuning: tuple[str, ...] = ()  # KEY=VALUE or TASK:KEY=VALUE of the fine-tunings
  paper_flops: float | None = None  # of the paper's models
  behind: tuple[str, ...] = ()  # models that the paper calls worse than the first one without a number
  too_small: tuple[str, ...] = ()  # models that have learnt too little here for a verdict


class Budget(NamedTuple):
  """What determines the pre-trainings, besides their recipes."""

  flops: float | None = None  # of each model, in the paper's convention; None: the table's
  steps: int | None = None  # in place of FLOPs
  settings: Sequence[str] = ()  # KEY=VALUE for every recipe
  grid: Sequence[str] = ()  # KEY=VALUE,VALUE: each model once for every choice
  pretrainings: int = 1  # of each model, with as many seeds
  points: int = 10  # checkpoints and evaluations of a run
  probe: bool = False  # whether all checkpoints are kept and probed


class Planned(NamedTuple):
  """A model with its steps."""

  model: Model
  given: ConfigDict  # the recipe with everything that the budget changes
  config: FrozenConfigDict
  folder: str  # has pretrain/ and the sweeps over GLUE
  fine_tuning: str = "glue"  # folder of the sweeps; each way to fine-tune has its own

  @property
  def num_steps(self) -> int:
    """Optimizer updates."""
    return self.config.train.num_steps

  @property
  def flops(self) -> float:
    """Of the pre-training, in the paper's convention."""
    return flops.paper_flops(self.config).per_run

  @property
  def workdir(self) -> str:
    """Of the pre-training."""
    return os.path.join(self.folder, "pretrain")

  @property
  def sweeps(self) -> str:
    """Has step_N/, a sweep over GLUE from the checkpoint of that step."""
    return os.path.join(self.folder, self.fine_tuning)


def tables(file: str = FILES[0], variant: str = "") -> dict[str, Table]:
  """Name -> table of configs/FILE.py, with a variant added to its recipes."""
  module, by_name = recipes.load_file(recipes.find(file)), {}
  for name, own in module.TABLES.items():
    row: dict[str, Any] = {"flops": getattr(module, "FLOPS", None),
                           "fine_tuning": getattr(module, "FINE_TUNING", ()), **own}
    metrics, steps_of = row.get("metrics", (AVERAGE,)), row.pop("steps_of", {})
    models = tuple(Model(label, f"{file}:{recipe}" + f",{variant}" * bool(variant), recipe.replace(",", ":"),
                         dict(zip(metrics, paper)), steps_of.get(label))
                   for label, (recipe, *paper) in row.pop("rows").items())
    full_name = name if file == FILES[0] else f"{file}:{name}"
    by_name[name] = Table(full_name + f",{variant}" * bool(variant), models, **row)
  return by_name


def tables_of(arguments: Sequence[str]) -> list[Table]:
  """The tables that a command names: NAME, FILE:NAME[,VARIANT] or `all`; its recipes make another table.

  Raises:
    UserError: there is no table of a name, or two recipes have the same name.
  """
  if list(arguments) == ["all"]:
    return list(tables().values())
  chosen, models = [], []
  for argument in arguments or [""]:
    path, _, rest = argument.rpartition(":")
    file = os.path.basename(path).removesuffix(".py") or FILES[0]
    name, _, variant = rest.partition(",")
    if file in FILES and name in tables(file):
      chosen.append(tables(file, variant)[name])
    elif os.path.isfile(recipes.find(argument).partition(":")[0]):
      models.append(Model(slug(argument), argument, argument, {}))
    else:
      raise unknown("The experiment is unknown", argument or "nothing", [
        *tables(), *(f"{file}:{name}" for file in FILES[1:] for name in tables(file))], "choose CLOSEST, or a recipe")
  if len({model.name for model in models}) < len(models):
    raise UserError("Two recipes have the same name", got=", ".join(model.recipe for model in models),
                    allowed="files of different names", fix="rename one of them")
  return [*chosen, Table("recipes", tuple(models))] if models else chosen


def with_grid(table: Table, grid: Sequence[str]) -> Table:
  """The table with each model once for every choice of the grid's values; ELECTRA's searches are in Appendix A.

  >>> table = Table("a", (Model("A", "small", "small", {}),))
  >>> [model.name for model in with_grid(table, ["train.batch_size=16,32"]).models]
  ['A, train.batch_size=16', 'A, train.batch_size=32']
  """
  def named(name: str, choice: Sequence[str]) -> str:
    return ", ".join([name, *choice])

  def point(model: Model, choice: tuple[str, ...]) -> Model:
    steps_of = (named(model.steps_of[0], choice), model.steps_of[1]) if model.steps_of else None
    return model._replace(name=named(model.name, choice), settings=choice, steps_of=steps_of)

  return table._replace(models=tuple(point(model, choice) for model in table.models for choice in combinations(grid)))


def combinations(grid: Sequence[str]) -> list[tuple[str, ...]]:
  """Every choice of a value for each KEY=VALUE,VALUE; for an empty grid a single empty choice.

  >>> combinations(["task.layer_decay=0.9,0.8", "seed=1"]), combinations([])
  ([('task.layer_decay=0.9', 'seed=1'), ('task.layer_decay=0.8', 'seed=1')], [()])
  """
  parts = [setting.partition("=") for setting in grid]
  return list(itertools.product(*([f"{key}={value}" for value in values.split(",")] for key, _, values in parts)))


def slug(name: str) -> str:
  """The name of a recipe or table as a folder's name.

  >>> slug("configs/small.py:tiny"), slug("evidence:electra_small,fast"), slug("small-vs-bert")
  ('small_tiny', 'evidence_electra_small_fast', 'small-vs-bert')
  """
  path, _, variant = name.partition(":")
  return re.sub(r"[^\w-]+", "_", " ".join(filter(None, (os.path.basename(path).removesuffix(".py"), variant))))


def folder_part(setting: str) -> str:
  """KEY=VALUE as a part of a folder's name.

  >>> folder_part("objective.rtd_weight=1e2")
  'rtd_weight=1e2'
  """
  return re.sub(r"[^\w.=-]+", "_", setting.split(".", 1)[-1])


def plan(table: Table, out: str, budget: Budget, *, only: Sequence[str] = ()) -> list[Planned]:
  """Every pre-training of a table, with the steps that its budget pays for; nothing is written.

  The first pre-training of each model comes before all second ones. Tables share models: a folder is named by recipe
  and steps.

  Raises:
    UserError: a setting does not exist, a recipe cannot be loaded, or the budget is unclear.
  """
  rows, total = {}, budget.flops or table.flops
  if (budget.steps and budget.flops) or not (budget.steps or total):
    raise UserError("The budget is unclear", got=f"--steps={budget.steps} --flops={budget.flops}",
                    allowed="one of the two", fix="use --steps=200, or --flops=1e15")
  for model in table.models:
    _, given = recipes.load(model.recipe)
    own_length = _override(given, [*budget.settings, *model.settings])
    config_lib.fit_dispatches(given)
    updates = given.train.steps_per_dispatch
    if model.steps_of:
      other, times = model.steps_of
      steps = config_lib.whole_dispatches(round(times * rows[other].num_steps), updates)
    else:
      steps = budget.steps or config_lib.whole_dispatches(
        flops.steps_within(config_lib.resolve(given), total or 0.0), updates)
    set_steps(given, steps)
    recipes.override(given, own_length)
    every = config_lib.whole_dispatches(steps // budget.points, updates)
    given.eval.every_steps = given.checkpoint.every_steps = every
    if budget.probe:
      given.checkpoint.keep_every_steps = every
    config_lib.fit_dispatches(given)
    rows[model.name] = Planned(model, given, config_lib.resolve(given),
                               os.path.join(out, "models", "-".join([slug(model.recipe), *map(
                                 folder_part, model.settings), str(steps)])))
  chosen = [row for row in rows.values() if not only or row.model.key in only]
  return [_with_seed(row, number) for number in range(budget.pretrainings) for row in chosen]


def _override(given: ConfigDict, settings: Sequence[str]) -> list[str]:
  """Applies the settings, except those in steps of the run's own length, which it returns."""
  for setting in settings:
    if setting.partition("=")[0] in ("train.num_steps", "seed"):
      raise UserError("A key of --set or --grid cannot be used", got=setting, fix="leave it out",
                      allowed="the keys of configs/common.py, except train.num_steps (--steps, --flops) and seed")
  lengths = ("optimizer.warmup_steps=", "objective.generator_steps=")
  own_length = [setting for setting in settings if setting.startswith(lengths)]
  recipes.override(given, [setting for setting in settings if setting not in own_length])
  return own_length


def set_steps(given: ConfigDict, num_steps: int) -> None:
  """Sets `num_steps` updates; if the recipe sets warm-up and first stage, they keep their share of the run."""
  share = num_steps / max(given.train.num_steps, 1)
  if given.optimizer.warmup_steps is not None:
    given.optimizer.warmup_steps = round(given.optimizer.warmup_steps * share)
  if given.objective.generator_steps is not None:
    given.objective.generator_steps = round(given.objective.generator_steps * share)
  given.train.num_steps = num_steps


def _with_seed(row: Planned, number: int) -> Planned:
  """A pre-training with other initial weights, masks, order and dropout; number 0 has the recipe's seed."""
  if not number:
    return row
  given = ConfigDict(row.given.to_dict() | {"seed": row.given.seed + number})
  return row._replace(given=given, config=config_lib.resolve(given), folder=f"{row.folder}-seed_{given.seed}")


def by_model(rows: Sequence[Planned]) -> list[list[Planned]]:
  """The pre-trainings of each model."""
  return [[row for row in rows if row.model.name == name] for name in dict.fromkeys(row.model.name for row in rows)]


def describe(table: Table, rows: Sequence[Planned]) -> str:
  """What will be run, for `plan`."""
  lines = [f"{table.name} ({table.source}): {table.says}" if table.source else table.name]
  width = max((len(row.model.name) for row in rows), default=0)
  for row, *others in by_model(rows):
    tokens = row.num_steps * row.config.train.batch_size * row.config.data.sequence_length
    lines.append(f"  {row.model.name:{width}} {row.model.recipe:40} {row.num_steps:>9,} steps of "
                 f"{row.config.train.batch_size:>5} = {row.flops:.3g} FLOPs, at most {tokens / 1e6:,.0f} M tokens"
                 + f", {len(others) + 1} pre-trainings" * bool(others))
  return "\n".join(lines)
