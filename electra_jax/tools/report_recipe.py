"""Recipe of a run, and where it departs from it: its config next to those of configs/, key by key."""

import glob
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from electra_jax import recipes
from electra_jax.errors import UserError

CONFIGS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "configs")
# What makes a recipe another one; everything else is a difference within it.
IDENTITY = {
  "pretrain": ("objective.name", "model.hidden_size", "model.embedding_size", "model.num_hidden_layers",
               "model.num_attention_heads", "model.intermediate_size"),
  "finetune": ("task.name",),
}
# Places, cadences and machines: no part of an experiment.
IGNORED = re.compile(r"(mesh|log|eval|checkpoint)\..*|seed|train\.(log_every_steps|accumulation_steps|remat)|"
                     r"data\.(\w*path|\w+_dir|shard_examples|num_workers|reader)|"
                     r"data\.tokenizer\.(path|training_bytes)|task\.(\w+_path|data_dir|init_from|seeds_at_once)")
# The fine-tuning recipes' arguments by the beginning of a task's name.
FINE_TUNING = (("squad_", "squad.py", ("{rest}", "{rest},large", "{rest},roberta")),
               ("race", "race.py", ("", "large", "roberta")), ("own_", "own.py", ("{rest}",)),
               ("", "glue.py", ("{rest}", "{rest},large", "{rest},roberta")))
# The tables behind these arguments; the recipes' docstrings are about all of them.
PAPER_ROWS = {"large": "ELECTRA Table 5, Large", "roberta": "RoBERTa Table 10"}


class Match(NamedTuple):
  """The recipe that a run follows."""

  name: str  # as --config names it
  about: str  # the paper's row: the recipe's own first paragraph, or PAPER_ROWS
  differences: list[tuple[str, object, object]]  # (key, the recipe's value, the run's)


def find(given: Mapping, folder: str = CONFIGS) -> Match | None:
  """The recipe with the run's size and objective, or task, from which it departs least; None where there is none.

  Args:
    given: the run's config as it was given, of config.json.
    folder: with the recipes; an installed package may lack it.
  """
  run = flat(given)
  found = []
  for name in _candidates(given, folder):
    try:
      about, recipe = recipes.load(name)
    except UserError:  # somebody's unfinished file is no reason against a report
      continue
    recipe = flat(json.loads(json.dumps(recipe.to_dict())))  # tuples become lists, as in config.json
    if all(run.get(key) == recipe.get(key) for key in IDENTITY[given["mode"]]):
      differences = [(key, recipe[key], run[key]) for key in recipe
                     if key in run and run[key] != recipe[key] and not IGNORED.fullmatch(key)]
      if given["mode"] == "finetune":
        about = PAPER_ROWS.get(re.split("[:,]", name)[-1], "ELECTRA Table 5")
      shown = os.path.relpath(name, os.path.dirname(folder))
      found.append(Match(shown, " ".join(about.split("\n\n")[0].split()), differences))
  return min(found, default=None,
             key=lambda match: (len(match.differences), match.name.count("/"), match.name.count(":"), match.name))


def _candidates(given: Mapping, folder: str) -> Iterator[str]:
  if given["mode"] == "pretrain":
    table = os.path.join(folder, "ablations.py")
    yield from (path for path in sorted(glob.glob(os.path.join(folder, "*.py")))
                if os.path.basename(path) not in ("common.py", "__init__.py", "ablations.py", "evidence.py",
                                                  "variants.py"))
    if os.path.isfile(table):
      yield from (f"{table}:{row}" for row in recipes.load_file(table).ROWS)
    return
  task = given["task"]["name"]
  beginning, file, arguments = next(row for row in FINE_TUNING if task.startswith(row[0]))
  for argument in arguments:
    argument = argument.format(rest=task.removeprefix(beginning))
    yield os.path.join(folder, "finetune", file) + (f":{argument}" if argument else "")


def flat(config: Mapping, prefix: str = "") -> dict[str, object]:
  """Nested keys joined by dots.

  >>> flat({"a": {"b": 1, "c": {"d": 2}}, "e": 3})
  {'a.b': 1, 'a.c.d': 2, 'e': 3}
  """
  found = {}
  for key, value in config.items():
    found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
  return found
