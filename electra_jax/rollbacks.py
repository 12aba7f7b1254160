"""What if too many updates in a row are no numbers? The run goes back to a good checkpoint and on with other data.

`train.on_nonfinite=rollback`. Seeds and steps stay as they were; the examples from the checkpoint to the end of the
window in which it happened are passed by (PaLM section 5.1 did so by hand). The file remembers it: a restart reads it.
"""

import json
import os

import jax

from electra_jax import checkpoints, distributed, nonfinite
from electra_jax.batch_schedule import Detour
from electra_jax.errors import UserError

FILE_NAME = "rollbacks.json"


def read(workdir: str) -> list[Detour]:
  """The rollbacks of a run, oldest first; [] where there was none.

  Raises:
    UserError: the file is damaged.
  """
  path = os.path.join(workdir, FILE_NAME)
  if not os.path.exists(path):
    return []
  try:
    with open(path, encoding="utf-8") as file:
      return [Detour(int(row["step"]), int(row["resume_at"])) for row in json.load(file)]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise UserError("The record of a run's rollbacks cannot be read", got=f"{path}: {error!r}",
                    allowed="the file as the run wrote it", fix="restore it from a backup") from error


def go_back(workdir: str, config, diverged: nonfinite.Diverged) -> Detour:
  """Removes what came after the last good checkpoint and notes which data to pass by; the run is then started anew.

  Good is what was saved before the first of the bad updates. If the last rollback has led to the same checkpoint, it is
  the one before, where there is one; if there is none at all, the run begins anew, with other data.

  Raises:
    UserError: `train.max_rollbacks` have not helped, or the disk refuses.
  """
  before = read(workdir)
  if len(before) >= config.train.max_rollbacks:
    raise UserError("The loss or the gradient is not finite", got=f"{diverged}, after {len(before)} rollbacks",
                    allowed=f"train.max_rollbacks is {config.train.max_rollbacks}",
                    fix="lower --config.optimizer.learning_rate in a new workdir; or see whether the data is sound")
  good = [0, *(step for step in checkpoints.saved_steps(workdir) if 0 < step < diverged.first_step)]
  if len(good) > 1 and before and before[-1].step == good[-1]:
    good.pop()
  detour = Detour(good[-1], diverged.last_step)
  saved = checkpoints.Checkpoints(workdir, config.checkpoint)
  saved.delete_after(detour.step)  # before the note: a kill in between only lets it happen again
  saved.close()
  if jax.process_index() == 0:
    _write(workdir, [*before, detour])
  distributed.barrier(f"rollback {len(before)}")
  return detour


def _write(workdir: str, detours: list[Detour]) -> None:
  path = os.path.join(workdir, FILE_NAME)
  try:
    with open(f"{path}.partial", "w", encoding="utf-8") as file:
      json.dump([detour._asdict() for detour in detours], file, indent=2)
    os.replace(f"{path}.partial", path)
  except OSError as error:
    raise UserError("The rollback cannot be noted", got=f"{path}: {error}", allowed="a workdir that can be written",
                    fix="free space; the same command goes on from the last good checkpoint") from error
