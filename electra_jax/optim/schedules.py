"""How large is the learning rate at each step? Linear warm-up, then linear decay (ELECTRA Table 4, RoBERTa Table 9)."""

from collections.abc import Callable

import jax.numpy as jnp


def linear(config_optimizer, num_steps: int) -> Callable:
  """The triangle whose update t (from 0) uses peak * min((t + 1) / warmup, (num_steps - t) / decay).

  Update `warmup_steps - 1` uses the peak; the last update still moves, and the rate would be 0 at `num_steps`. So
  no update is spent at a rate of zero, neither the first nor the last. Without warm-up the first uses the peak.

  Differs from the released BERT and ELECTRA code: there the first update has rate 0 (t / warmup), and the decay
  already runs during warm-up, so that the peak is never reached (ELECTRA) or left by a jump (BERT). RoBERTa's code,
  like ours, begins at 1 / warmup and decays from the end of warm-up.
  """
  warmup = max(1, config_optimizer.warmup_steps)
  decay = max(1, num_steps - warmup + 1)

  def rate(step):
    rise, fall = (step + 1) / warmup, (num_steps - step) / decay
    return config_optimizer.learning_rate * jnp.clip(jnp.minimum(rise, fall), 0.0, 1.0)

  return rate


SCHEDULES = {"linear": linear}
