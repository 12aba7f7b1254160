"""Which tasks are there? A row for each name that --config.task.name takes; `make` builds it."""

from collections.abc import Callable

from electra_jax.tasks import glue, own, pronouns, race, ranking, squad
from electra_jax.tasks.contract import HEADS, Example, Feature, Outputs, Task

TASKS: dict[str, Callable[..., Task]] = {  # (name, config.task) -> Task
  **dict.fromkeys(glue.GLUE, glue.make),
  "qnli_ranking": ranking.make,
  "wnli_ranking": pronouns.make,
  **dict.fromkeys(own.METRICS, own.make),
  **dict.fromkeys(squad.VERSIONS, squad.make),
  "race": race.make,
}

__all__ = ["HEADS", "TASKS", "Example", "Feature", "Outputs", "Task", "make"]


def make(config_task) -> Task:
  """The task of the `task` branch of a config.

  Raises:
    UserError: its files cannot be read.
  """
  return TASKS[config_task.name](config_task.name, config_task)
