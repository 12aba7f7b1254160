"""Losses and gradients that are not finite: such an update is skipped and counted, and may end the run."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from electra_jax.errors import UserError

SKIPPED = "train/skipped_steps"
MAX_SKIPPED_STEPS = 10  # in a row, then the run ends: a state that has diverged would skip forever


def skip_if_nonfinite(old: Any, new: Any, pairs: dict) -> tuple:
  """(state, metric pairs) of an update: `new`, or `old` with its step where loss or gradients are not finite.

  So a state is always one to resume from, whatever `train.on_nonfinite` says. A choice between arrays: a branch, as
  optax.apply_if_finite has, would keep both in memory and let a GPU's host wait. The pairs of a skipped update weigh
  nothing in the means of its window; SKIPPED says whether it was one.

  Args:
    old, new: TrainState.
  """
  finite = jnp.isfinite(pairs["loss"][0]) & jnp.isfinite(pairs["train/gradient_norm"][0])
  state = jax.tree.map(lambda after, before: jnp.where(finite, after, before), new, old)
  pairs = jax.tree.map(lambda x: jnp.where(finite, x, jnp.zeros_like(x)), pairs)
  state = state._replace(step=new.step, skipped_in_a_row=jnp.where(finite, 0, old.skipped_in_a_row + 1))
  return state, pairs | {SKIPPED: (1.0 - finite, jnp.ones(()))}


def finite_seeds(params: PyTree) -> Array:
  """Which of several seeds' parameters, each with a leading axis of seeds, are all finite: bool [seeds]."""
  return jnp.stack([jnp.isfinite(x).all(range(1, x.ndim)) for x in jax.tree.leaves(params)]).all(0)


class Watch:
  """Checks each log window of a run for skipped updates.

  Args:
    config_train: the `train` branch of the config: `on_nonfinite`.
    in_a_row: updates skipped right before this start, from the state, so that a restart does not reset the count.
  """

  def __init__(self, config_train: ConfigDict, in_a_row: int = 0):
    self._most = MAX_SKIPPED_STEPS if config_train.on_nonfinite == "skip" else 1
    self._in_a_row = in_a_row

  def check(self, window: list[dict], values: dict[str, float], step: int) -> dict[str, float]:
    """The window's metrics to log, with the number of skipped updates in place of their share.

    Args:
      window: metric pairs of each of its updates.
      values: their means.
      step: the window's last.

    Raises:
      UserError: too many updates in a row were not finite, with `stop` a single one; it names them.
    """
    skipped = jax.device_get([pairs[SKIPPED][0] for pairs in window])
    for number, was_skipped in enumerate(skipped, step - len(window) + 1):
      self._in_a_row = self._in_a_row + 1 if was_skipped else 0
      if self._in_a_row >= self._most:
        raise self._error(number)
    return values | {SKIPPED: float(sum(skipped))}

  def _error(self, last: int) -> UserError:
    first, single = last - self._in_a_row + 1, self._most == 1
    return UserError(
      "The loss or the gradient is not finite",
      got=f"in step {last}" if single else f"{self._in_a_row} skipped steps in a row, {first} to {last}; "
      f"at most {self._most - 1} may be", allowed="finite losses and gradients",
      fix="resume with --config.train.on_nonfinite=skip to leave such steps out, or " * single
      + "start in a new --workdir with a lower --config.optimizer.learning_rate or a longer warm-up "
      f"(tools/show_batch --step={first - 1} shows the batch)")
