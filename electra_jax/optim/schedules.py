"""Learning-rate schedules: linear warm-up, then one of the shapes in `SCHEDULES`."""

from collections.abc import Callable

import jax.numpy as jnp
from ml_collections import ConfigDict

DECAY_SHARE = 0.1  # of the run's steps, at its end (wsd)


def linear(config_optimizer: ConfigDict, num_steps: int) -> Callable:
  """The papers' triangle (ELECTRA Table 4, RoBERTa Table 9).

  Update t (from 0) has the learning rate peak * min((t + 1) / warmup, (num_steps - t) / decay). Update
  `warmup_steps - 1` has the peak (without warm-up the first), and `num_steps` would have 0, so no update is wasted on
  a learning rate of 0.

  Differs from the released BERT and ELECTRA code: there the first update has a learning rate of 0 (t / warmup), and the
  decay already runs during warm-up, so that the peak is never reached (ELECTRA) or left by a jump (BERT). RoBERTa's
  code, like ours, begins at 1 / warmup and decays from the end of warm-up.
  """
  return _warmed(config_optimizer, num_steps, lambda remaining, left, step: remaining)


def cosine(config_optimizer: ConfigDict, num_steps: int) -> Callable:
  """Half a period of the cosine, from the peak to zero (Loshchilov and Hutter 2017, without restarts)."""
  return _warmed(config_optimizer, num_steps, lambda remaining, left, step: (1 - jnp.cos(jnp.pi * remaining)) / 2)


def constant(config_optimizer: ConfigDict, num_steps: int) -> Callable:
  """The peak until the end."""
  return _warmed(config_optimizer, num_steps, lambda remaining, left, step: jnp.ones_like(remaining))


def warmup_stable_decay(config_optimizer: ConfigDict, num_steps: int) -> Callable:
  """The peak, then a linear decay over the last tenth of the run (WSD, Hu et al. 2024).

  A run in its stable part can continue for as long as one likes, and end at any time with a short decay.
  """
  share = max(DECAY_SHARE, 1 / max(1, num_steps))  # at least one update
  return _warmed(config_optimizer, num_steps, lambda remaining, left, step: jnp.clip(left / share, 0.0, 1.0))


def inverse_sqrt(config_optimizer: ConfigDict, num_steps: int) -> Callable:
  """peak * sqrt(warmup / (t + 1)) after warm-up (Vaswani et al. 2017); does not depend on the length of the run."""
  warmup = max(1, config_optimizer.warmup_steps)
  return _warmed(config_optimizer, num_steps,
                 lambda remaining, left, step: jnp.sqrt(warmup / jnp.maximum(step + 1, warmup)))


def _warmed(config_optimizer: ConfigDict, num_steps: int, shape: Callable) -> Callable:
  """step -> learning rate: the peak times the warm-up's rise or `shape(remaining, left, step)`, whichever is lower.

  `remaining` is 1 at the end of warm-up and 1 / (updates of the decay) in the last update; `left` is the share of the
  whole run that is left.
  """
  warmup = max(1, config_optimizer.warmup_steps)
  decay = max(1, num_steps - warmup + 1)

  def rate(step):
    remaining = jnp.clip((num_steps - step) / decay, 0.0, 1.0)
    left = (num_steps - step) / max(1, num_steps)
    fall = shape(remaining, left, step)
    return config_optimizer.learning_rate * jnp.clip(jnp.minimum((step + 1) / warmup, fall), 0.0, 1.0)

  return rate


SCHEDULES = {
  "linear": linear,
  "cosine": cosine,
  "constant": constant,
  "wsd": warmup_stable_decay,
  "inverse_sqrt": inverse_sqrt,
}
