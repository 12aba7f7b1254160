"""How does the learning rate go by the clock? The state knows the seconds behind the parameters (`train.max_hours`)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from electra_jax.optim.schedules import Spent


class TimedState(NamedTuple):
  """Where a run of limited hours stands; `wall_clock` reads it by these names."""

  count: Array  # int32, updates
  seconds: Array  # float32, at the last update
  warmup_seconds: Array  # at the last one of the warm-up
  learning_rate: Array  # of the last one


def scale_by_timed_rate(schedule: Callable, warmup_steps: int,
                        budget_seconds: float) -> optax.GradientTransformationExtraArgs:
  """Times minus the rate of `schedule(step, Spent)`.

  Its `update` takes `seconds`, several measurements of the time behind the parameters. Time that went back stands
  still, and so does it without a measurement.
  """

  def init(params):
    del params
    zero = jnp.zeros((), jnp.float32)
    return TimedState(jnp.zeros((), jnp.int32), zero, zero, zero)

  def update(updates, state, params=None, *, seconds: Array | None = None, **_):
    del params
    now = state.seconds if seconds is None else jnp.maximum(state.seconds, jnp.max(seconds))
    warmup = jnp.where(state.count < max(1, warmup_steps), now, state.warmup_seconds)
    # A warm-up that outlasts the budget leaves no decay; the run ends with it.
    spent = Spent(now / budget_seconds, jnp.minimum(warmup / budget_seconds, 1 - 1e-6))
    rate = jnp.asarray(schedule(state.count, spent), jnp.float32)
    new = TimedState(optax.safe_increment(state.count), now, warmup, rate)
    return jax.tree.map(lambda update: -rate * update, updates), new

  return optax.GradientTransformationExtraArgs(init, update)
