"""Records of a folder of experiments: the settings of each table, and its figures so far."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from electra_jax.errors import UserError
from electra_jax.files import write_json
from electra_jax.tools.experiments import results, rows
from electra_jax.tools.experiments.finetuning import Tuning
from electra_jax.tools.experiments.rows import Budget, Planned, Table

FILE = "experiments.json"  # in OUT: table -> its settings


def recorded(out: str) -> dict[str, dict]:
  """Table -> the settings it was run with in a folder.

  Raises:
    UserError: they are of another version of this program.
  """
  path = os.path.join(out, FILE)
  if not os.path.exists(path):
    return {}
  with open(path, encoding="utf-8") as file:
    found = json.load(file)
  for name, facts in found.items():
    if unknown := {*facts["budget"]} - {*Budget._fields} | {*facts["tuning"]} - {*Tuning._fields}:
      raise UserError("The folder has experiments of another version", got=f"{path}: {name} with {sorted(unknown)}",
                      allowed="folders of this version", fix="choose another --out, or continue with that version")
  return found


def record(out: str, table: Table, budget: Budget, tuning: Mapping[str, Any], command: str) -> None:
  """Records the settings of a table. A folder has one budget for a table, which compares its models, and the same
  `--set` for all tables, which share models.

  Args:
    tuning: the fields of Tuning that the command names.
    command: the one that repeats the run.

  Raises:
    UserError: the folder has runs of another budget or with other settings.
  """
  before = recorded(out)
  budget = budget._replace(flops=budget.flops or (None if budget.steps else table.flops))
  for name, facts in before.items():
    other = Budget(**facts["budget"])
    if list(other.settings) != list(budget.settings):
      raise UserError(f"{out} holds runs with other settings, and tables share their models",
                      got=f"{other.settings} for {name}, {list(budget.settings)} for {table.name}", allowed="the same",
                      fix="use another --out")
    if name == table.name and (other.flops, other.steps) != (budget.flops, budget.steps):
      raise UserError(f"{out} holds runs of another budget", allowed="the same", fix="use another --out",
                      got=f"(FLOPs, steps) {other.flops, other.steps} there, {budget.flops, budget.steps} asked for")
  is_named = table.name != "recipes"
  shared = [setting for setting in budget.settings if setting.startswith(("log.", "train.compute_dtype="))]
  facts = {"arguments": [table.name] if is_named else [*dict.fromkeys(model.recipe for model in table.models)],
           "budget": budget._asdict(), "fine_tuning": tuning_folder(tuning), "command": command,
           "tuning": {**tuning, "settings": [*table.fine_tuning, *shared, *tuning.get("settings", ())]}}
  os.makedirs(out, exist_ok=True)
  write_json(os.path.join(out, FILE), before | {table.name: facts})


def tuning_folder(tuning: Mapping[str, Any]) -> str:
  """Name of the folder of sweeps with these settings: glue, followed by whatever the command names.

  >>> tuning_folder({"settings": ["task.num_seeds=3"], "grid": ["train.batch_size=16,32"]})
  'glue-task.num_seeds=3-grid=train.batch_size=16,32'
  """
  words = [*tuning.get("settings", ()), *(f"{key}={','.join(value) if isinstance(value, list) else value}"
                                          for key, value in tuning.items() if key not in ("settings", "ensemble"))]
  return re.sub(r"[^\w.,=-]", "_", "-".join(["glue", *words]))


def planned(out: str, table: Table, only: Sequence[str] = ()) -> list[Planned]:
  """The models of a table that was run."""
  facts = recorded(out)[table.name]
  return [row._replace(fine_tuning=facts["fine_tuning"])
          for row in rows.plan(table, out, Budget(**facts["budget"]), only=only)]


def figures_of(out: str, table: Table) -> list[dict]:
  """Every figure of a table so far."""
  facts = recorded(out)[table.name]
  return [figure for models in rows.by_model(planned(out, table))
          for figure in results.figures_of(table, models, facts["command"], Tuning(**facts["tuning"]))]


def collect(out: str) -> list[dict]:
  """OUT/results.json: every figure of every table so far."""
  figures = [figure for facts in recorded(out).values() for table in rows.tables_of(facts["arguments"])
             for figure in figures_of(out, rows.with_grid(table, Budget(**facts["budget"]).grid))]
  results.save(os.path.join(out, "results.json"), figures)
  return figures
