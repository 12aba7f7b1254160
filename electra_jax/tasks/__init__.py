"""Tasks of fine-tuning: a row for each name that --config.task.name accepts; `make` builds the task."""

from collections.abc import Callable

from ml_collections import ConfigDict

from electra_jax import config as config_lib
from electra_jax import recipes
from electra_jax.errors import unknown
from electra_jax.tasks import custom, glue, pronouns, race, ranking, squad, winograd
from electra_jax.tasks.base import HEADS, Example, Feature, Outputs, Task

TASKS: dict[str, Callable[..., Task]] = {  # (name, config.task) -> Task
  **dict.fromkeys(glue.GLUE, glue.make),
  "qnli_ranking": ranking.make,
  "wnli_ranking": pronouns.make,
  "wsc": winograd.make,
  **dict.fromkeys(custom.METRICS, custom.make),
  **dict.fromkeys(squad.VERSIONS, squad.make),
  "race": race.make,
}

# Keys of a pre-training recipe that fine-tuning during the pre-training takes over.
CARRIED = ("task.", "mesh.", "log.", "seed", "data.reader", "train.compute_dtype", "train.kernels", "train.remat")

__all__ = ["HEADS", "TASKS", "Example", "Feature", "Outputs", "Task", "make"]

# The metrics that a task's `score` returns and `task.metric` chooses from; the first is the default.
METRICS: dict[str, tuple[str, ...]] = {
  **{name: row.metrics for name, row in glue.GLUE.items()}, **custom.METRICS,
  "qnli_ranking": ("accuracy",), "wnli_ranking": ("accuracy",), "wsc": ("accuracy",), "race": race.METRICS,
  **{name: squad.METRICS[version] for name, version in squad.VERSIONS.items()},
}


def check(config_task: ConfigDict) -> None:
  """Checks the names in the `task` branch of a config before any file is read.

  Raises:
    UserError: the task or the metric is unknown.
  """
  if config_task.name not in TASKS:
    raise unknown("task.name is unknown", config_task.name, TASKS, "set --config.task.name=CLOSEST")
  metrics = METRICS[config_task.name]
  if config_task.metric and config_task.metric not in metrics:
    raise unknown(f"task.metric is none of {config_task.name}", config_task.metric, metrics,
                  "set --config.task.metric=CLOSEST, or leave it out")


def check_all_during(config: ConfigDict) -> None:
  """Checks `eval.finetune_tasks` before days of pre-training: the names, and that the files can be read.

  Raises:
    UserError: a task is unknown, a dev file cannot be read, or spaCy is needed and not installed.
  """
  for name in filter(None, config.eval.finetune_tasks.split(",")):
    task = make(recipe_during(config, name).task)
    if name in ("wnli_ranking", "wsc"):
      pronouns.make_finder()
    for split in task.splits[1:]:  # quickly read, unlike train
      task.read(split)


def recipe_during(given: ConfigDict, name: str) -> ConfigDict:
  """The recipe of one of `eval.finetune_tasks`, for fine-tuning during a pre-training.

  It is ELECTRA's Table 5 (the Large column for an encoder of Large's width), with those keys of CARRIED that the
  pre-training has changed.
  """
  defaults = recipes.load_file(recipes.find("common")).defaults()
  c = recipes.of_task(name, is_large=given.model.hidden_size >= 1024)
  c.update_from_flattened_dict({key: now for key, (_, now) in config_lib.diff(defaults, given).items()
                                if key.startswith(CARRIED)})
  c.task.name = name
  return c


def make(config_task: ConfigDict) -> Task:
  """The task of the `task` branch of a config.

  Raises:
    UserError: the name or the metric is unknown, or its files cannot be read.
  """
  check(config_task)
  return TASKS[config_task.name](config_task.name, config_task)
