"""What happens when a loss or a gradient is no number? The run stops, skips the step and counts it, or goes back."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from electra_jax.errors import UserError

SKIPPED = "train/skipped_steps"


class Diverged(Exception):
  """Too many updates in a row were no numbers, and the config wants a rollback; `rollbacks.go_back` does it."""

  def __init__(self, first_step: int, last_step: int):
    self.first_step, self.last_step = first_step, last_step  # the first of them; the last that was computed
    super().__init__(f"skipped steps in a row from {first_step} on, at step {last_step}")


def skip_if_nonfinite(old: PyTree, new: PyTree, pairs: dict) -> tuple[PyTree, dict]:
  """(state, metric pairs) of a step: `new`, or `old` where the loss or the gradients' norm is not finite.

  The pairs of a skipped step weigh nothing in the means of its window; SKIPPED says whether it was one.
  """
  finite = jnp.isfinite(pairs["loss"][0]) & jnp.isfinite(pairs["train/gradient_norm"][0])
  state = jax.tree.map(lambda after, before: jnp.where(finite, after, before), new, old)
  pairs = jax.tree.map(lambda x: jnp.where(finite, x, jnp.zeros_like(x)), pairs)
  return state, pairs | {SKIPPED: (1.0 - finite, jnp.ones(()))}


def finite_seeds(params: PyTree) -> Array:
  """Which of several seeds' parameters, each with a leading axis of seeds, are all finite: bool [seeds]."""
  return jnp.stack([jnp.isfinite(x).all(range(1, x.ndim)) for x in jax.tree.leaves(params)]).all(0)


def count_in_a_row(before: Array, was_skipped: Array) -> Array:
  """Skipped updates in a row up to this one; it is in the state, so a checkpoint within such a row knows of it.

  >>> count = jnp.int32(0)
  >>> [int(count := count_in_a_row(count, jnp.bool_(skipped))) for skipped in (True, True, False, True)]
  [1, 2, 0, 1]
  """
  return jnp.where(was_skipped, before + 1, 0)


class Watch:
  """Looks at each log window of a run, as `train.on_nonfinite` and `train.max_skipped_steps` say.

  Args:
    config_train: the `train` branch of the config.
    num_rollbacks: how often the run has gone back so far; shown where it may.
    in_a_row: skipped steps right before this start, from the state: a restart does not count anew.
  """

  def __init__(self, config_train, num_rollbacks: int = 0, in_a_row: int = 0):
    self._goes_back, self._num_rollbacks = config_train.on_nonfinite == "rollback", num_rollbacks
    self._skips = config_train.on_nonfinite != "stop" or config_train.compute_dtype == "float16"  # overflows are usual
    self._most = config_train.max_skipped_steps
    self._in_a_row = in_a_row

  def check(self, window: list[dict], values: dict[str, float], step: int) -> dict[str, float]:
    """The window's metrics to log, with the number of skipped steps in place of their share.

    Args:
      window: metric pairs of each of its steps.
      values: their means.
      step: the window's last.

    Raises:
      UserError: a mean is not finite, or too many steps in a row have been skipped; it names the steps.
      Diverged: likewise, where the run is to go back.
    """
    if not self._skips:
      bad = [name for name in ("loss", "train/gradient_norm") if not np.isfinite(values[name])]
      if bad:
        faults = ", ".join(f"{name} is {values[name]}" for name in bad)
        first = step - len(window) + 1
        sums = np.array(jax.device_get([[pairs[name][0] for name in bad] for pairs in window]))  # [steps, names]
        origin = first + int(np.argmin(np.isfinite(sums).all(axis=1)))
        raise self._error(f"{faults} in the steps {first} to {step}, first in step {origin}",
                          f", or skip such steps with --config.train.on_nonfinite=skip (tools/show_batch --step="
                          f"{origin - 1} shows its batch)")
      return values
    skipped = jax.device_get([pairs[SKIPPED][0] for pairs in window])
    for index, was_skipped in enumerate(skipped):
      self._in_a_row = self._in_a_row + 1 if was_skipped else 0
      if self._in_a_row >= self._most:
        last = step - len(window) + 1 + index
        if self._goes_back:
          raise Diverged(last - self._in_a_row + 1, step)
        raise self._error(f"{self._in_a_row} skipped steps in a row, {last - self._in_a_row + 1} to {last}; "
                          f"train.max_skipped_steps is {self._most}", "")
    count = {"train/rollbacks": self._num_rollbacks} if self._goes_back else {}
    return values | {SKIPPED: float(sum(skipped))} | count

  def _error(self, got: str, more: str) -> UserError:
    return UserError("The loss or the gradient is not finite", got=got, allowed="finite losses and gradients",
                     fix=f"lower --config.optimizer.learning_rate or lengthen the warm-up{more}; the same command goes "
                     "on from the last checkpoint")
